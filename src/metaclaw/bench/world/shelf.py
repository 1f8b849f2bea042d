"""Skills in force in the simulated world: placed by chance as the product does, kept or retired by what live turns show."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from metaclaw.bench.world.drafting import Draft
from metaclaw.bench.world.policy import family
from metaclaw.bench.world.settings import Gate as GateName
from metaclaw.bench.world.settings import Practice
from metaclaw.domain.skill import SkillState
from metaclaw.domain.verdict import Outcome
from metaclaw.skills.gate import CanaryDecision, CanaryRules, LiveTrial, judge_canary
from metaclaw.skills.hygiene import Life, Uplift, find_retirements, measure_uplift, share_to_place

_NO_TIME = datetime(2026, 1, 1, tzinfo=UTC)  # nothing goes stale in a run: only harm retires


@dataclass(slots=True)
class Kept:
    """A skill in force, for whom it is, and what live turns have shown of it."""

    draft: Draft
    user: str
    state: SkillState
    attempt: int
    trials: list[LiveTrial] = field(default_factory=list)
    looked_at: int = 0
    uplift: Uplift | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """A skill that matched a round: whether it was placed, and with what probability it would be."""

    kept: Kept
    placed: bool
    propensity: float


@dataclass(frozen=True, slots=True)
class Change:
    """Something became of a skill: it was promoted, or retired because of what live turns showed."""

    kept: Kept
    is_retired: bool
    why: str


class Shelf:
    """The library and its generation. What one person taught is placed for nobody else."""

    def __init__(self, gate: GateName, practice: Practice) -> None:
        self._gate = gate
        self._practice = practice
        self.generation = 0
        self._changed: dict[tuple[str, str], int] = {}
        self._kept: list[Kept] = []

    def find(self, user: str, rule: str) -> Kept | None:
        """The skill that was written for what a rule is about."""
        return next((one for one in self._kept if one.user == user and family(one.draft.rule) == family(rule)), None)

    def matching(self, user: str, rules: Iterable[str]) -> list[Kept]:
        """The skills that are found for a round, oldest first, as many as have room."""
        wanted = frozenset(rules)
        found = [one for one in self._kept if one.user == user and one.draft.effect.matches & wanted]
        return found[: self._practice.max_placed]

    def place(self, user: str, rules: Iterable[str], luck: Callable[[str], float]) -> list[Placed]:
        """Leave to chance what the product leaves to chance."""
        matching = [(one, self._propensity(one)) for one in self.matching(user, rules)]
        return [Placed(one, luck(one.draft.rule) < share, share) for one, share in matching]

    def has_changed(self, user: str, rules: Iterable[str], generation: int) -> bool:
        """Whether a prompt of this generation would hold other skills today."""
        return any(self._changed.get((user, rule), 0) > generation for rule in rules)

    def publish(self, draft: Draft, user: str, state: SkillState, attempt: int) -> None:
        """A draft comes into force, in place of the one that was written for the same thing."""
        old = self.find(user, draft.rule)
        self._kept = [one for one in self._kept if one is not old]
        self._kept.append(Kept(draft, user, state, attempt))
        matches = draft.effect.matches | (old.draft.effect.matches if old else frozenset())
        self._next(user, matches)

    def learn(self, placed: Sequence[Placed], outcome: Outcome) -> None:
        """What came of a round."""
        for one in placed:
            one.kept.trials.append(LiveTrial(one.placed, one.propensity, outcome))
            one.kept.uplift = None

    def tend(self) -> list[Change]:
        """Promote and retire by what live turns have shown, as the product's upkeep does."""
        changes = [change for kept in list(self._kept) if (change := self._judged(kept)) is not None]
        for change in changes:
            if change.is_retired:
                self._kept.remove(change.kept)
            else:
                change.kept.state, change.kept.trials, change.kept.uplift = SkillState.LIVE, [], None
            self._next(change.kept.user, change.kept.draft.effect.matches)
        return changes

    def _judged(self, kept: Kept) -> Change | None:
        if len(kept.trials) == kept.looked_at:
            return None
        kept.looked_at = len(kept.trials)
        if kept.state is SkillState.CANARY:
            report = judge_canary(kept.trials, CanaryRules(attempt=kept.attempt))
            is_over = report.decision is not CanaryDecision.WAIT
            return Change(kept, report.decision is CanaryDecision.DEMOTE, report.reason) if is_over else None
        life = Life(kept.draft.skill, _NO_TIME, 0, _uplift(kept))
        return next((Change(kept, True, one.reason) for one in find_retirements([life], _NO_TIME)), None)

    def _propensity(self, kept: Kept) -> float:
        if kept.state is SkillState.CANARY:
            return self._practice.canary_share
        if self._gate != "full":
            return 1.0
        return share_to_place(_uplift(kept), 1.0 - self._practice.holdout_share)

    def _next(self, user: str, rules: frozenset[str]) -> None:
        self.generation += 1
        self._changed |= {(user, rule): self.generation for rule in rules}


def _uplift(kept: Kept) -> Uplift:
    """Measured once for as long as nothing new is seen."""
    if kept.uplift is None:
        kept.uplift = measure_uplift(kept.trials)
    return kept.uplift
