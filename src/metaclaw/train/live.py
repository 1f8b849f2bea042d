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

**One skill.** The same bet is made over the turns of each skill alone, by the share of the coin that decided them: weights may have
lost one skill and be as good as ever elsewhere. With k skills each must show k times as much.

- worse is shown, on the whole or for one skill                       → roll back
- `settle_after` decided canary turns, `least_sessions` on either side, and neither suspicion nor a pass rate that is lower by more
  than `slack`                                                        → promote: not worse
- as much seen, but suspicion (evidence of `suspicion` or more) or lagging, on the whole or for one skill
                                                                      → roll back: not shown harmless
- as much seen, but of a skill that is common hardly a turn           → wait, up to `longest` turns
- else                                                                → wait

Whether the canary is better was the gate's question. Turns whose outcome is unknown are counted and not guessed. That is fair only
if the turns of both sides are judged alike: to judge the canary's more often is to bend the coin.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.verdict import Outcome
from metaclaw.skills.gate import Baseline
from metaclaw.skills.gate.evalue import e_below, rate_at_least
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


@dataclass(frozen=True, slots=True)
class LiveRules:
    """When a canary ends. `alpha` is the chance that an equal one is rolled back as worse; `least_failures` must have failed. For
    skills there are an `alpha_skill` and a `slack_skill` of their own; one in `common` of the others' turns or more must have been
    tried in `least_of_skill` canary turns."""

    alpha: float = 0.04
    settle_after: int = 50
    least_sessions: int = 5
    least_failures: int = 3
    suspicion: float = 3.0
    slack: float = 0.1
    alpha_skill: float = 0.02
    slack_skill: float = 0.4
    least_of_skill: int = 5
    common: float = 0.1
    longest: int = 150


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
        self._whole = _Bets()
        self._skills: dict[SkillName, _Bets] = {}
        self._always = [0, 0]
        self._unknown = 0

    def see(self, turn: LiveTurn) -> LiveReport:
        """Settle the bets on one more turn."""
        if turn.outcome is Outcome.UNKNOWN:
            self._unknown += 1
            return self.report()
        has_failed = turn.outcome is Outcome.FAIL
        self._whole.see(turn, has_failed)
        if turn.share == 1.0:
            self._always[has_failed] += 1
        else:
            for skill in dict.fromkeys(turn.skills):
                self._skills.setdefault(skill, _Bets()).see(turn, has_failed)
        return self.report()

    def report(self) -> LiveReport:
        """What has been seen so far means."""
        (passed, failed), (others_passed, others_failed) = self._whole.counts[True], self._whole.counts[False]
        by_coin, by_floor = self._whole.e_worse, e_below(self._floor, *self._always) if any(self._always) else 0.0
        suspected = max(by_coin, by_floor)
        ruling, reason, is_worse = self._shown_worse(by_coin, by_floor) or self._settled(suspected)
        return LiveReport(ruling, reason, suspected, passed, failed, others_passed, others_failed, self._unknown, is_worse)

    def _shown_worse(self, by_coin: float, by_floor: float) -> tuple[LiveRuling, str, bool] | None:
        rules, whole = self._rules, self._whole
        # Coins that all fell on one side are evidence, too; but nothing is taken back that has not failed, or without comparison.
        if whole.is_compared(rules.least_failures) and by_coin >= 1 / rules.alpha:
            return LiveRuling.ROLL_BACK, f"worse than the serving version: {whole.words(by_coin)}", True
        if whole.counts[True][1] >= rules.least_failures and by_floor >= 2 / rules.alpha:
            lower = f"fewer turns pass than before it (below {self._floor:.0%}): {whole.words(by_floor)}"
            return LiveRuling.ROLL_BACK, lower, True
        for skill, bets in self._skills.items():
            if bets.is_compared(rules.least_failures) and bets.e_worse >= len(self._skills) / rules.alpha_skill:
                return LiveRuling.ROLL_BACK, f"worse than the serving version with {skill}: {bets.words(bets.e_worse)}", True
        return None

    def _settled(self, suspected: float) -> tuple[LiveRuling, str, bool]:
        whole, decided = self._whole, sum(self._whole.counts[True])
        if not self._was_seen_enough(decided):
            return LiveRuling.WAIT, f"{decided} canary turns decided, e = {suspected:.3g} for worse", False
        # What serves has proven itself longer: in doubt it is what stays.
        if suspected >= self._rules.suspicion or self._lags():
            return LiveRuling.ROLL_BACK, f"not shown harmless: {whole.words(suspected)}", False
        for skill, bets in self._skills.items():
            if self._is_suspect(bets):
                return LiveRuling.ROLL_BACK, f"not shown harmless with {skill}: {bets.words(bets.e_worse)}", False
        if (untried := self._hardly_tried()) is not None and decided < self._rules.longest:
            return LiveRuling.WAIT, f"{decided} canary turns decided, of {untried} hardly one", False
        return LiveRuling.PROMOTE, f"not worse: {whole.words(suspected)}", False

    def _was_seen_enough(self, decided: int) -> bool:
        """Enough turns, and enough sessions of the other side, too, where there is one."""
        seen = self._whole.seen
        sides = [seen[True]] if self._is_alone else [seen[True], seen[False]]
        return decided >= self._rules.settle_after and all(len(sessions) >= self._rules.least_sessions for sessions in sides)

    def _lags(self) -> bool:
        """Whether fewer of its turns pass than of the other side's; alone, it is held against the time before."""
        counts = self._whole.counts
        if not self._is_alone and not any(counts[False]):
            return False
        other = self._floor if self._is_alone else _rate(*counts[False])
        return _rate(*counts[True]) < other - self._rules.slack

    def _is_suspect(self, bets: "_Bets") -> bool:
        """Whether a skill may be lost: there is evidence, or of several turns far fewer pass."""
        rules, counts = self._rules, bets.counts
        if not bets.is_compared(rules.least_failures):
            return False
        lags = sum(counts[True]) >= rules.least_of_skill and _rate(*counts[True]) < _rate(*counts[False]) - rules.slack_skill
        return lags or bets.e_worse >= rules.suspicion * len(self._skills)

    def _hardly_tried(self) -> SkillName | None:
        """A skill that many turns of the others need and hardly one of the canary's did."""
        rules, others = self._rules, sum(self._whole.counts[False])
        for skill, bets in self._skills.items():
            if sum(bets.counts[False]) >= rules.common * others and sum(bets.counts[True]) < rules.least_of_skill:
                return skill
        return None

    @property
    def _is_alone(self) -> bool:
        return sum(self._always) == sum(self._whole.counts[True])


class _Bets:
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
