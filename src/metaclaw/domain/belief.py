"""Two pass rates compared: what is placed (a skill, a reminder) against doing without it."""

from dataclasses import dataclass
from math import erf, exp, pi, sqrt


@dataclass(frozen=True, slots=True)
class PassRate:
    """Passes and failures seen; replays count as fractions of a task."""

    passed: float = 0.0
    failed: float = 0.0

    @property
    def mean(self) -> float:
        """The expected pass rate."""
        return (1 + self.passed) / (2 + self.passed + self.failed)

    @property
    def variance(self) -> float:
        """The variance of the Beta distribution."""
        return self.mean * (1 - self.mean) / (3 + self.passed + self.failed)

    def plus(self, *, passed: bool, weight: float = 1.0) -> "PassRate":
        """With one more outcome."""
        return PassRate(self.passed + weight, self.failed) if passed else PassRate(self.passed, self.failed + weight)


@dataclass(frozen=True, slots=True)
class Belief:
    """Pass rates of matching tasks with the skill and without it, and what a wrong decision would cost.

    Each rate has a Beta distribution: Beta(1, 1) before anything is known, one more pass or failure for each task. Their difference
    d is taken as normal with the mean and variance that follow. Then

        loss if kept      = E[max(0, -d)]     the passes lost per task if the skill stays and is worse
        loss if withdrawn = E[max(0, +d)]     the passes lost per task if the skill goes and was better

    A decision is made as soon as its expected loss is small enough to be accepted; where no more evidence may be bought or waited
    for, the smaller one decides. This is no significance test: the error rates that follow from the limits are simulated
    (`python -m benchmarks.gate`, docs/decisions/0032).
    """

    with_skill: PassRate = PassRate()
    without: PassRate = PassRate()

    @property
    def difference(self) -> float:
        """The expected effect: 0.3 is 30 points more."""
        return self.with_skill.mean - self.without.mean

    @property
    def deviation(self) -> float:
        """The standard deviation of the effect."""
        return sqrt(self.with_skill.variance + self.without.variance)

    @property
    def loss_if_withdrawn(self) -> float:
        """Expected passes lost per task by doing without the skill."""
        z = self.difference / self.deviation
        return self.deviation * exp(-z * z / 2) / sqrt(2 * pi) + self.difference * self.is_better

    @property
    def loss_if_kept(self) -> float:
        """Expected passes lost per task by keeping the skill."""
        return self.loss_if_withdrawn - self.difference

    @property
    def is_better(self) -> float:
        """The probability that the skill helps."""
        return 0.5 * (1 + erf(self.difference / self.deviation / sqrt(2)))

    def plus(self, *, is_placed: bool, passed: bool, weight: float = 1.0) -> "Belief":
        """With the outcome of one more task."""
        if is_placed:
            return Belief(self.with_skill.plus(passed=passed, weight=weight), self.without)
        return Belief(self.with_skill, self.without.plus(passed=passed, weight=weight))
