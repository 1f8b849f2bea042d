"""The slow loop in the simulated world: turns that may train become data, data move the log-odds, and the gate for weights decides.

Who may train is the product's one predicate; what differs by ablation is only what it is told. A turn whose prompt would hold other
skills today is *stale*. It is assumed that a failure of such a turn, once let in, is charged to heeding the skills that would be
in its prompt today, although they were not when it was earned: the policy learns to ignore skills. What keeping support and query
apart is worth follows from that assumption.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

from metaclaw.bench.world.policy import HEED, Effect, SimulatedPolicy, rules_of
from metaclaw.bench.world.settings import Ablation, Practice
from metaclaw.bench.world.shelf import Shelf
from metaclaw.bench.world.turns import Memory, SimTurn, judged
from metaclaw.domain.batch import Rollout
from metaclaw.domain.eligibility import Rejection, rejection
from metaclaw.domain.ids import TurnId
from metaclaw.domain.verdict import Outcome
from metaclaw.train.advantages import batch_advantages
from metaclaw.train.gate import Evidence, GateDecision, GateRules, Pair, Ruling, judge_candidate
from metaclaw.train.golden import GoldenScore
from metaclaw.train.scored import Scored
from metaclaw.train.selection import is_held_out

_FOR_EVER = frozenset({Rejection.SUPPORT, Rejection.TAUGHT, Rejection.HELD_OUT, Rejection.UNKNOWN, Rejection.OLD_GENERATION})
_GOLDEN = GoldenScore({"simulated": True})  # it has nothing but rules to lose


@dataclass(frozen=True, slots=True)
class _Lesson:
    """A turn's prompt, answered several times: what each answer broke, and what it was worth."""

    turn: SimTurn
    is_stale: bool
    effects: tuple[Effect, ...]
    broken: tuple[frozenset[str], ...]
    rewards: tuple[float | None, ...]

    def behaviour(self, at: int) -> Iterator[tuple[str, float]]:
        """Which habits an answer shows: +1 for a rule that was followed, -1 for a broken one; and whether skills were heeded.

        A stale turn's reward is charged to heeding the skills that it would hold today.
        """
        if self.is_stale:
            yield HEED, 1.0
            return
        broken = self.broken[at]
        for rule in rules_of(self.turn.item):
            yield rule, -1.0 if rule in broken else 1.0
            if any(rule in effect.mends for effect in self.effects):
                yield HEED, -1.0 if rule in broken else 1.0
            elif any(rule in effect.breaks for effect in self.effects):
                yield HEED, 1.0 if rule in broken else -1.0


