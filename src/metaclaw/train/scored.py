"""What advantages are made from and what comes of them: rollouts with the worth of each, data, and what was left out.

Every rollout that goes in either teaches or is counted as skipped: `harvest.data` and `harvest.skipped` add up to what was given.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from metaclaw.domain.batch import Datum, Rollout
from metaclaw.domain.ids import TurnId

FLAT = 1e-4
"""Rewards that spread less than this say nothing about which answer was better."""

MOST = 3.0
"""An advantage beyond this many standard deviations is an outlier, not a better teacher."""


class Skip(StrEnum):
    """Why a rollout taught nothing."""

    UNSCORED = "nobody could say what it was worth"
    ALONE = "nothing to compare it with"
    FLAT = "all rewards were alike"
    CUT = "the room ran out before its end"
    NOT_GOOD = "not good enough to imitate"
    SILENT = "whoever knows better agrees with it"


@dataclass(frozen=True, slots=True)
class Skipped:
    """How many rollouts, and how many whole groups, were left out and why."""

    rollouts: Mapping[Skip, int] = field(default_factory=dict)
    groups: Mapping[Skip, int] = field(default_factory=dict)

    def __add__(self, other: "Skipped") -> "Skipped":
        return Skipped(_sum(self.rollouts, other.rollouts), _sum(self.groups, other.groups))

    @property
    def total(self) -> int:
        """All rollouts left out."""
        return sum(self.rollouts.values())


@dataclass(frozen=True, slots=True)
class Scored:
    """One turn's prompt, answered again: rollouts and the reward of each, None where nobody could say.

    `key` names what the prompt is like (task cluster and skill set), for whoever remembers how such prompts usually go.
    """

    turn: TurnId
    prompt: tuple[int, ...]
    rollouts_G: tuple[Rollout, ...]
    rewards_G: tuple[float | None, ...]
    key: str = ""

    def __post_init__(self) -> None:
        if not self.prompt or not self.rollouts_G or len(self.rollouts_G) != len(self.rewards_G):
            counts = f"{len(self.prompt)} prompt tokens, {len(self.rollouts_G)} rollouts and {len(self.rewards_G)} rewards"
            raise ValueError(f"turn {self.turn}: {counts} are no group")
        if not all(math.isfinite(reward) for reward in self.rewards_G if reward is not None):
            raise ValueError(f"turn {self.turn}: a reward is not a finite number")

    @property
    def known(self) -> list[tuple[Rollout, float]]:
        """The rollouts whose worth is known."""
        pairs = zip(self.rollouts_G, self.rewards_G, strict=True)
        return [(rollout, reward) for rollout, reward in pairs if reward is not None]

    @property
    def unknown(self) -> int:
        """How many rollouts nobody could score."""
        return self.rewards_G.count(None)


@dataclass(frozen=True, slots=True)
class Harvest:
    """Data to learn from, those of one prompt next to each other, and what gave none."""

    data: tuple[Datum, ...]
    skipped: Skipped = field(default_factory=Skipped)

    def __add__(self, other: "Harvest") -> "Harvest":
        return Harvest(self.data + other.data, self.skipped + other.skipped)


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (of the values themselves, not of a population they were drawn from)."""
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def clip(value: float, most: float) -> float:
    """The value, or the nearest that is no further from zero than `most`."""
    return max(-most, min(most, value))


def datum(group: Scored, rollout: Rollout, advantage: float) -> Datum:
    """One rollout with the same advantage on each of its tokens."""
    return Datum(group.turn, group.prompt, rollout.tokens_T, (advantage,) * len(rollout.tokens_T), rollout.logprobs_T)


def skips(reasons: Iterable[Skip], groups: Iterable[Skip] = ()) -> Skipped:
    """Reasons, counted."""
    return Skipped(_count(reasons), _count(groups))


def normaliser(data: Sequence[Datum]) -> float:
    """What a step's accumulated gradient is divided by: the drawn tokens of all its data.

        g = Σ_i Σ_t A_it ∇ln π(y_it) / Σ_i T_i

    Every token counts the same. To divide each rollout by its own length instead would make a long wrong answer cheaper than a
    short one, and answers would grow.
    """
    return float(sum(len(one.tokens_T) for one in data))


def step_size(data: Sequence[Datum], groups: Sequence[Scored]) -> float:
    """The normaliser of a step of which not every group taught: the geometric mean of the tokens that teach and of all drawn ones.

    Divided by its own tokens alone, the one group that is left to learn from would move the weights as far as thirty.
    """
    teaching = normaliser(data)
    drawn = sum(len(rollout.tokens_T) for group in groups for rollout in group.rollouts_G)
    return math.sqrt(teaching * max(teaching, drawn))


def _count(reasons: Iterable[Skip]) -> dict[Skip, int]:
    counts: dict[Skip, int] = {}
    for reason in reasons:
        counts[reason] = counts.get(reason, 0) + 1
    return counts


def _sum(one: Mapping[Skip, int], other: Mapping[Skip, int]) -> dict[Skip, int]:
    return {reason: one.get(reason, 0) + other.get(reason, 0) for reason in Skip if reason in one or reason in other}
