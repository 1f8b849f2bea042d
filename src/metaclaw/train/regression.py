"""Whether a candidate lost something on the golden set: paired by item, and tolerant of the noise of a small set.

**Passes.** Of n items the candidate broke b and mended m. A drop of up to `margin` points is allowed; given the k = b + m items
that changed, a true drop of just the margin breaks each of them with probability q = (1 + n·margin/k) / 2, the margin as a share.
The candidate lost something if so many broken ones would then be rare:

    P(Binomial(k, q) >= b) <= alpha      and      100·(b - m)/n > margin.

**Likelihoods.** Where the serving version passes next to nothing, nothing can break. Then the mean log-probability ℓ of each item's
reference answer speaks as well, as the probability of a typical token, e^ℓ:

    points = 100 · mean(e^ℓ_candidate - e^ℓ_serving),

and the candidate lost something if the drop exceeds the margin by more than the noise of the mean (one-sided, at `alpha`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

from metaclaw.errors import TrainingError
from metaclaw.train.golden import GoldenScore
from metaclaw.train.scored import spread

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class GoldenRules:
    """How much may be lost: `margin` in points of a hundred. Below a share of `weak` passes likelihoods are compared as well."""

    margin: float = 1.0
    alpha: float = 0.1
    weak: float = 0.1


@dataclass(frozen=True, slots=True)
class GoldenComparison:
    """What changed, item by item. `points` and `likelihood_points` are the candidate's less the serving version's."""

    points: float
    broken: tuple[str, ...]
    mended: tuple[str, ...]
    likelihood_points: float | None
    is_worse: bool
    words: str


def compare_golden(serving: GoldenScore, candidate: GoldenScore, rules: GoldenRules | None = None) -> GoldenComparison:
    """Raises TrainingError if the two were not tried on the same items."""
    rules = rules or GoldenRules()
    _same_items(serving.passed, candidate.passed)
    broken = tuple(name for name, was in serving.passed.items() if was and not candidate.passed[name])
    mended = tuple(name for name, was in serving.passed.items() if not was and candidate.passed[name])
    items = len(serving.passed)
    points = 100.0 * (len(mended) - len(broken)) / items
    is_worse = -points > rules.margin and chance_of_breaking(items, len(broken), len(mended), rules.margin) <= rules.alpha
    likelihoods = _likelihoods(serving, candidate, rules)
    drop, is_less_likely = (None, False) if likelihoods is None else _likelihood_drop(*likelihoods, rules)
    words = _in_words(serving, points, broken, drop)
    return GoldenComparison(points, broken, mended, drop, is_worse or is_less_likely, words)


def chance_of_breaking(items: int, broken: int, mended: int, margin: float) -> float:
    """How likely so many broken ones, or more, are among those that changed, if the true drop is just the margin (in points)."""
    changed = broken + mended
    if changed == 0:
        return 1.0
    rate = min(1.0, (1.0 + items * margin / 100.0 / changed) / 2.0)
    return math.fsum(
        math.comb(changed, count) * rate**count * (1.0 - rate) ** (changed - count) for count in range(broken, changed + 1)
    )


def likelihood_points(serving: Mapping[str, float], candidate: Mapping[str, float]) -> tuple[float, float]:
    """From mean log-probabilities of references per item: points gained, and the standard error of that."""
    _same_items(serving, candidate)
    gains = [100.0 * (math.exp(candidate[name]) - math.exp(before)) for name, before in serving.items()]
    mean, deviation = spread(gains)
    return mean, deviation / math.sqrt(max(1, len(gains) - 1))


def _likelihoods(
    serving: GoldenScore, candidate: GoldenScore, rules: GoldenRules
) -> tuple[Mapping[str, float], Mapping[str, float]] | None:
    if serving.share >= rules.weak or serving.likelihood is None or candidate.likelihood is None:
        return None
    return serving.likelihood, candidate.likelihood


def _likelihood_drop(serving: Mapping[str, float], candidate: Mapping[str, float], rules: GoldenRules) -> tuple[float, bool]:
    points, error = likelihood_points(serving, candidate)
    return points, -points - rules.margin > NormalDist().inv_cdf(1.0 - rules.alpha) * error


def _same_items(one: Mapping[str, object], other: Mapping[str, object]) -> None:
    if not one or one.keys() != other.keys():
        raise TrainingError(f"golden sets of {len(one)} and {len(other)} items cannot be compared item by item")


def _in_words(serving: GoldenScore, points: float, broken: tuple[str, ...], drop: float | None) -> str:
    named = ", ".join(broken[:_MOST_NAMED]) + (" …" if len(broken) > _MOST_NAMED else "")
    lost = f" (broken: {named})" if broken else ""
    likelihood = "" if drop is None else f", {drop:+.1f} points of likelihood"
    return f"golden set {points:+.1f} points of {100 * serving.share:.1f}{lost}{likelihood}"
