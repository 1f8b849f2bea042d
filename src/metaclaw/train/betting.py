"""Betting on gains: evidence about a mean that may be looked at after every pair (see `skills.gate.evalue` for why).

A gain g lies in [-1, 1]: what the new did better than the old on the same prompt. The claim is "the mean gain is at most -m", given
everything seen before. A bet of size λ in (0, 1) multiplies the stake by

    1 + λ·(g + m),      E[factor] = 1 + λ·(E[g] + m) <= 1 if the claim is true,

and never takes more than there is, since g + m > -1/λ. The stake is split evenly over a few λ, and the wealth is the mean. With
m = 0 it is evidence of "better"; turned round (g → -g) of "worse"; with m > 0 of "not worse by more than m". Gains of ±1 are the
wins and losses of `e_value`, which this equals on them.
"""

import math

from metaclaw.skills.gate.evalue import BETS

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
