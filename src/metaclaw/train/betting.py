"""Betting on gains: evidence about a mean that may be looked at after every pair.

An e-process is the wealth of a bettor who starts with 1 and bets against a claim at odds that are fair or worse if the claim is
true. By Ville's inequality it ever reaches 1/α with probability α at most if the claim is true, whenever one stops or looks.

A gain g lies in [-1, 1]: what the new did better than the old on the same prompt. The claim is "the mean gain is at most -m", given
everything seen before. A bet of size λ in (0, 1) multiplies the stake by

    1 + λ·(g + m),      E[factor] = 1 + λ·(E[g] + m) <= 1 if the claim is true,

and never takes more than there is, since g + m > -1/λ. The stake is split evenly over a few λ, and the wealth is the mean. With
m = 0 it is evidence of "better"; turned round (g → -g) of "worse"; with m > 0 of "not worse by more than m".

**A floor.** The claim is "the pass rate is at least p"; a bet on a lower rate r pays r/p on a pass and (1-r)/(1-p) on a failure,
which is at most 1 in expectation if the rate is p or more (`e_below`).
"""

import math

BETS = (0.25, 0.5, 0.75, 0.9)
_LOWER_BY = (0.8, 0.6, 0.4, 0.2)
_MOST = 690.0  # exp of more is no float


class GainBets:
    """The wealth of bets against "the mean gain is at most -margin". Add gains one by one, look whenever you like."""

    __slots__ = ("_margin", "_wealth")

    def __init__(self, margin: float = 0.0) -> None:
        if not 0.0 <= margin <= 1.0:
            raise ValueError(f"a margin of {margin} is not in [0, 1]")
        self._margin = margin
        self._wealth = [0.0] * len(BETS)

    def add(self, gain: float) -> None:
        """Settle the bets on one pair."""
        if not -1.0 <= gain <= 1.0:
            raise ValueError(f"a gain of {gain} is not in [-1, 1]")
        self._wealth = [had + math.log1p(bet * (gain + self._margin)) for had, bet in zip(self._wealth, BETS, strict=True)]

    @property
    def e_value(self) -> float:
        """Evidence against the claim."""
        return mean_wealth(self._wealth)


def mean_wealth(logarithms: list[float]) -> float:
    """The mean of wealths given by their logarithms."""
    most = max(logarithms)
    return math.exp(min(most + math.log(math.fsum(math.exp(one - most) for one in logarithms) / len(logarithms)), _MOST))


def e_below(floor: float, passes: int, failures: int) -> float:
    """Evidence that a pass rate is below `floor`."""
    if not 0.0 < floor < 1.0:
        return 1.0
    rates = [floor * part for part in _LOWER_BY]
    return mean_wealth([passes * math.log(rate / floor) + failures * math.log((1.0 - rate) / (1.0 - floor)) for rate in rates])


def rate_at_least(passes: int, turns: int, error: float) -> float:
    """A pass rate that the true one is below with probability at most `error`, from a number of turns fixed beforehand.

    Chernoff's bound: the p below the observed rate r with turns · KL(r ‖ p) = ln(1/error), found by halving.
    """
    if passes == 0 or turns == 0:
        return 0.0
    rate, wanted = passes / turns, math.log(1.0 / error) / turns
    low, high = 0.0, rate
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _divergence(rate, middle) > wanted else (low, middle)
    return low


def _divergence(rate: float, other: float) -> float:
    if other <= 0.0:
        return math.inf
    failing = 0.0 if rate == 1.0 else (1.0 - rate) * math.log((1.0 - rate) / (1.0 - other))
    return rate * math.log(rate / other) + failing
