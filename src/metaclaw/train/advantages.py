"""Advantages from rewards: relative to the group, to the batch, or to remembered values.

Every rollout either becomes data or is counted as skipped.

**Group** (GRPO). Rewards are compared within one prompt, and the advantages of a group sum to zero:

    A_i = (r_i - mean(r)) / max(std(r), least)      over the scored rollouts of one prompt

`least` is 0.1, or a quarter of the group's best reward if that is less: it keeps a small difference
between nearly equal rewards from becoming a large advantage. A group whose rewards are equal (std <
1e-4) gives no data.

**Batch** (REINFORCE++). One rollout per prompt is enough, so recorded answers can be used. But an
answer to an easy prompt gets the advantage of a good answer, so the batch should have 16 or more
prompts of one kind.

    A_i = clip((r_i - mean(r)) / std(r), ±3)      over all scored rollouts of the batch

**Tracker** (after SPO). For each key (task cluster and skill set) a value v = sum / weight is kept
over batches:

    a_i = r_i - v(key_i)                        with v from before the batch: no rollout is its own baseline
    A_i = clip((a_i - mean(a)) / std(a), ±3)    over the batch
    ρ = clip(2^(-D / half), ρ_min, ρ_max)       D: KL the policy has moved since the key was last used
    weight ← ρ·weight + n,   sum ← ρ·sum + Σ r

A new key starts at the mean of all keys, with the weight of `1 / (1 - ρ_min)` rollouts.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from metaclaw.domain.chat import Json
from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Datum, Rollout
from metaclaw.errors import TrainingError

FLAT = 1e-4
"""Rewards with a smaller standard deviation count as equal."""
MAX_ADVANTAGE = 3.0
"""Advantages are clipped to this many standard deviations."""
MOST_KEYS = 4_096
LEAST_SPREAD: Final = 0.1
"""Rewards of a group with a smaller standard deviation are not stretched to 1."""


class Skip(StrEnum):
    """Why a rollout gave no data."""

    UNSCORED = "could not be scored"
    ALONE = "nothing to compare it with"
    FLAT = "all rewards were alike"
    CUT = "the room ran out before its end"
    NOT_GOOD = "not good enough to imitate"
    SILENT = "the teacher agrees with it"


@dataclass(frozen=True, slots=True)
class Skipped:
    """How many rollouts and how many whole groups were skipped, by reason."""

    rollouts: Mapping[Skip, int] = field(default_factory=dict)
    groups: Mapping[Skip, int] = field(default_factory=dict)

    def __add__(self, other: "Skipped") -> "Skipped":
        return Skipped(_sum(self.rollouts, other.rollouts), _sum(self.groups, other.groups))

    @property
    def total(self) -> int:
        return sum(self.rollouts.values())


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """The rollouts of one turn's prompt and the reward of each, None if it could not be scored.

    `key` is the kind of prompt (task cluster and skill set), for the tracker.
    """

    turn: TurnId
    prompt: tuple[int, ...]
    rollouts_G: tuple[Rollout, ...]
    rewards_G: tuple[float | None, ...]
    key: str = ""

    def __post_init__(self) -> None:
        if not self.prompt or not self.rollouts_G or len(self.rollouts_G) != len(self.rewards_G):
            counts = (
                f"{len(self.prompt)} prompt tokens, {len(self.rollouts_G)} rollouts and"
                f" {len(self.rewards_G)} rewards"
            )
            raise ValueError(f"turn {self.turn}: a group cannot have {counts}")
        if not all(math.isfinite(reward) for reward in self.rewards_G if reward is not None):
            raise ValueError(f"turn {self.turn}: a reward is not a finite number")

    @property
    def known(self) -> list[tuple[Rollout, float]]:
        """The scored rollouts with their rewards."""
        pairs = zip(self.rollouts_G, self.rewards_G, strict=True)
        return [(rollout, reward) for rollout, reward in pairs if reward is not None]

    @property
    def unknown(self) -> int:
        """The number of rollouts that could not be scored."""
        return self.rewards_G.count(None)


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Data to learn from, in order of their prompts, and what was skipped."""

    data: tuple[Datum, ...]
    skipped: Skipped = field(default_factory=Skipped)

    def __add__(self, other: "TrainingData") -> "TrainingData":
        return TrainingData(self.data + other.data, self.skipped + other.skipped)


