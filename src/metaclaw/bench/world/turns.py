"""What this world remembers of a round: a turn with its stamp, as far as the product's one predicate asks for it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from metaclaw.bench.workdays.model import Item
from metaclaw.bench.world.policy import Effect
from metaclaw.bench.world.settings import Traits
from metaclaw.domain.eligibility import Role, RoleKind, Standing
from metaclaw.domain.ids import TurnId
from metaclaw.domain.turn import Stamp, TurnEnd, TurnKind
from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict


@dataclass(frozen=True, slots=True)
class SimTurn:
    """A round that was answered. `effects` are those of the skills in its prompt; `tokens` stand for exact ones, which it has."""

    id: TurnId
    item: Item
    user: str
    stamp: Stamp
    effects: tuple[Effect, ...]
    outcome: Outcome
    kind: TurnKind = TurnKind.MAIN
    end: TurnEnd = TurnEnd.COMPLETED
    provider: str = "simulated"
    tokens: object | None = field(default=(), repr=False)

    @property
    def verdict(self) -> Verdict:
        """What the person's next words say of it."""
        if self.outcome is Outcome.UNKNOWN:
            return Verdict(self.id, self.outcome, Source.NOBODY, None)
        failed = self.outcome is Outcome.FAIL
        return Verdict(self.id, self.outcome, Source.USER, float(failed), fault=Fault.AGENT if failed else None)

    @property
    def reward(self) -> float | None:
        """What it was worth when it was made."""
        return None if self.outcome is Outcome.UNKNOWN else float(self.outcome is Outcome.PASS)


class Memory:
    """All turns of a run, which of them taught a skill, and which were in a batch. Roles are given once."""

    def __init__(self) -> None:
        self.turns: dict[TurnId, SimTurn] = {}
        self._support: dict[TurnId, int] = {}
        self._taught: set[TurnId] = set()

    def add(self, turn: SimTurn) -> None:
        """A turn was made."""
        self.turns[turn.id] = turn

    def supports(self, turns: Sequence[TurnId], generation: int) -> None:
        """These turns taught a skill of this generation."""
        for turn in turns:
            self._support.setdefault(turn, generation)

    def teaches(self, turns: Sequence[TurnId]) -> None:
        """These turns are in a batch."""
        self._taught.update(turns)

    def is_taught(self, turn: TurnId) -> bool:
        """Whether it was in a batch: then it is query, and may not teach a skill."""
        return turn in self._taught

    def standing(self, turn: TurnId, *, held_out: bool, ignore_role: bool) -> Standing:
        """What the predicate is told of a turn."""
        generation = self._support.get(turn)
        role = None if generation is None or ignore_role else Role(RoleKind.SUPPORT, generation)
        return Standing(self.turns[turn].verdict, role, turn in self._taught, held_out)


def judged(passed: bool, traits: Traits, heard: float, mistaken: float) -> Outcome:
    """The verdict on an answer, given two numbers from 0 to 1: unknown, or wrong, as often as the traits say."""
    if heard < traits.unknown:
        return Outcome.UNKNOWN
    return Outcome.PASS if passed != (mistaken < traits.wrong) else Outcome.FAIL
