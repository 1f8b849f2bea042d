"""Whether a candidate lost something on the golden set: paired by item, with an interval that may be looked at after every wave.

**Passes.** Of n items the candidate broke b and mended m. The change is (m - b)/n; its standard error is that of paired
differences, with one change more than was seen, so that a few items without a change prove nothing. Of N items in all, the
interval after n is

    (m - b)/n ± z·√(N/n)·error,

the bounds of O'Brien and Fleming: wide at the first looks, and hardly wider at the last than if nobody had looked before.

- the interval is above -margin                        → the abilities hold
- it is below -margin, or at the end below zero        → lost
- at the end neither                                    → the likelihood of the references decides, and holds only above -margin

**Likelihoods.** The mean log-probability ℓ of each item's reference answer, as the probability of a typical token e^ℓ, changes by

    points = 100 · mean(e^ℓ_candidate - e^ℓ_serving).

It varies less than passes do. Where the serving version passes next to nothing, nothing can break: then it must hold as well.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from metaclaw.errors import TrainingError
from metaclaw.train.golden import GoldenScore
from metaclaw.train.scored import spread

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class GoldenRules:
    """How much may be lost: `margin` in points of a hundred. `z` is the width of an interval in standard errors. Below a share of
    `weak` passes likelihoods are always compared."""

    margin: float = 2.0
    z: float = 1.72
    weak: float = 0.1


class GoldenStanding(StrEnum):
    """What a comparison shows. `UNSURE` says that all items were tried and the likelihoods are wanted."""

    HOLDS = "holds"
    LOST = "lost"
    OPEN = "open"
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True)
class Change:
    """A mean change in points of a hundred, with its interval."""

    points: float
    low: float
    high: float

    @classmethod
    def around(cls, points: float, width: float) -> "Change":
        """From its mean and half the width of its interval."""
        return cls(points, points - width, points + width)


@dataclass(frozen=True, slots=True)
class GoldenComparison:
    """What changed, item by item: the candidate's less the serving version's."""

    passes: Change
    likelihood: Change | None
    broken: tuple[str, ...]
    mended: tuple[str, ...]
    standing: GoldenStanding
    words: str

    @property
    def points(self) -> float:
        """The change of the share that passes, in points."""
        return self.passes.points

    @property
    def is_worse(self) -> bool:
        """Whether something was lost, or was not shown to be kept."""
        return self.standing in (GoldenStanding.LOST, GoldenStanding.UNSURE)


def compare_golden(
    serving: GoldenScore, candidate: GoldenScore, rules: GoldenRules | None = None, of: int | None = None
) -> GoldenComparison:
    """Compare on the items tried so far, `of` so many in all. Raises TrainingError if the two were not tried on the same items."""
    rules = rules or GoldenRules()
    _same_items(serving.passed, candidate.passed)
    tried = len(serving.passed)
    whole = max(tried, of or tried)
    broken = tuple(name for name, was in serving.passed.items() if was and not candidate.passed[name])
    mended = tuple(name for name, was in serving.passed.items() if not was and candidate.passed[name])
    z = rules.z * math.sqrt(whole / tried)
    passes = _change_of_passes(tried, len(broken), len(mended), z)
    likelihood = None
    if serving.likelihood is not None and candidate.likelihood is not None:
        points, error = likelihood_points(serving.likelihood, candidate.likelihood)
        likelihood = Change.around(points, z * error)
    standing = _standing(passes, likelihood, is_weak=serving.share < rules.weak, is_all=tried == whole, margin=rules.margin)
    words = _in_words(serving, passes, likelihood, broken, standing, rules.margin)
    return GoldenComparison(passes, likelihood, broken, mended, standing, words)


def likelihood_points(serving: Mapping[str, float], candidate: Mapping[str, float]) -> tuple[float, float]:
    """From mean log-probabilities of references per item: points gained, and the standard error of that."""
    _same_items(serving, candidate)
    gains = [100.0 * (math.exp(candidate[name]) - math.exp(before)) for name, before in serving.items()]
    mean, deviation = spread(gains)
    return mean, deviation / math.sqrt(max(1, len(gains) - 1))


def _change_of_passes(items: int, broken: int, mended: int, z: float) -> Change:
    mean = (mended - broken) / items
    error = math.sqrt(max(0.0, (broken + mended + 1) / items - mean**2) / items)
    return Change.around(100.0 * mean, 100.0 * z * error)


def _standing(passes: Change, likelihood: Change | None, *, is_weak: bool, is_all: bool, margin: float) -> GoldenStanding:
    if passes.high < -margin or (likelihood is not None and is_weak and likelihood.high < -margin):
        return GoldenStanding.LOST
    is_likely = likelihood is not None and likelihood.low > -margin
    if passes.low > -margin and (is_likely or not is_weak):
        return GoldenStanding.HOLDS
    if not is_all:
        return GoldenStanding.OPEN
    if passes.high < 0.0 or (likelihood is not None and not is_likely):
        return GoldenStanding.LOST
    return GoldenStanding.HOLDS if is_likely else GoldenStanding.UNSURE


def _same_items(one: Mapping[str, object], other: Mapping[str, object]) -> None:
    if not one or one.keys() != other.keys():
        raise TrainingError(f"golden sets of {len(one)} and {len(other)} items cannot be compared item by item")


_VERDICTS = {
    GoldenStanding.HOLDS: "general abilities kept",
    GoldenStanding.LOST: "general abilities lost",
    GoldenStanding.OPEN: "general abilities: more questions are wanted",
    GoldenStanding.UNSURE: "general abilities: the likelihood of the reference answers is wanted",
}


def _in_words(
    serving: GoldenScore,
    passes: Change,
    likelihood: Change | None,
    broken: tuple[str, ...],
    standing: GoldenStanding,
    margin: float,
) -> str:
    items = len(serving.passed)
    change = f"{passes.points:+.1f} points, at worst {passes.low:+.1f}, on {items:,} questions"
    if likelihood is not None:
        change += f"; reference answers {likelihood.points:+.1f} points as likely"
    if standing is not GoldenStanding.LOST:
        return f"{_VERDICTS[standing]} ({change})"
    named = ", ".join(broken[:_MOST_NAMED]) + (" …" if len(broken) > _MOST_NAMED else "")
    lost = f"; broken: {named}" if broken else ""
    return f"{_VERDICTS[standing]}, or not shown to be within {margin:g} points ({change}{lost})"
