"""Live evidence about a canary: weights that answer a random share of the sessions, against those that answer the others. Pure.

**The bet.** A coin with probability π decided which weights answer a session; then its turns passed or failed. Having seen
the outcomes Y of the session so far, somebody who believes that the canary passes with μ1 and the serving version with μ0 > μ1
bets on how the coin fell:

    factor = q(A | Y) / π(A),      q(canary | Y) = π·L(Y; μ1) / (π·L(Y; μ1) + (1-π)·L(Y; μ0)),      L(Y; μ) = Π μ^pass (1-μ)^fail.

If the weights make no difference, the coin is independent of the outcomes and the factor's mean is exactly 1, however much the
turns of one session resemble each other: the session is the unit, and one session can never multiply the stake by more than 1/π.
The stake is split over a grid of (μ1, μ0). Ville's inequality holds over sessions; a session half seen counts as it stands.

**No coin** (π = 1: the canary answers everybody). Then the time before is what it is compared with: from its turns a pass rate is
taken that the true one is below with probability at most α/2, and a bet is made at α/2 that the rate is lower now (`e_below`).

- worse is shown                                                      → roll back
- `settle_after` decided canary turns, `least_sessions` on either side, and neither suspicion nor a pass rate that is lower by more
  than `slack`                                                        → promote: not worse
- as much seen, but suspicion (evidence of `suspicion` or more) or lagging
                                                                      → roll back: not shown harmless
- else                                                                → wait

Whether the canary is better was the gate's question. Turns whose outcome is unknown are counted and not guessed. That is fair only
if the turns of both sides are judged alike: to judge the canary's more often is to bend the coin.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from metaclaw.domain.ids import SessionId
from metaclaw.domain.verdict import Outcome
from metaclaw.skills.gate import Baseline
from metaclaw.skills.gate.evalue import e_below, rate_at_least
from metaclaw.train.betting import mean_wealth

_RATES = (0.1, 0.3, 0.5, 0.7, 0.9)
_LOGARITHMS = tuple((math.log(rate), math.log1p(-rate)) for rate in _RATES)
_GRID = tuple((low, high) for low in range(len(_RATES)) for high in range(low + 2, len(_RATES)))


@dataclass(frozen=True, slots=True)
class LiveTurn:
    """One turn while a canary is tried: its session, whether the canary answered it, and the canary's share of sessions."""

    session: SessionId
    is_canary: bool
    share: float
    outcome: Outcome

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0 or (self.share == 1.0 and not self.is_canary):
            raise ValueError(f"a share of {self.share} does not fit session {self.session}")


@dataclass(frozen=True, slots=True)
class LiveRules:
    """When a canary ends. `alpha` is the chance that an equal one is rolled back as worse; `least_failures` must have failed."""

    alpha: float = 0.04
    settle_after: int = 50
    least_sessions: int = 5
    least_failures: int = 3
    suspicion: float = 3.0
    slack: float = 0.1


class LiveRuling(StrEnum):
    """What becomes of a canary."""

    PROMOTE = "promote"
    ROLL_BACK = "roll back"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class LiveReport:
    """The ruling, why, and the numbers behind it. `is_worse` only where that is shown."""

    ruling: LiveRuling
    reason: str
    e_worse: float
    canary_passed: int
    canary_failed: int
    serving_passed: int
    serving_failed: int
    unknown: int
    is_worse: bool = False


def judge_live(turns: Iterable[LiveTurn], rules: LiveRules | None = None, before: Baseline | None = None) -> LiveReport:
    """What the turns so far, oldest first, say. The first decisive moment stands, however many came later.

    `before` are turns of the serving version from before the canary; they count only where the canary answers everybody.
    """
    watch = LiveWatch(rules, before)
    report = watch.report()
    for turn in turns:
        if (report := watch.see(turn)).ruling is not LiveRuling.WAIT:
            break
    return report


