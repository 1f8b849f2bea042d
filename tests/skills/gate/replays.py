"""A replayer with known pass rates, for tests of the gate."""

import random
from collections.abc import Callable, Sequence

from metaclaw.domain.candidate import Change, Probe, ProbeKind, Proposal, Trial
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Authorship, Skill
from metaclaw.domain.verdict import Outcome

Answer = Callable[[Probe, int], tuple[Outcome, Outcome]]
P, F, U = Outcome.PASS, Outcome.FAIL, Outcome.UNKNOWN


class Replays:
    """Answers trials by a function of probe and seed, and remembers what it was asked."""

    def __init__(self, answer: Answer, tokens: int = 100, note: str = "") -> None:
        self._answer = answer
        self._tokens = tokens
        self._note = note
        self.asked: list[tuple[TurnId, int]] = []
        self.replaced: Sequence[SkillName] = ()

    async def trial(self, probe: Probe, skill: Skill, replaces: Sequence[SkillName], seed: int) -> Trial:
        self.asked.append((probe.turn, seed))
        self.replaced = replaces
        without, with_skill = self._answer(probe, seed)
        return Trial(probe, seed, without, with_skill, self._tokens, self._note)


def by_rates(rng: random.Random, failing: tuple[float, float], passing: tuple[float, float]) -> Answer:
    """Outcomes by chance: P(pass) without and with the skill, per kind of probe."""

    def answer(probe: Probe, seed: int) -> tuple[Outcome, Outcome]:
        without, with_skill = failing if probe.kind is ProbeKind.FAILING else passing
        return (P if rng.random() < without else F, P if rng.random() < with_skill else F)

    return answer


def probes(failing: int, passing: int) -> list[Probe]:
    return [
        *(Probe(TurnId(f"f{number}"), ProbeKind.FAILING) for number in range(failing)),
        *(Probe(TurnId(f"p{number}"), ProbeKind.PASSING) for number in range(passing)),
    ]


def skill(name: str = "csv-decimal-comma", body: str | None = None, scope: str | None = None) -> Skill:
    text = body or "1. Look at the separator.\n2. Read with a decimal comma.\n\nDo not replace commas by hand."
    return Skill(
        SkillName(name), "When reading CSV exports from German accounting software", text, scope=scope, author=Authorship.EVOLVER
    )


def proposal(
    of: Skill | None = None, *, replaces: tuple[str, ...] = (), change: Change | None = None, said: bool = False
) -> Proposal:
    names = tuple(SkillName(name) for name in replaces)
    kind = change or (Change.EDIT if names else Change.NEW)
    return Proposal(of or skill(), kind, names, (TurnId("taught"),), "csv", "evolver", said)
