"""What a skill is worth: the difference it makes on matching turns, from randomised withholding with logged propensity.

**Estimate.** For turn t with propensity π (placed with that probability), A = placed, Y = passed (1) or failed (0):

    Z_t = A·(Y - m_t)/π - (1-A)·(Y - m_t)/(1-π),      uplift = mean of Z_t.

m_t is the pass rate of the turns *before* t, so it is fixed when the coin is thrown and E[Z_t] = P(pass | placed) - P(pass |
withheld) whatever π and m_t are: unbiased, also where the propensity changes over time. Taking m_t off only makes Z_t vary less.

**Interval.** A confidence sequence, so one may look at it after every turn: with σ² the variance of Z and ρ a tuning constant,

    mean ± sqrt( 2·(n·σ²·ρ² + 1) / (n²·ρ²) · ln( sqrt(n·σ²·ρ² + 1) / α ) ).

It holds at all n at once, asymptotically (it takes the variance as known): `LEAST_TURNS` on each side are needed before it is
given.

**P(uplift > 0)** is Bayesian, for decisions on few turns: pass rates placed and withheld are Beta(1 + passes, 1 + failures), per
group of turns with the same propensity so that a changed propensity cannot mix good and bad times; the difference is taken as
normal with their means and variances, groups weighed by their turns.

**Who is doubtful is withheld more.** A live skill is withheld rarely, so its harm would take long to show. While P(uplift > 0) is
below one half it is placed on half of its turns instead (`share_to_place`). The coin is still logged with its own probability, so
the estimate stays unbiased.

Turns that were always placed (π = 1), and turns of unknown outcome, say nothing about uplift and are only counted.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import erf, log, sqrt

from metaclaw.domain.verdict import Outcome
from metaclaw.skills.gate.canary import LiveTrial

LEAST_TURNS = 3
DOUBTFUL_BELOW = 0.5
_DOUBTFUL_SHARE = 0.5
_RHO = 0.35


@dataclass(frozen=True, slots=True)
class Interval:
    """Where the uplift lies, with probability 1 - α, at all times at once."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Uplift:
    """What is known about a skill's worth. The estimate is None where one side was never seen, the interval where hardly."""

    estimate: float | None
    interval: Interval | None
    is_positive: float
    placed: int
    withheld: int
    unknown: int

    @property
    def turns(self) -> int:
        """Decided turns on which chance decided."""
        return self.placed + self.withheld


@dataclass(slots=True)
class _Side:
    passes: int = 0
    failures: int = 0

    @property
    def turns(self) -> int:
        return self.passes + self.failures

    @property
    def mean(self) -> float:
        return (1 + self.passes) / (2 + self.turns)

    @property
    def variance(self) -> float:
        return self.mean * (1 - self.mean) / (3 + self.turns)


def measure_uplift(trials: Iterable[LiveTrial], alpha: float = 0.05) -> Uplift:
    """The uplift of one skill from its draws, oldest first. Give it the draws of one model: another may need the skill or not."""
    groups: dict[float, tuple[_Side, _Side]] = {}
    unknown = passes = turns = 0
    total = squares = 0.0
    for trial in trials:
        if trial.outcome is Outcome.UNKNOWN or trial.propensity == 1.0:
            unknown += trial.outcome is Outcome.UNKNOWN
            continue
        passed = trial.outcome is Outcome.PASS
        before = (passes + 1) / (turns + 2)
        score = (passed - before) / (trial.propensity if trial.placed else trial.propensity - 1.0)
        total, squares = total + score, squares + score * score
        passes, turns = passes + passed, turns + 1
        side = groups.setdefault(trial.propensity, (_Side(), _Side()))[not trial.placed]
        side.passes, side.failures = side.passes + passed, side.failures + (not passed)
    placed, withheld = (sum(group[at].turns for group in groups.values()) for at in (0, 1))
    is_seen = placed > 0 and withheld > 0
    return Uplift(
        estimate=total / turns if is_seen else None,
        interval=_interval(total, squares, turns, alpha) if min(placed, withheld) >= LEAST_TURNS else None,
        is_positive=_is_positive(groups.values(), turns),
        placed=placed,
        withheld=withheld,
        unknown=unknown,
    )


def share_to_place(uplift: Uplift | None, usual: float) -> float:
    """With what probability to place a skill on the next turn it matches: as usual, or on half of them while it is in doubt."""
    is_doubtful = uplift is not None and uplift.turns > 0 and uplift.is_positive < DOUBTFUL_BELOW
    return min(usual, _DOUBTFUL_SHARE) if is_doubtful else usual


def _interval(total: float, squares: float, turns: int, alpha: float) -> Interval:
    mean = total / turns
    variance = max(squares / turns - mean * mean, 1e-6) * turns / (turns - 1)
    spread = turns * variance * _RHO**2 + 1
    half = sqrt(2 * spread / (turns * _RHO) ** 2 * log(sqrt(spread) / alpha))
    return Interval(max(-1.0, mean - half), min(1.0, mean + half))


def _is_positive(groups: Iterable[tuple[_Side, _Side]], turns: int) -> float:
    mean = variance = 0.0
    for placed, withheld in groups:
        weight = (placed.turns + withheld.turns) / turns
        mean += weight * (placed.mean - withheld.mean)
        variance += weight**2 * (placed.variance + withheld.variance)
    return 0.5 if not turns else 0.5 * (1 + erf(mean / sqrt(2 * variance)))