def group_advantages(groups: Sequence[ScoredGroup]) -> TrainingData:
    """Data with advantages relative to the group."""
    data = TrainingData(())
    for group in groups:
        data += _group_data(group)
    return data


def _group_data(group: ScoredGroup) -> TrainingData:
    known, unscored = group.known, [Skip.UNSCORED] * group.unknown
    if not known:
        return TrainingData((), skips(unscored, [Skip.UNSCORED]))
    mean, deviation = spread([reward for _, reward in known])
    if len(known) == 1 or deviation < FLAT:
        reason = Skip.ALONE if len(known) == 1 else Skip.FLAT
        return TrainingData((), skips([*unscored, *[reason] * len(known)], [reason]))
    least = min(LEAST_SPREAD, max(reward for _, reward in known) / 4.0)
    data = tuple(
        datum(group, rollout, (reward - mean) / max(deviation, least)) for rollout, reward in known
    )
    return TrainingData(data, skips(unscored))


def batch_advantages(groups: Sequence[ScoredGroup]) -> TrainingData:
    """Data with advantages relative to the batch."""
    return _batch_data(groups, lambda _: 0.0)


def _batch_data(groups: Sequence[ScoredGroup], baseline: Callable[[str], float]) -> TrainingData:
    """Data with advantages relative to the batch, after the baseline of each group's key is
    subtracted from its rewards.
    """
    known = [
        (group, rollout, reward - baseline(group.key))
        for group in groups
        for rollout, reward in group.known
    ]
    unscored = [Skip.UNSCORED] * sum(group.unknown for group in groups)
    unscored_groups = [Skip.UNSCORED for group in groups if not group.known]
    if not known:
        return TrainingData((), skips(unscored, unscored_groups))
    mean, deviation = spread([gain for _, _, gain in known])
    if len(known) == 1 or deviation < FLAT:
        reason = Skip.ALONE if len(known) == 1 else Skip.FLAT
        scored_groups = [reason for group in groups if group.known]
        return TrainingData(
            (), skips([*unscored, *[reason] * len(known)], [*unscored_groups, *scored_groups])
        )
    data = tuple(
        datum(group, rollout, clip((gain - mean) / deviation, MAX_ADVANTAGE))
        for group, rollout, gain in known
    )
    return TrainingData(data, skips(unscored, unscored_groups))


@dataclass(frozen=True, slots=True)
class ValueMemory:
    """How fast values are forgotten. `half` is the KL in nats per token after which a value counts
    half.
    """

    half: float = 0.06
    least: float = 0.875
    most: float = 0.96

    def kept(self, moved: float) -> float:
        """The share of a value's weight that is left after the policy has moved by `moved` nats."""
        return max(self.least, min(self.most, math.exp2(-moved / self.half)))

    @property
    def opening_weight(self) -> float:
        """The number of rollouts that the starting value of a new key counts as."""
        return 1.0 / (1.0 - self.least)


@dataclass(frozen=True, slots=True)
class _Value:
    sum: float
    weight: float
    at: float

    @property
    def mean(self) -> float:
        return self.sum / self.weight


