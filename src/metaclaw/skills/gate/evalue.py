"""Testing by betting: evidence that may be looked at after every trial, as often as anyone likes.

**An e-process** is the wealth of somebody who starts with 1 and bets against a claim at odds that are fair or worse if the claim is
true. Such a wealth is a supermartingale E_t with E_0 = 1, and Ville's inequality holds for every stopping rule and at all times:

    P(there is a t with E_t >= 1/α) <= α    if the claim is true.

So a test that rejects when E_t >= 1/α may peek after every trial, stop early, or go on for longer than planned.

**Pairs** (shadow). A trial without and with the skill is a win (fail → pass), a loss (pass → fail) or a tie. The claim is "a win is
no likelier than a loss", given everything seen before. A tie moves no money. On a win or a loss a bet of size λ in (0, 1) pays

    1 + λ on a win,  1 - λ on a loss,      E[factor] = 1 + λ·(P(win) - P(loss))/P(win or loss) <= 1.

Nobody knows the best λ, so the stake is split evenly over a few of them, and the wealth is the mean (a mean of e-processes is one):

    E(w, l) = mean over λ of (1 + λ)^w · (1 - λ)^l.

It depends on the counts alone, not on their order. The mirror E(l, w) tests "a loss is no likelier than a win": harm.

**Placements** (canary). A skill matched, a coin with logged propensity π said whether it was placed (A), and the turn passed or
failed (Y). The claim is P(pass | placed) = μ1 <= μ0 = P(pass | withheld). Whoever believes in a pair μ1 > μ0 bets, having seen Y,
on how the coin fell:

    factor = q(A | Y) / π(A),   q(placed | pass) = π·μ1 / (π·μ1 + (1-π)·μ0),
                                q(placed | fail) = π·(1-μ1) / (π·(1-μ1) + (1-π)·(1-μ0)).

If the truth is μ1' <= μ0', then P(placed | pass) <= π <= q(placed | pass), so the expected factor given "pass" is at most 1, and
the same for "fail" the other way round: an e-process, whatever π was at each turn, and the inverse of π is what weighs each
outcome. Its growth is the mutual information of coin and outcome, which no test can beat. Again the stake is split over a grid of
pairs. Where π = 1 every factor is 1: no chance, no evidence. The mirror swaps μ1 and μ0.

**A floor** (always placed). Where nothing is ever withheld, the claim is "the pass rate is at least p"; a bet on a lower rate r
pays r/p on a pass and (1-r)/(1-p) on a failure, which is at most 1 in expectation if the rate is p or more.

**Spending.** Who tries k variants has k chances to be lucky. Attempt k gets α_k = α / (k·(k+1)); these add up to α, for ever.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, inf, log, log1p

BETS = (0.25, 0.5, 0.75, 0.9)
_RATES = (0.05, 0.2, 0.4, 0.6, 0.8, 0.95)
_PAIRS = tuple((high, low) for at, low in enumerate(_RATES) for high in _RATES[at + 1 : at + 4])
_LOWER_BY = (0.8, 0.6, 0.4, 0.2)
_MOST = 690.0  # exp of more is no float


def e_value(wins: int, losses: int) -> float:
    """Evidence that wins are likelier than losses."""
    return _mean_wealth(wins * log1p(bet) + losses * log1p(-bet) for bet in BETS)


def spend(alpha: float, attempt: int) -> float:
    """The error allowed to the `attempt`-th try (from 1) at the same thing, so that all tries together stay within `alpha`."""
    if attempt < 1:
        raise ValueError(f"attempts are counted from 1, not {attempt}")
    return alpha / (attempt * (attempt + 1))


@dataclass(frozen=True, slots=True)
class Coin:
    """One matching turn: how the coin fell, with what probability it falls on "placed", and whether the turn passed."""

    placed: bool
    propensity: float
    passed: bool

    def __post_init__(self) -> None:
        if not 0.0 < self.propensity <= 1.0:
            raise ValueError(f"a propensity of {self.propensity} is not in (0, 1]")
        if self.propensity == 1.0 and not self.placed:
            raise ValueError("a skill that is always placed was not placed")


class CoinBets:
    """The wealth of bets on how the coins fell; `harm` turns them round. Add coins one by one, look whenever you like."""

    def __init__(self, *, harm: bool = False) -> None:
        self._pairs = tuple((low, high) for high, low in _PAIRS) if harm else _PAIRS
        self._wealth = [0.0] * len(_PAIRS)

    def add(self, coin: Coin) -> None:
        """Settle the bets on one turn."""
        share = coin.propensity
        if share == 1.0:
            return
        for at, (placed_rate, withheld_rate) in enumerate(self._pairs):
            placed = placed_rate if coin.passed else 1.0 - placed_rate
            withheld = withheld_rate if coin.passed else 1.0 - withheld_rate
            # q(A|Y)/π(A): what the outcome is worth under this coin, against what it is worth on average
            self._wealth[at] += log((placed if coin.placed else withheld) / (share * placed + (1.0 - share) * withheld))

    @property
    def e_value(self) -> float:
        """Evidence against "the skill does not help" (or, for harm, "does not harm")."""
        return _mean_wealth(self._wealth)


def e_below(floor: float, passes: int, failures: int) -> float:
    """Evidence that a pass rate is below `floor`."""
    if not 0.0 < floor < 1.0:
        return 1.0
    rates = [floor * part for part in _LOWER_BY]
    return _mean_wealth(passes * log(rate / floor) + failures * log((1.0 - rate) / (1.0 - floor)) for rate in rates)


def rate_at_least(passes: int, turns: int, error: float) -> float:
    """A pass rate that the true one is below with probability at most `error`, from a number of turns fixed beforehand.

    Chernoff's bound: the p below the observed rate r with turns · KL(r ‖ p) = ln(1/error), found by halving.
    """
    if passes == 0 or turns == 0:
        return 0.0
    rate, wanted = passes / turns, log(1.0 / error) / turns
    low, high = 0.0, rate
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _divergence(rate, middle) > wanted else (low, middle)
    return low


def _divergence(rate: float, other: float) -> float:
    if other <= 0.0:
        return inf
    failing = 0.0 if rate == 1.0 else (1.0 - rate) * log((1.0 - rate) / (1.0 - other))
    return rate * log(rate / other) + failing


def _mean_wealth(logarithms: Iterable[float]) -> float:
    wealth = list(logarithms)
    most = max(wealth)
    total = most + log(sum(exp(one - most) for one in wealth) / len(wealth))
    return exp(min(total, _MOST))
