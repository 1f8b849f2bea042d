"""The loop itself: draw, score, compare within groups, accumulate, step; and asking what was held out.

It drives a learner directly, in process, with the product's own advantages. Prompts go where they are needed: a rule that is mostly
right gets fewer of them.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

from benchmarks.house_rules.pools import Split
from benchmarks.house_rules.rehearsal import Rehearsal
from benchmarks.house_rules.rewards import is_exact, reward
from benchmarks.house_rules.rules import Rule
from benchmarks.house_rules.settings import Settings, learning_rate
from benchmarks.house_rules.tasks import Task, make_tasks
from metaclaw.domain.batch import Adam, Datum, Drawing, Loss, LossKind, PieceStats, Rollout, StepStats
from metaclaw.domain.ids import TurnId
from metaclaw.train.advantages.group import group_advantages
from metaclaw.train.scored import Scored

Encode = Callable[[Sequence[Task]], Sequence[tuple[int, ...]]]
"""From tasks to the tokens of their prompts."""

_MEMORY: Final = 0.9
_LEAST_NEED: Final = 0.15
_STREAMS: Final = 1_000_003
"""Keeps the random numbers of one seed's steps apart from another's."""
_VALIDATION: Final = 7_000
_MOST_TAUGHT: Final = 4_000
"""No run draws more questions of a rule than this."""


class Policy(Protocol):
    """What the loop needs of `engine.training.learner.Learner`."""

    def sample(self, prompts: Sequence[Sequence[int]], drawing: Drawing) -> list[list[Rollout]]: ...
    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[float, ...]]: ...
    def accumulate(self, data: Sequence[Datum], loss: Loss) -> PieceStats: ...
    def apply(self, adam: Adam, normaliser: float) -> StepStats: ...


@dataclass(slots=True)
class Clock:
    """Seconds by phase."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add what the block takes to a phase."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


class Choice:
    """Tasks for the next step: every rule has a stream of its own, and those that go wrong more often come more often."""

    def __init__(self, rules: Sequence[Rule], seed: int) -> None:
        self._streams = {rule: make_tasks((rule,), Split.TRAIN, seed) for rule in rules}
        self._right = dict.fromkeys(rules, 0.0)
        self._chance = random.Random(seed)

    def draw(self, count: int) -> list[Task]:
        """So many tasks, each rule at least once where there is room; those of one rule next to each other."""
        rules = list(self._streams)
        needs = [max(_LEAST_NEED, 1.0 - self._right[rule]) for rule in rules]
        extra = self._chance.choices(rules, needs, k=max(0, count - len(rules)))
        chosen = [*self._chance.sample(rules, min(count, len(rules))), *extra]
        return [next(self._streams[rule]) for rule in sorted(chosen, key=rules.index)]

    def learn(self, rule: Rule, share: float) -> None:
        """A group of this rule was right so often."""
        self._right[rule] = _MEMORY * self._right[rule] + (1.0 - _MEMORY) * share


@dataclass(frozen=True, slots=True)
class Step:
    """What one step looked like. Numbers are means over its rollouts; `taught` is how many rollouts had something to say."""

    number: int
    reward: float
    exact: float
    length: float
    entropy: float | None
    kl: float | None
    grad_norm: float | None
    learning_rate: float
    taught: int
    drawn_tokens: int


@dataclass(frozen=True, slots=True)
class Exam:
    """Held-out questions, answered greedily."""

    questions: int
    exact: float
    reward: float
    by_rule: dict[Rule, float]
    samples: tuple[tuple[str, str, str], ...]
    """A question of each rule, the right answer, and what was said."""


class Loop:
    """Teaches a policy, one step at a time."""

    def __init__(self, policy: Policy, settings: Settings, encode: Encode, seed: int, rehearsal: Rehearsal | None = None) -> None:
        self._policy, self._settings, self._encode, self._seed = policy, settings, encode, seed
        self._choice = Choice(settings.rules, seed)
        self._rehearsal = rehearsal
        self._steps = 0
        self.clock = Clock()

    def step(self, progress: float) -> Step:
        """Draw, score, learn. A step in which no group has anything to say changes nothing."""
        self._steps += 1
        settings, clock = self._settings, self.clock
        tasks = self._choice.draw(settings.prompts)
        with clock.phase("sample"):
            prompts = self._encode(tasks)
            drawing = Drawing(settings.group, settings.max_tokens, settings.temperature, self._seed * _STREAMS + self._steps)
            groups = self._policy.sample(prompts, drawing)
        with clock.phase("score"):
            scored = [_scored(number, task, prompts[number], groups[number]) for number, task in enumerate(tasks)]
            for task, group in zip(tasks, scored, strict=True):
                self._choice.learn(task.rule, _share_of_exact(group))
            data = group_advantages(scored).data
        rate = learning_rate(settings, self._steps, progress)
        stats = self._learn(data)
        applied = self._apply(rate, data) if data else None
        return _summary(self._steps, scored, stats, applied, rate, len(data))

    def _learn(self, data: Sequence[Datum]) -> list[PieceStats]:
        loss = Loss(LossKind.PPO, kl=self._settings.kl)
        with self.clock.phase("accumulate"):
            return [self._policy.accumulate(piece, loss) for piece in pieces(data, self._settings.piece_prompts)]

    def _apply(self, rate: float, data: Sequence[Datum]) -> StepStats:
        tokens = sum(len(datum.tokens_T) for datum in data)
        if self._rehearsal is not None:
            with self.clock.phase("rehearse"):
                self._rehearsal.accumulate(self._policy, self._settings.rehearsal * tokens)
        with self.clock.phase("apply"):
            return self._policy.apply(Adam(learning_rate=rate), float(tokens))