class Tracker:
    """Remembered values. Immutable: `judge` returns the next tracker, to be stored once the step is
    applied.
    """

    __slots__ = ("_clock", "_memory", "_values")

    def __init__(self, memory: ValueMemory | None = None) -> None:
        self._memory = memory or ValueMemory()
        self._values: dict[str, _Value] = {}
        self._clock = 0.0

    def value(self, key: str) -> float | None:
        """The expected reward of a rollout of this key; None before the first batch."""
        known = self._values.get(key)
        return self._overall if known is None else known.mean

    def judge(self, groups: Sequence[ScoredGroup], moved: float) -> tuple[TrainingData, "Tracker"]:
        """Data of a batch, and the tracker after it. `moved` is the policy's KL since the last
        batch.
        """
        if not (math.isfinite(moved) and moved >= 0.0):
            raise TrainingError(f"a policy cannot have moved by {moved} nats")
        # Before the first batch the baseline is 0; normalisation subtracts the batch's mean anyway.
        return _batch_data(groups, lambda key: self.value(key) or 0.0), self._after(
            groups, self._clock + moved
        )

    def state(self) -> dict[str, Json]:
        values: dict[str, Json] = {
            key: [value.sum, value.weight, value.at] for key, value in self._values.items()
        }
        return {"clock": self._clock, "values": values}

    @staticmethod
    def of(state: Mapping[str, Json], memory: ValueMemory | None = None) -> "Tracker":
        """A tracker from its stored `state`. Raises TrainingError if that is invalid."""
        tracker = Tracker(memory)
        values = state.get("values")
        if not isinstance(values, dict):
            raise TrainingError("the stored values are not a table")
        tracker._clock = _number(state.get("clock"))
        tracker._values = {key: _value(stored) for key, stored in values.items()}
        return tracker

    @property
    def _overall(self) -> float | None:
        weight = math.fsum(value.weight for value in self._values.values())
        return math.fsum(value.sum for value in self._values.values()) / weight if weight else None

    def _after(self, groups: Sequence[ScoredGroup], clock: float) -> "Tracker":
        rewards: dict[str, list[float]] = {}
        for group in groups:
            for _, reward in group.known:
                rewards.setdefault(group.key, []).append(reward)
        batch = [reward for key in rewards for reward in rewards[key]]
        guess = (
            self._overall
            if self._overall is not None or not batch
            else math.fsum(batch) / len(batch)
        )
        values = dict(self._values)
        for key, seen in rewards.items():
            # Removed and inserted again, so that the keys are in the order of their last use.
            values[key] = self._remembered(values.pop(key, None), guess or 0.0, seen, clock)
        after = Tracker(self._memory)
        after._clock, after._values = clock, dict(list(values.items())[-MOST_KEYS:])
        return after

    def _remembered(
        self, value: _Value | None, guess: float, seen: Sequence[float], clock: float
    ) -> _Value:
        if value is None:
            weight = self._memory.opening_weight
            value = _Value(guess * weight, weight, clock)
        kept = self._memory.kept(clock - value.at)
        return replace(
            value,
            sum=kept * value.sum + math.fsum(seen),
            weight=kept * value.weight + len(seen),
            at=clock,
        )


def normaliser(data: Sequence[Datum]) -> float:
    """The divisor of a step's accumulated gradient: the number of drawn tokens in all its data.

        g = Σ_i Σ_t A_it ∇ln π(y_it) / Σ_i T_i

    Every token counts the same. Dividing each rollout by its own length would penalise long wrong
    answers less than short ones, and answers would grow."""
    return float(sum(len(item.tokens_T) for item in data))


def step_size(data: Sequence[Datum], groups: Sequence[ScoredGroup]) -> float:
    """The normaliser of a step in which some groups gave no data: the geometric mean of the tokens
    in its data and of all drawn tokens. With the tokens in its data alone, a step with data from
    one group would move the weights as far as one from thirty."""
    teaching = normaliser(data)
    drawn = sum(len(rollout.tokens_T) for group in groups for rollout in group.rollouts_G)
    return math.sqrt(teaching * max(teaching, drawn))


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and population standard deviation."""
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def clip(value: float, most: float) -> float:
    """The value limited to [-most, most]."""
    return max(-most, min(most, value))


def datum(group: ScoredGroup, rollout: Rollout, advantage: float) -> Datum:
    """One rollout with the same advantage on each of its tokens."""
    return Datum(
        group.turn,
        group.prompt,
        rollout.tokens_T,
        (advantage,) * len(rollout.tokens_T),
        rollout.logprobs_T,
    )


def skips(reasons: Iterable[Skip], groups: Iterable[Skip] = ()) -> Skipped:
    return Skipped(_count(reasons), _count(groups))


def _count(reasons: Iterable[Skip]) -> dict[Skip, int]:
    counts: dict[Skip, int] = {}
    for reason in reasons:
        counts[reason] = counts.get(reason, 0) + 1
    return counts


def _sum(one: Mapping[Skip, int], other: Mapping[Skip, int]) -> dict[Skip, int]:
    return {
        reason: one.get(reason, 0) + other.get(reason, 0)
        for reason in Skip
        if reason in one or reason in other
    }


def _value(stored: Json) -> _Value:
    if not isinstance(stored, list) or len(stored) != 3:
        raise TrainingError("a stored value is not three numbers")
    total, weight, at = map(_number, stored)
    if weight <= 0.0:
        raise TrainingError(f"a stored value has a weight of {weight}")
    return _Value(total, weight, at)


def _number(value: Json) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TrainingError(f"{value!r} is not a finite number")
    return float(value)
