"""Evidence that may be checked after every observation: e-processes, the wealth of bets against a
claim.

A bettor starts with 1 and bets against a claim at odds that are fair or worse if the claim is true.
By Ville's inequality, if the claim is true, the wealth ever reaches 1/α with probability at most α,
however often it is checked.

**Gains** (`GainBets`). A gain g in [-1, 1] is the new version's score less the old version's on the
same prompt. The claim is "the mean gain is at most -m". A bet of size λ in (0, 1) multiplies the
stake by

    1 + λ·(g + m),      E[factor] = 1 + λ·(E[g] + m) <= 1 if the claim is true.

The stake is split evenly over a few λ, and the wealth is the mean. With m = 0 it is evidence of
"better"; with -g for g, of "worse"; with m > 0, of "not worse by more than m"."""

import math

BETS = (0.25, 0.5, 0.75, 0.9)
_MOST = 690.0  # exp of more overflows


class GainBets:
    """The wealth of bets against "the mean gain is at most -margin". It may be read after each
    gain.
    """

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
        self._wealth = [
            had + math.log1p(bet * (gain + self._margin))
            for had, bet in zip(self._wealth, BETS, strict=True)
        ]

    @property
    def e_value(self) -> float:
        """Evidence against the claim."""
        return mean_wealth(self._wealth)


def mean_wealth(logarithms: list[float]) -> float:
    """The mean of wealths given by their logarithms."""
    most = max(logarithms)
    return math.exp(
        min(
            most
            + math.log(math.fsum(math.exp(value - most) for value in logarithms) / len(logarithms)),
            _MOST,
        )
    )
