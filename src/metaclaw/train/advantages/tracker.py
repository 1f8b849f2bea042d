"""Advantages against a remembered value (after SPO): how such prompts usually go is the baseline, and it outlives the batch.

For each key (task cluster and skill set) a value v = sum / weight is kept. A batch's advantages are

    a_i = r_i - v(key_i)                        with v from before the batch: no rollout is its own baseline
    A_i = clip((a_i - mean(a)) / std(a), ±3)    over the batch

and afterwards each key's memory fades by how far the policy has moved since it was last used, and takes the batch's rewards in:

    ρ = clip(2^(-D / half), ρ_min, ρ_max)       D: KL the policy has moved since
    weight ← ρ·weight + n,   sum ← ρ·sum + Σ r

A policy that stands still remembers long (ρ_max), one that moves forgets what it was like (ρ_min). A key never seen begins at the
mean of all keys, with the weight of `1 / (1 - ρ_min)` rollouts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from metaclaw.domain.chat import Json
from metaclaw.errors import TrainingError
from metaclaw.train.scored import FLAT, MOST, Harvest, Scored, Skip, clip, datum, skips, spread

MOST_KEYS = 4_096


@dataclass(frozen=True, slots=True)
class Memory:
    """How fast values are forgotten. `half` is the KL in nats per token after which a memory counts half."""

    half: float = 0.06
    least: float = 0.875
    most: float = 0.96

    def kept(self, moved: float) -> float:
        """The share of a memory that is left after the policy has moved so far."""
        return max(self.least, min(self.most, math.exp2(-moved / self.half)))

    @property
    def opening_weight(self) -> float:
        """How many rollouts a first guess is worth."""
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
    """Remembered values. It never changes: `judge` gives the next one, to be kept once the step it was for is applied."""

    __slots__ = ("_clock", "_memory", "_values")

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory or Memory()
        self._values: dict[str, _Value] = {}
        self._clock = 0.0

    def value(self, key: str) -> float | None:
        """What a rollout of this key is expected to be worth; None where nothing was ever seen."""
        known = self._values.get(key)
        return self._overall if known is None else known.mean

    def judge(self, groups: Sequence[Scored], moved: float) -> tuple[Harvest, "Tracker"]:
        """Data of a batch, and what is remembered after it. `moved` is the policy's KL since the last batch."""
        if not (math.isfinite(moved) and moved >= 0.0):
            raise TrainingError(f"a policy cannot have moved by {moved} nats")
        return self._harvest(groups), self._after(groups, self._clock + moved)

    def state(self) -> dict[str, Json]:
        """Everything that is remembered, as JSON."""
        values: dict[str, Json] = {key: [value.sum, value.weight, value.at] for key, value in self._values.items()}
        return {"clock": self._clock, "values": values}

    @staticmethod
    def of(state: Mapping[str, Json], memory: Memory | None = None) -> "Tracker":
        """What was remembered. Raises TrainingError for something that is no such state."""
        tracker = Tracker(memory)
        values = state.get("values")
        if not isinstance(values, dict):
            raise TrainingError("the kept values are no table")
        tracker._clock = _number(state.get("clock"))
        tracker._values = {key: _value(kept) for key, kept in values.items()}
        return tracker

    @property
    def _overall(self) -> float | None:
        weight = math.fsum(value.weight for value in self._values.values())
        return math.fsum(value.sum for value in self._values.values()) / weight if weight else None

    def _harvest(self, groups: Sequence[Scored]) -> Harvest:
        known = [(group, rollout, reward) for group in groups for rollout, reward in group.known]
        unscored = [Skip.UNSCORED] * sum(group.unknown for group in groups)
        silent = [Skip.UNSCORED for group in groups if not group.known]
        if not known:
            return Harvest((), skips(unscored, silent))
        # Before anything is remembered the batch's own mean is the guess, and global normalisation takes it out again.
        gains = [reward - (self.value(group.key) or 0.0) for group, _, reward in known]
        mean, deviation = spread(gains)
        if len(known) == 1 or deviation < FLAT:
            reason = Skip.ALONE if len(known) == 1 else Skip.FLAT
            heard = [reason for group in groups if group.known]
            return Harvest((), skips([*unscored, *[reason] * len(known)], [*silent, *heard]))
        triples = zip(known, gains, strict=True)
        data = tuple(datum(group, rollout, clip((gain - mean) / deviation, MOST)) for (group, rollout, _), gain in triples)
        return Harvest(data, skips(unscored, silent))

    def _after(self, groups: Sequence[Scored], clock: float) -> "Tracker":
        rewards: dict[str, list[float]] = {}
        for group in groups:
            for _, reward in group.known:
                rewards.setdefault(group.key, []).append(reward)
        batch = [reward for key in rewards for reward in rewards[key]]
        guess = self._overall if self._overall is not None or not batch else math.fsum(batch) / len(batch)
        values = dict(self._values)
        for key, seen in rewards.items():
            # Taken out and put back: the keys stay in the order of their last use.
            values[key] = self._remembered(values.pop(key, None), guess or 0.0, seen, clock)
        after = Tracker(self._memory)
        after._clock, after._values = clock, dict(list(values.items())[-MOST_KEYS:])
        return after

    def _remembered(self, value: _Value | None, guess: float, seen: Sequence[float], clock: float) -> _Value:
        if value is None:
            weight = self._memory.opening_weight
            value = _Value(guess * weight, weight, clock)
        kept = self._memory.kept(clock - value.at)
        return replace(value, sum=kept * value.sum + math.fsum(seen), weight=kept * value.weight + len(seen), at=clock)


def _value(kept: Json) -> _Value:
    if not isinstance(kept, list) or len(kept) != 3:
        raise TrainingError("a kept value is not three numbers")
    total, weight, at = map(_number, kept)
    if weight <= 0.0:
        raise TrainingError(f"a kept value has a weight of {weight}")
    return _Value(total, weight, at)


def _number(value: Json) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TrainingError(f"{value!r} is not a finite number")
    return float(value)
