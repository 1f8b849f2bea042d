"""Bets on a coin: live turns, of which a coin decided session by session whose weights answer them. Pure.

**The bet.** A coin with probability π decided which weights answer a session; then its turns passed or failed. Having seen
the outcomes Y of the session so far, somebody who believes that the canary passes with μ1 and the serving version with μ0 > μ1
bets on how the coin fell:

    factor = q(A | Y) / π(A),      q(canary | Y) = π·L(Y; μ1) / (π·L(Y; μ1) + (1-π)·L(Y; μ0)),      L(Y; μ) = Π μ^pass (1-μ)^fail.

If the weights make no difference, the coin is independent of the outcomes and the factor's mean is exactly 1, however much the
turns of one session resemble each other: the session is the unit, and one session can never multiply the stake by more than 1/π.
The stake is split over a grid of (μ1, μ0). Ville's inequality holds over sessions; a session half seen counts as it stands.
"""

import math
from dataclasses import dataclass, field

from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.verdict import Outcome
from metaclaw.train.betting import mean_wealth

_RATES = (0.1, 0.3, 0.5, 0.7, 0.9)
_LOGARITHMS = tuple((math.log(rate), math.log1p(-rate)) for rate in _RATES)
_GRID = tuple((low, high) for low in range(len(_RATES)) for high in range(low + 2, len(_RATES)))


@dataclass(frozen=True, slots=True)
class LiveTurn:
    """One turn while a canary is tried: its session, whether the canary answered it, the canary's share of sessions, and the skills
    in its prompt."""

    session: SessionId
    is_canary: bool
    share: float
    outcome: Outcome
    skills: tuple[SkillName, ...] = ()

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0 or (self.share == 1.0 and not self.is_canary):
            raise ValueError(f"a share of {self.share} does not fit session {self.session}")


class CoinBets:
    """Bets over some of the turns, and how these came out."""

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
        """Whether the canary has failed at all, and there is something to hold it against."""
        return self.counts[True][1] >= least_failures and bool(self.seen[False])

    def see(self, turn: LiveTurn, has_failed: bool) -> None:
        """Count a turn; where a coin decided who answers, settle the bets on it."""
        self.counts[turn.is_canary][has_failed] += 1
        self.seen[turn.is_canary].add(turn.session)
        if turn.share < 1.0:
            self._bet(turn, has_failed)

    def _bet(self, turn: LiveTurn, has_failed: bool) -> None:
        """Take back the session's old bets and settle them with all that is known of it now. The coin fell at its first turn."""
        session = self._sessions.setdefault(turn.session, _Session(turn.is_canary, turn.share))
        if has_failed:
            session.failures += 1
        else:
            session.passes += 1
        settled = session.settle()
        self._wealth = [had - before + now for had, before, now in zip(self._wealth, session.settled, settled, strict=True)]
        session.settled = settled

    def words(self, e_value: float) -> str:
        """For a report."""
        (passed, failed), (others_passed, others_failed) = self.counts[True], self.counts[False]
        canary = f"canary passed {passed} of {passed + failed} turns in {len(self.seen[True])} sessions"
        return f"{canary}, others {others_passed} of {others_passed + others_failed}; e = {e_value:.3g}"


@dataclass(slots=True)
class _Session:
    """How a session's coin fell, what came of its turns, and what its bets are worth (logarithms, one for each pair of rates)."""

    is_canary: bool
    share: float
    passes: int = 0
    failures: int = 0
    settled: list[float] = field(default_factory=lambda: [0.0] * len(_GRID))

    def settle(self) -> list[float]:
        """q(A | Y) / π(A) for every pair of rates."""
        likelihoods = [self.passes * passing + self.failures * failing for passing, failing in _LOGARITHMS]
        return [self._factor(likelihoods[low], likelihoods[high]) for low, high in _GRID]

    def _factor(self, canary: float, serving: float) -> float:
        top = max(canary, serving)
        either = top + math.log(self.share * math.exp(canary - top) + (1.0 - self.share) * math.exp(serving - top))
        return (canary if self.is_canary else serving) - either
