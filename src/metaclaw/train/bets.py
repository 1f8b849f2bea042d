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
"better"; with -g for g, of "worse"; with m > 0, of "not worse by more than m".

**A floor** (`e_below`). The claim is "the pass rate is at least p"; a bet on a lower rate r pays
r/p on a pass and (1-r)/(1-p) on a failure.

**A coin** (`CoinBets`). A coin with probability π decides which weights answer a session; then its
turns pass or fail. From the outcomes Y of the session so far, a bettor who believes that the canary
passes with μ1 and the serving version with μ0 > μ1 bets on how the coin fell:

    factor = q(A | Y) / π(A),      q(canary | Y) = π·L(Y; μ1) / (π·L(Y; μ1) + (1-π)·L(Y; μ0)),      L(Y; μ) = Π μ^pass (1-μ)^fail.

If the weights make no difference, the coin is independent of the outcomes and the mean of the
factor is exactly 1, however much the turns of one session resemble each other: the session is the
unit, and one session never multiplies the stake by more than 1/π. The stake is split over a grid of
(μ1, μ0)."""

import math
from dataclasses import dataclass, field

from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.verdict import Outcome

_LOWER_BY = (0.8, 0.6, 0.4, 0.2)
BETS = (0.25, 0.5, 0.75, 0.9)
_MOST = 690.0  # exp of more overflows
_RATES = (0.1, 0.3, 0.5, 0.7, 0.9)
_LOGARITHMS = tuple((math.log(rate), math.log1p(-rate)) for rate in _RATES)
_GRID = tuple((low, high) for low in range(len(_RATES)) for high in range(low + 2, len(_RATES)))


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


def e_below(floor: float, passes: int, failures: int) -> float:
    """Evidence that a pass rate is below `floor`."""
    if not 0.0 < floor < 1.0:
        return 1.0
    rates = [floor * part for part in _LOWER_BY]
    return mean_wealth(
        [
            passes * math.log(rate / floor) + failures * math.log((1.0 - rate) / (1.0 - floor))
            for rate in rates
        ]
    )


def rate_at_least(passes: int, turns: int, error: float) -> float:
    """A lower bound of the pass rate: the true rate is below it with probability at most `error`.
    `turns` must be fixed beforehand.

    Chernoff's bound: the p below the observed rate r with turns · KL(r ‖ p) = ln(1/error), found by
    bisection."""
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


@dataclass(frozen=True, slots=True)
class TrialTurn:
    """One turn during the trial of a canary: its session, whether the canary answered it, the
    canary's share of sessions, its outcome, and the skills in its prompt."""

    session: SessionId
    is_canary: bool
    share: float
    outcome: Outcome
    skills: tuple[SkillName, ...] = ()

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0 or (self.share == 1.0 and not self.is_canary):
            raise ValueError(f"a share of {self.share} does not fit session {self.session}")


class CoinBets:
    """Bets over a set of turns, and the counts of their outcomes."""

    def __init__(self) -> None:
        self._wealth = [0.0] * len(_GRID)
        self._sessions: dict[SessionId, _Session] = {}
        self.counts = {True: [0, 0], False: [0, 0]}  # of canary and serving: passes, failures
        self.seen: dict[bool, set[SessionId]] = {True: set(), False: set()}

    @property
    def e_worse(self) -> float:
        """Evidence that the canary is worse."""
        return mean_wealth(self._wealth)

    def is_compared(self, least_failures: int) -> bool:
        """Whether the canary has failed at least `least_failures` times, and the serving version
        has answered, too.
        """
        return self.counts[True][1] >= least_failures and bool(self.seen[False])

    def see(self, turn: TrialTurn, has_failed: bool) -> None:
        """Count a turn; if a coin decided which weights answer, settle the bets on it."""
        self.counts[turn.is_canary][has_failed] += 1
        self.seen[turn.is_canary].add(turn.session)
        if turn.share < 1.0:
            self._bet(turn, has_failed)

    def _bet(self, turn: TrialTurn, has_failed: bool) -> None:
        """Replace the session's old bets by bets on all its outcomes so far. The coin was thrown at
        its first turn.
        """
        session = self._sessions.setdefault(turn.session, _Session(turn.is_canary, turn.share))
        if has_failed:
            session.failures += 1
        else:
            session.passes += 1
        settled = session.settle()
        self._wealth = [
            had - before + now
            for had, before, now in zip(self._wealth, session.settled, settled, strict=True)
        ]
        session.settled = settled

    def words(self, e_value: float) -> str:
        (passed, failed), (others_passed, others_failed) = self.counts[True], self.counts[False]
        canary = (
            f"canary passed {passed} of {passed + failed} turns in {len(self.seen[True])} sessions"
        )
        return (
            f"{canary}, others {others_passed} of {others_passed + others_failed}; e ="
            f" {e_value:.3g}"
        )


@dataclass(slots=True)
class _Session:
    """How a session's coin fell, the outcomes of its turns, and the logarithms of its bets'
    factors, one for each pair of rates.
    """

    is_canary: bool
    share: float
    passes: int = 0
    failures: int = 0
    settled: list[float] = field(default_factory=lambda: [0.0] * len(_GRID))

    def settle(self) -> list[float]:
        """q(A | Y) / π(A) for every pair of rates."""
        likelihoods = [
            self.passes * passing + self.failures * failing for passing, failing in _LOGARITHMS
        ]
        return [self._factor(likelihoods[low], likelihoods[high]) for low, high in _GRID]

    def _factor(self, canary: float, serving: float) -> float:
        top = max(canary, serving)
        either = top + math.log(
            self.share * math.exp(canary - top) + (1.0 - self.share) * math.exp(serving - top)
        )
        return (canary if self.is_canary else serving) - either