def pieces(data: Sequence[Datum], prompts: int) -> list[list[Datum]]:
    """The data cut behind every so many prompts."""
    cut: list[list[Datum]] = []
    turns: list[TurnId] = []
    for datum in data:
        if datum.turn not in turns[-1:]:
            if len(turns) % prompts == 0:
                cut.append([])
            turns.append(datum.turn)
        cut[-1].append(datum)
    return cut


def examine(policy: Policy, tasks: Sequence[Task], prompts: Sequence[tuple[int, ...]], max_tokens: int) -> Exam:
    """How many of these questions the policy answers exactly, taking the likeliest token each time."""
    drawn = [group[0] for group in policy.sample(prompts, Drawing(1, max_tokens, temperature=0.0))]
    pairs = list(zip(tasks, drawn, strict=True))
    exact = [is_exact(task, one.text, is_whole=one.is_whole) for task, one in pairs]
    worth = [reward(task, one.text, is_whole=one.is_whole) for task, one in pairs]
    by_rule = {
        rule: _mean([right for right, task in zip(exact, tasks, strict=True) if task.rule is rule]) for rule in _rules(tasks)
    }
    samples = {task.rule: (task.question, task.answer, one.text) for task, one in reversed(pairs)}
    return Exam(len(tasks), _mean(exact), _mean(worth), by_rule, tuple(samples.values()))


def held_out(settings: Settings, seed: int) -> list[Task]:
    """The questions a seed's run is asked at the end."""
    return list(islice(make_tasks(settings.rules, Split.HELD_OUT, seed), settings.held_out))


def validation(settings: Settings, seed: int) -> list[Task]:
    """Questions of the training side, others than those a seed's run is taught: by these weights may be chosen."""
    stream = make_tasks(settings.rules, Split.TRAIN, _VALIDATION + seed)
    taught = {task.question for rule in settings.rules for task in islice(make_tasks((rule,), Split.TRAIN, seed), _MOST_TAUGHT)}
    return list(islice((task for task in stream if task.question not in taught), settings.settle_on))


def _rules(tasks: Sequence[Task]) -> list[Rule]:
    return sorted({task.rule for task in tasks}, key=list(Rule).index)


def _scored(number: int, task: Task, prompt: tuple[int, ...], rollouts: Sequence[Rollout]) -> Scored:
    # Towards the end most rollouts of a group say the same.
    worth = {(one.text, one.is_whole): 0.0 for one in rollouts}
    for text, is_whole in worth:
        worth[text, is_whole] = reward(task, text, is_whole=is_whole)
    return Scored(TurnId(f"task-{number}"), prompt, tuple(rollouts), tuple(worth[one.text, one.is_whole] for one in rollouts))


def _share_of_exact(group: Scored) -> float:
    # Nothing but an exact answer is worth all of it.
    return _mean([worth == 1.0 for worth in group.rewards_G])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _summary(
    number: int, groups: Sequence[Scored], stats: Sequence[PieceStats], applied: StepStats | None, rate: float, taught: int
) -> Step:
    lengths = [len(rollout.tokens_T) for group in groups for rollout in group.rollouts_G]
    return Step(
        number=number,
        reward=_mean([worth for group in groups for worth in group.rewards_G if worth is not None]),
        exact=_mean([_share_of_exact(group) for group in groups]),
        length=_mean(lengths),
        entropy=_weighted([(one.entropy, one.tokens) for one in stats]),
        kl=_weighted([(one.kl, one.tokens) for one in stats]),
        grad_norm=None if applied is None else applied.grad_norm,
        learning_rate=rate,
        taught=taught,
        drawn_tokens=sum(lengths),
    )


def _weighted(values: Sequence[tuple[float | None, int]]) -> float | None:
    known = [(value, weight) for value, weight in values if value is not None]
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else None