class Slow:
    """Chooses batches, trains on them, proves what came of it. `policy` serves; `version` counts what was served."""

    def __init__(
        self, policy: SimulatedPolicy, ablation: Ablation, practice: Practice, shelf: Shelf, memory: Memory, rng: Random
    ) -> None:
        self.policy = policy
        self.version = 0
        self._ablation = ablation
        self._practice = practice
        self._shelf = shelf
        self._memory = memory
        self._rng = rng
        self._open: list[SimTurn] = []
        self._held_out: list[SimTurn] = []

    def add(self, turn: SimTurn) -> None:
        """A turn was made that may train some day, or prove."""
        is_kept = is_held_out(turn.id, self._practice.held_out_share)
        (self._held_out if is_kept else self._open).append(turn)

    def take_batch(self) -> list[SimTurn] | None:
        """Enough turns that may train now, the oldest first; None if there are too few. They are spent, whatever comes of them."""
        found = [(turn, self._rejected(turn)) for turn in self._open]
        self._open = [turn for turn, why in found if why not in _FOR_EVER]
        batch = [turn for turn, why in found if why is None][: self._practice.batch_turns]
        if len(batch) < self._practice.batch_turns:
            return None
        self._memory.teaches([turn.id for turn in batch])
        return batch

    def train(self, batch: Sequence[SimTurn]) -> GateDecision | None:
        """Some steps on a batch; what comes of them serves if the gate for weights passes it. None where that gate is off."""
        candidate = self.policy
        for _ in range(self._practice.steps):
            candidate = candidate.taught(self._pull(candidate, batch))
        if self._ablation.weights == "off":
            self._serve(candidate)
            return None
        decision = self._weigh(candidate)
        if decision.ruling is Ruling.PROMOTE:
            self._serve(candidate)
        return decision

    def is_stale(self, turn: SimTurn) -> bool:
        """Whether its prompt would hold other skills today."""
        return self._shelf.has_changed(turn.user, turn.item.rules, turn.stamp.generation)

    def _serve(self, candidate: SimulatedPolicy) -> None:
        self.policy = candidate
        self.version += 1

    def _rejected(self, turn: SimTurn) -> Rejection | None:
        apart = self._ablation.separation == "on"
        standing = self._memory.standing(turn.id, held_out=False, ignore_role=not apart)
        generation = self._clock(turn) if apart else turn.stamp.generation
        return rejection(turn, standing, generation, self.version, self._practice.max_lag)

    def _clock(self, turn: SimTurn) -> int:
        """Which generation the predicate is told is in force: the true one, or, where a turn is to count as fresh, its own."""
        match self._ablation.flush:
            case "full":
                return self._shelf.generation
            case "selective":
                return self._shelf.generation if self.is_stale(turn) else turn.stamp.generation
            case "none":
                return turn.stamp.generation

    def _pull(self, policy: SimulatedPolicy, batch: Sequence[SimTurn]) -> dict[str, float]:
        """Advantage times behaviour, summed by habit, a datum of the batch."""
        lessons = {turn.id: self._lesson(policy, turn) for turn in batch}
        harvest = batch_advantages([_scored(turn, lesson) for turn, lesson in lessons.items()])
        share = 1.0 / (len(batch) * self._practice.rollouts)
        pull: dict[str, float] = {}
        for datum in harvest.data:
            lesson = lessons[datum.turn]
            for habit, moved in lesson.behaviour(datum.tokens_T[0]):
                by = moved * datum.advantages_T[0]
                pull[habit] = pull.get(habit, 0.0) + share * (policy.traits.stale * min(0.0, by) if lesson.is_stale else by)
        return pull

    def _lesson(self, policy: SimulatedPolicy, turn: SimTurn) -> _Lesson:
        """A prompt answered again. A stale one would hold today's skills, and is paid for as it was then."""
        stale = self.is_stale(turn)
        effects = tuple(kept.draft.effect for kept in self._shelf.matching(turn.user, turn.item.rules)) if stale else turn.effects
        broken: list[frozenset[str]] = []
        for _ in range(self._practice.rollouts):
            broken.append(frozenset(rule for rule in rules_of(turn.item) if self._rng.random() >= policy.chance(rule, effects)))
        rewards = [turn.reward if stale else self._worth(policy, not one) for one in broken]
        return _Lesson(turn, stale, effects, tuple(broken), tuple(rewards))

    def _worth(self, policy: SimulatedPolicy, passed: bool) -> float | None:
        outcome = judged(passed, policy.traits, self._rng.random(), self._rng.random())
        return None if outcome is Outcome.UNKNOWN else float(outcome is Outcome.PASS)

    def _weigh(self, candidate: SimulatedPolicy) -> GateDecision:
        rules, pairs, tries = GateRules(), list[Pair](), self._tries(candidate)
        while True:
            wave = list(islice(tries, rules.wave))
            pairs += wave
            decision = judge_candidate(Evidence(pairs, _GOLDEN, _GOLDEN, is_all=not wave, judge="simulated"), rules)
            if decision.ruling is not Ruling.UNDECIDED:
                return decision

    def _tries(self, candidate: SimulatedPolicy) -> Iterator[Pair]:
        """Every held-out prompt with the skills it would hold today, then again with other luck, a few times."""
        for _ in range(self._practice.draws_a_prompt):
            for turn in self._held_out:
                effects = [kept.draft.effect for kept in self._shelf.matching(turn.user, turn.item.rules)]
                yield Pair(self._answered(candidate, turn, effects), self._answered(self.policy, turn, effects))

    def _answered(self, policy: SimulatedPolicy, turn: SimTurn, effects: Sequence[Effect]) -> float | None:
        return self._worth(policy, all(self._rng.random() < policy.chance(rule, effects) for rule in rules_of(turn.item)))


def _scored(turn: TurnId, lesson: _Lesson) -> Scored:
    drawn = tuple(Rollout((at,), (-1.0,), "", True) for at in range(len(lesson.broken)))
    return Scored(turn, (0,), drawn, lesson.rewards)