class LiveWatch:
    """The bets on one canary, turn by turn."""

    def __init__(self, rules: LiveRules | None = None, before: Baseline | None = None) -> None:
        self._rules = rules or LiveRules()
        self._floor = 0.0 if before is None else rate_at_least(before.passes, before.turns, self._rules.alpha / 2)
        self._wealth = [0.0] * len(_GRID)
        self._sessions: dict[SessionId, _Session] = {}
        self._counts = {True: [0, 0], False: [0, 0]}  # of canary and serving: passes, failures
        self._always = [0, 0]
        self._seen: dict[bool, set[SessionId]] = {True: set(), False: set()}
        self._unknown = 0

    def see(self, turn: LiveTurn) -> LiveReport:
        """Settle the bets on one more turn."""
        if turn.outcome is Outcome.UNKNOWN:
            self._unknown += 1
            return self.report()
        has_failed = turn.outcome is Outcome.FAIL
        self._counts[turn.is_canary][has_failed] += 1
        self._seen[turn.is_canary].add(turn.session)
        if turn.share == 1.0:
            self._always[has_failed] += 1
        else:
            self._bet(turn, has_failed)
        return self.report()

    def report(self) -> LiveReport:
        """What has been seen so far means."""
        rules, (passed, failed) = self._rules, self._counts[True]
        by_coin, by_floor = mean_wealth(self._wealth), e_below(self._floor, *self._always) if any(self._always) else 0.0
        decided, suspected = passed + failed, max(by_coin, by_floor)
        # Coins that all fell on one side are evidence, too; but nothing is taken back that has not failed, or without comparison.
        has_failed = failed >= rules.least_failures
        is_compared = has_failed and bool(self._seen[False])
        ruling, reason, is_worse = LiveRuling.WAIT, f"{decided} canary turns decided, e = {suspected:.3g} for worse", False
        if is_compared and by_coin >= 1 / rules.alpha:
            ruling, reason, is_worse = LiveRuling.ROLL_BACK, f"worse than the serving version: {self._in_words(by_coin)}", True
        elif has_failed and by_floor >= 2 / rules.alpha:
            worse = f"fewer turns pass than before it (below {self._floor:.0%}): {self._in_words(by_floor)}"
            ruling, reason, is_worse = LiveRuling.ROLL_BACK, worse, True
        elif self._was_seen_enough(decided) and (suspected >= rules.suspicion or self._lags()):
            # What serves has proven itself longer: in doubt it is what stays.
            ruling, reason = LiveRuling.ROLL_BACK, f"not shown harmless: {self._in_words(suspected)}"
        elif self._was_seen_enough(decided):
            ruling, reason = LiveRuling.PROMOTE, f"not worse: {self._in_words(suspected)}"
        others_passed, others_failed = self._counts[False]
        return LiveReport(ruling, reason, suspected, passed, failed, others_passed, others_failed, self._unknown, is_worse)

    def _was_seen_enough(self, decided: int) -> bool:
        """Enough turns, and enough sessions of the other side, too, where there is one."""
        sides = [self._seen[True]] if self._is_alone else [self._seen[True], self._seen[False]]
        return decided >= self._rules.settle_after and all(len(sessions) >= self._rules.least_sessions for sessions in sides)

    def _lags(self) -> bool:
        """Whether fewer of its turns pass than of the other side's; alone, it is held against the time before."""
        if not self._is_alone and not any(self._counts[False]):
            return False
        other = self._floor if self._is_alone else _rate(*self._counts[False])
        return _rate(*self._counts[True]) < other - self._rules.slack

    @property
    def _is_alone(self) -> bool:
        return sum(self._always) == sum(self._counts[True])

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

    def _in_words(self, e_value: float) -> str:
        (passed, failed), (others_passed, others_failed) = self._counts[True], self._counts[False]
        canary = f"canary passed {passed} of {passed + failed} turns in {len(self._seen[True])} sessions"
        return f"{canary}, others {others_passed} of {others_passed + others_failed}; e = {e_value:.3g}"


def _rate(passes: int, failures: int) -> float:
    return passes / (passes + failures)


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
