"""Evidence that may be checked after every observation: e-processes, the wealth of bets against a
claim.

A bettor starts with 1 and bets against a claim at odds that are fair or worse if the claim is true.
By Ville's inequality, if the claim is true, the wealth ever reaches 1/α with probability at most α,
however often it is checked.

**Gains** (`GainBets`). A gain g of at least -1 is the new version's score less the old version's on
the same prompt. The claim is "the mean gain is at most -m". A bet of size λ in (0, 1) multiplies the
stake by

    1 + λ·(g + m),      E[factor] = 1 + λ·(E[g] + m) <= 1 if the claim is true.

The stake is split evenly over a few λ, and the wealth is the mean. With m = 0 it is evidence of
"better"; with -g for g, of "worse"; with m > 0, of "not worse by more than m".

**Pairs** (`compare_pairs`). Both bets at once, up to the first decisive pair."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

BETS = (0.25, 0.5, 0.75, 0.9)
_MOST = 690.0  # exp of more overflows


class GainBets:
    """The wealth of bets against "the mean gain is at most -margin". It may be read after each
    gain.
    """

    def __init__(self, margin: float = 0.0) -> None:
        self._margin = margin
        self._wealth = [0.0] * len(BETS)

    def add(self, gain: float) -> None:
        """Settle the bets on one pair."""
        if not gain >= -1.0:
            raise ValueError(f"a gain of {gain} is not -1 or more")
        self._wealth = [
            had + math.log1p(bet * (gain + self._margin))
            for had, bet in zip(self._wealth, BETS, strict=True)
        ]

    @property
    def e_value(self) -> float:
        """Evidence against the claim."""
        most = max(self._wealth)
        mean = math.fsum(math.exp(value - most) for value in self._wealth) / len(BETS)
        return math.exp(min(most + math.log(mean), _MOST))


class Shown(StrEnum):
    """What pairs show of the new version."""

    BETTER = "better"
    WORSE = "worse"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class PairedTest:
    """What pairs show, up to the first decisive one: how many there were and how many of them were
    won and lost, the mean gain, the evidence for both, and how many could not be scored.
    """

    shown: Shown
    pairs: int
    better: int
    worse: int
    mean: float
    e_better: float
    e_worse: float
    unscored: int

    def words(self, what: str = "") -> str:
        if not self.pairs:
            return f"none of {self.unscored}{what} could be scored"
        left_out = f", {self.unscored} could not be scored" if self.unscored else ""
        return f"better in {self.better} of {self.pairs}{what}, worse in {self.worse}{left_out}"


def compare_pairs(
    gains: Iterable[float | None],
    *,
    better_at: float,
    worse_at: float,
    least_better: int = 1,
    least_worse: int = 1,
    margin: float = 0.0,
) -> PairedTest:
    """Weigh gains in order; None is one that is not known. Evidence of `better_at` after
    `least_better` pairs shows "better" (or "not worse by more than the margin"), of `worse_at`
    after `least_worse` shows "worse"; later pairs do not count."""
    better, worse, shown = GainBets(margin), GainBets(), Shown.OPEN
    known: list[float] = []
    unscored = 0
    for gain in gains:
        if gain is None:
            unscored += 1
            continue
        known.append(gain)
        better.add(gain)
        worse.add(-gain)
        if worse.e_value >= worse_at and len(known) >= least_worse:
            shown = Shown.WORSE
        elif better.e_value >= better_at and len(known) >= least_better:
            shown = Shown.BETTER
        if shown is not Shown.OPEN:
            break
    return PairedTest(
        shown,
        len(known),
        sum(gain > 0 for gain in known),
        sum(gain < 0 for gain in known),
        math.fsum(known) / max(1, len(known)),
        better.e_value,
        worse.e_value,
        unscored,
    )
