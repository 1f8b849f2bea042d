"""A replayer with known outcomes, for tests of the gate."""

from collections.abc import Callable, Sequence

from metaclaw.domain.candidate import Change, Probe, ProbeKind, Proposal, ReplayCost, ReplayResult
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Authorship, Skill
from metaclaw.domain.verdict import Outcome

Answer = Callable[[Probe, int], Outcome]
P, F, U = Outcome.PASS, Outcome.FAIL, Outcome.UNKNOWN


class Replays:
    """Answers replays by a function of probe and seed, and remembers what it was asked."""

    def __init__(
        self, answer: Answer, tokens: int = 1_000, note: str = "", *, is_unavailable: bool = False
    ) -> None:
        self._answer = answer
        self._tokens = tokens
        self._note = note
        self._is_unavailable = is_unavailable
        self.asked: list[TurnId] = []

    async def estimate(self, probe: Probe, skill: Skill) -> ReplayCost:
        return ReplayCost(self._tokens)

    async def replay(
        self, probe: Probe, skill: Skill, replaces: Sequence[SkillName], seed: int, limit: int
    ) -> ReplayResult:
        self.asked.append(probe.turn)
        return ReplayResult(
            probe, self._answer(probe, seed), self._tokens, self._note, self._is_unavailable
        )


def fixes(probe: Probe, seed: int) -> Outcome:
    return P


def changes_nothing(probe: Probe, seed: int) -> Outcome:
    return F if probe.kind is ProbeKind.FAILING else P


def breaks(probe: Probe, seed: int) -> Outcome:
    return F


def probes(failing: int, passing: int) -> list[Probe]:
    return [
        *(Probe(TurnId(f"f{number}"), ProbeKind.FAILING) for number in range(failing)),
        *(Probe(TurnId(f"p{number}"), ProbeKind.PASSING) for number in range(passing)),
    ]


def skill(
    name: str = "csv-decimal-comma", body: str | None = None, scope: str | None = None
) -> Skill:
    text = (
        body
        or "1. Look at the separator.\n2. Read with a decimal comma.\n\nDo not replace commas by hand."
    )
    return Skill(
        SkillName(name),
        "When reading CSV exports from German accounting software",
        text,
        scope=scope,
        author=Authorship.EVOLVER,
    )


def proposal(
    of: Skill | None = None,
    *,
    replaces: tuple[str, ...] = (),
    change: Change | None = None,
    said: bool = False,
) -> Proposal:
    names = tuple(SkillName(name) for name in replaces)
    kind = change or (Change.EDIT if names else Change.NEW)
    return Proposal(of or skill(), kind, names, (TurnId("taught"),), "csv", "evolver", said)
