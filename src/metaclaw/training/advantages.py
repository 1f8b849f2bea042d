"""Advantages from rewards (GRPO). Every rollout either becomes data or is counted as skipped.

Rewards are compared within one prompt, and the advantages of a group sum to zero:

    A_i = (r_i - mean(r)) / max(std(r), least)      over the scored rollouts of one prompt

`least` is 0.1, or a quarter of the group's best reward if that is less: it keeps a small difference
between nearly equal rewards from becoming a large advantage. A group whose rewards are equal (std <
1e-4) gives no data."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Datum, Rollout
from metaclaw.training.drawn_elsewhere import engine_weights

FLAT = 1e-4
"""Rewards with a smaller standard deviation count as equal."""
MAX_ADVANTAGE = 3.0
"""The largest weight of an answer that is imitated."""
LEAST_SPREAD: Final = 0.1
"""Rewards of a group with a smaller standard deviation are not stretched to 1."""


class Skip(StrEnum):
    """Why a rollout gave no data."""

    UNSCORED = "could not be scored"
    ALONE = "nothing to compare it with"
    FLAT = "all rewards were alike"


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """The rollouts of one turn's prompt and the reward of each, None if it could not be scored. `key` is
    the kind of prompt (the skills in it)."""

    turn: TurnId
    prompt: tuple[int, ...]
    rollouts_G: tuple[Rollout, ...]
    rewards_G: tuple[float | None, ...]
    key: str = ""
    recorded: int = 0
    """How many of the last rollouts were not drawn now, but when the turn was made."""

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
    def drawn(self) -> "ScoredGroup":
        """The group without the rollouts that were recorded earlier."""
        count = len(self.rollouts_G) - self.recorded
        return replace(
            self, rollouts_G=self.rollouts_G[:count], rewards_G=self.rewards_G[:count], recorded=0
        )

    @property
    def known(self) -> list[tuple[Rollout, float]]:
        """The scored rollouts with their rewards."""
        pairs = zip(self.rollouts_G, self.rewards_G, strict=True)
        return [(rollout, reward) for rollout, reward in pairs if reward is not None]


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Data to learn from, in order of their prompts, and how many rollouts were skipped, by
    reason.
    """

    data: tuple[Datum, ...]
    skipped: Counter[Skip] = field(default_factory=Counter)

    def __add__(self, other: "TrainingData") -> "TrainingData":
        return TrainingData(self.data + other.data, self.skipped + other.skipped)


def group_advantages(groups: Sequence[ScoredGroup]) -> TrainingData:
    """Data with advantages relative to the group."""
    data = TrainingData(())
    for group in groups:
        data += _group_data(group)
    return data


def _group_data(group: ScoredGroup) -> TrainingData:
    known = group.known
    skipped = Counter({Skip.UNSCORED: len(group.rollouts_G) - len(known)})
    if not known:
        return TrainingData((), skipped)
    mean, deviation = spread([reward for _, reward in known])
    if len(known) == 1 or deviation < FLAT:
        reason = Skip.ALONE if len(known) == 1 else Skip.FLAT
        return TrainingData((), skipped + Counter({reason: len(known)}))
    least = min(LEAST_SPREAD, max(reward for _, reward in known) / 4.0)
    data = tuple(
        datum(group, rollout, (reward - mean) / max(deviation, least)) for rollout, reward in known
    )
    return TrainingData(data, skipped)


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


def datum(group: ScoredGroup, rollout: Rollout, advantage: float) -> Datum:
    """One rollout with the same advantage on each of its tokens, weighted if another engine drew
    them.
    """
    return Datum(
        group.turn,
        group.prompt,
        rollout.tokens_T,
        tuple(advantage * weight for weight in engine_weights(rollout)),
        rollout.logprobs_T,
    )
