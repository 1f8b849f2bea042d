"""Decide from live turns whether a canary, which answers a random share of the sessions, is worse
than the serving version. Pure.

**With a coin** (π < 1). A coin decides for each session which weights answer. Bets on it may be
checked after every turn (`bets`). A test at the end of the trial (`find_lag`) is more sensitive; if
the trial is then prolonged, it is repeated at the new end.

**Without a coin** (π = 1: the canary answers every session). The canary is compared with the turns
before it: they give a bound that the true pass rate is below with probability at most α/2, and bets
at α/2 claim that the rate is below it now (`e_below`).

**Each skill.** The same is done with the turns of each skill, because weights may lose one skill
and be as good as before elsewhere. With k skills the threshold of each is k times as high.

- a bet shows that it is worse, overall or for one skill              → roll back
- `settle_after` decided canary turns, `least_sessions` sessions on each side, and no lag, overall
  or for one skill
                                                                      → promote: not worse
- the same, but it lags                                               → roll back: not shown harmless
- the same, but a common skill has hardly a canary turn               → wait, up to `longest` turns
- otherwise                                                           → wait

It lags if an equal canary would look as bad with probability at most `doubt`; without a coin, if
its rate is lower by more than `slack`, or the evidence reaches `suspicion`. Turns with unknown
outcome are counted but not used, which is fair only if the turns of both sides are judged in the
same way.

**The test at the end.** Each outcome y is compared with the pass rate p of turns with the same
skills on both sides. R is the sum of y - p over a session, A says how its coin fell. If the weights
make no difference, then given all outcomes

    T = Σ (A - π)·R      has the mean 0 and the variance V = Σ π·(1-π)·R²,      z = T/√V.

A single skill has too few sessions for that. Its test is the exact probability that the canary has
as few passes as it has, if the passes of all turns with the skill were distributed among the turns
at random. Similar turns of one session count for less:

    D = Σ R² / Σ p·(1-p)  over the other sessions, 1 if turns of a session are independent;      probability^(1/D).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist

from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.verdict import Outcome
from metaclaw.train.bets import CoinBets, TrialTurn, e_below, rate_at_least

_PRIOR_TURNS = 5.0
"""Number of turns at the overall rate that are added to the turns with the same skills."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Decided turns from before a version answered, and how many of them passed."""

    passes: int
    turns: int

    def __post_init__(self) -> None:
        if not 0 <= self.passes <= self.turns:
            raise ValueError(f"a baseline cannot have {self.passes} passes in {self.turns} turns")


@dataclass(frozen=True, slots=True)
class LiveThresholds:
    """When the trial of a canary ends. An equal canary is rolled back as worse with probability
    `alpha`, and lags at the end with probability `doubt`; for skills these are `alpha_skill` and
    `doubt_skill`. No canary with fewer than `least_failures` failures is rolled back as worse. A
    skill in the share `common` of the other turns must be in `least_of_skill` canary turns."""

    alpha: float = 0.04
    settle_after: int = 50
    least_sessions: int = 5
    least_failures: int = 3
    doubt: float = 0.08
    suspicion: float = 3.0
    slack: float = 0.1
    alpha_skill: float = 0.02
    doubt_skill: float = 0.1
    least_of_skill: int = 5
    common: float = 0.1
    longest: int = 150


class LiveRuling(StrEnum):
    PROMOTE = "promote"
    ROLL_BACK = "roll back"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class LiveReport:
    """The ruling, the reason, and the numbers behind it. `is_worse` says that the canary is shown
    to be worse.
    """

    ruling: LiveRuling
    reason: str
    e_worse: float
    canary_passed: int
    canary_failed: int
    serving_passed: int
    serving_failed: int
    unknown: int
    is_worse: bool = False


def judge_live(
    turns: Iterable[TrialTurn], rules: LiveThresholds | None = None, before: Baseline | None = None
) -> LiveReport:
    """Rule on a canary by its turns so far, oldest first. Turns after the first decisive one do not
    count.

    `before` has turns from before the canary; it is used only if the canary answers every session.
    """
    watch = LiveWatch(rules, before)
    report = watch.report()
    for turn in turns:
        if (report := watch.see(turn)).ruling is not LiveRuling.WAIT:
            break
    return report


_Ruled = tuple[LiveRuling, str, bool]
"""The ruling, the reason, and whether the canary is shown to be worse."""


class LiveWatch:
    """The bets on one canary, turn by turn."""

    def __init__(self, rules: LiveThresholds | None = None, before: Baseline | None = None) -> None:
        self._rules = rules or LiveThresholds()
        self._floor = (
            0.0
            if before is None
            else rate_at_least(before.passes, before.turns, self._rules.alpha / 2)
        )
        self._whole = CoinBets()
        self._skills: dict[SkillName, CoinBets] = {}
        self._always = [0, 0]
        self._turns: list[TrialTurn] = []
        self._unknown = 0
        self._suspected = 1.0
        self._has_looked = False
        self._ruled: _Ruled = LiveRuling.WAIT, "nothing was seen", False

    def see(self, turn: TrialTurn) -> LiveReport:
        """Settle the bets on one more turn. Later turns do not change a decision."""
        if turn.outcome is Outcome.UNKNOWN:
            self._unknown += 1
            return self.report()
        has_failed = turn.outcome is Outcome.FAIL
        self._whole.see(turn, has_failed)
        if turn.share == 1.0:
            self._always[has_failed] += 1
        else:
            self._turns.append(turn)
            for skill in dict.fromkeys(turn.skills):
                self._skills.setdefault(skill, CoinBets()).see(turn, has_failed)
        by_coin, by_floor = (
            self._whole.e_worse,
            e_below(self._floor, *self._always) if any(self._always) else 0.0,
        )
        self._suspected = max(by_coin, by_floor)
        if self._ruled[0] is LiveRuling.WAIT:
            self._ruled = self._shown_worse(by_coin, by_floor) or self._settled()
        return self.report()

    def report(self) -> LiveReport:
        """The ruling so far."""
        (passed, failed), (others_passed, others_failed) = (
            self._whole.counts[True],
            self._whole.counts[False],
        )
        ruling, reason, is_worse = self._ruled
        return LiveReport(
            ruling,
            reason,
            self._suspected,
            passed,
            failed,
            others_passed,
            others_failed,
            self._unknown,
            is_worse,
        )

    def _shown_worse(self, by_coin: float, by_floor: float) -> _Ruled | None:
        rules, whole = self._rules, self._whole
        # Coins that all fell on one side count as evidence, but a rollback needs failures and a
        # comparison.
        if whole.is_compared(rules.least_failures) and by_coin >= 1 / rules.alpha:
            return (
                LiveRuling.ROLL_BACK,
                f"worse than the serving version: {whole.words(by_coin)}",
                True,
            )
        if whole.counts[True][1] >= rules.least_failures and by_floor >= 2 / rules.alpha:
            lower = (
                f"fewer turns pass than before it (below {self._floor:.0%}):"
                f" {whole.words(by_floor)}"
            )
            return LiveRuling.ROLL_BACK, lower, True
        for skill, bets in self._skills.items():
            if (
                bets.is_compared(rules.least_failures)
                and bets.e_worse >= len(self._skills) / rules.alpha_skill
            ):
                return (
                    LiveRuling.ROLL_BACK,
                    f"worse than the serving version with {skill}: {bets.words(bets.e_worse)}",
                    True,
                )
        return None

    def _settled(self) -> _Ruled:
        decided = sum(self._whole.counts[True])
        if not self._was_seen_enough(decided):
            return (
                LiveRuling.WAIT,
                f"{decided} canary turns decided, e = {self._suspected:.3g} for worse",
                False,
            )
        untried = self._hardly_tried() if decided < self._rules.longest else None
        if untried is None or not self._has_looked:
            self._has_looked = True
            # In doubt the serving version stays, since it has proven itself for longer.
            if (doubt := self._doubt()) is not None:
                return LiveRuling.ROLL_BACK, f"not shown harmless{doubt}", False
        if untried is not None:
            return (
                LiveRuling.WAIT,
                f"{decided} canary turns decided, hardly one of them with {untried}",
                False,
            )
        return LiveRuling.PROMOTE, f"not worse: {self._whole.words(self._suspected)}", False

    def _doubt(self) -> str | None:
        """Why the canary may be worse, or None: the test at the end, on all turns."""
        rules, whole = self._rules, self._whole
        if self._is_alone:
            is_behind = (
                self._suspected >= rules.suspicion
                or _rate(*whole.counts[True]) < self._floor - rules.slack
            )
            return f": {whole.words(self._suspected)}" if is_behind else None
        lag = find_lag(self._turns)
        if lag.z < NormalDist().inv_cdf(rules.doubt):
            return f": {whole.words(self._suspected)}, z = {lag.z:.2f}"
        for skill, bets in self._skills.items():
            if bets.is_compared(rules.least_failures):
                chance = chance_of_so_few(bets.counts[True], bets.counts[False]) ** (
                    1.0 / lag.likeness
                )
                if chance < rules.doubt_skill / len(self._skills):
                    return f" with {skill}: {bets.words(bets.e_worse)}, by chance in {chance:.2g}"
        return None

    def _was_seen_enough(self, decided: int) -> bool:
        """Whether there are enough canary turns, and enough sessions on each side."""
        seen = self._whole.seen
        sides = [seen[True]] if self._is_alone else [seen[True], seen[False]]
        return decided >= self._rules.settle_after and all(
            len(sessions) >= self._rules.least_sessions for sessions in sides
        )

    def _hardly_tried(self) -> SkillName | None:
        """A skill that is common in the other turns and rare in the canary's, or None."""
        rules, others = self._rules, sum(self._whole.counts[False])
        for skill, bets in self._skills.items():
            if (
                sum(bets.counts[False]) >= rules.common * others
                and sum(bets.counts[True]) < rules.least_of_skill
            ):
                return skill
        return None

    @property
    def _is_alone(self) -> bool:
        return sum(self._always) == sum(self._whole.counts[True])


def _rate(passes: int, failures: int) -> float:
    return passes / (passes + failures)


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a canary lags: `z` is negative if it does. `likeness` is the number of turns of one
    session that count as one.
    """

    z: float
    likeness: float


@dataclass(slots=True)
class _Session:
    is_canary: bool
    share: float
    residual: float = 0.0


def find_lag(turns: Sequence[TrialTurn]) -> Lag:
    """How far the canary lags overall, from turns with known outcomes of sessions that a coin
    decided.
    """
    rates = _rates(turns)
    sessions: dict[SessionId, _Session] = {}
    spread = 0.0
    for turn in turns:
        rate = rates[_skills_of(turn)]
        sessions.setdefault(turn.session, _Session(turn.is_canary, turn.share)).residual += (
            _passed(turn) - rate
        )
        spread += 0.0 if turn.is_canary else rate * (1.0 - rate)
    total = math.fsum(
        (session.is_canary - session.share) * session.residual for session in sessions.values()
    )
    variance = math.fsum(
        session.share * (1.0 - session.share) * session.residual**2 for session in sessions.values()
    )
    others = math.fsum(
        session.residual**2 for session in sessions.values() if not session.is_canary
    )
    return Lag(
        total / math.sqrt(variance) if variance else 0.0,
        max(1.0, others / spread) if spread else 1.0,
    )


def chance_of_so_few(canary: Sequence[int], others: Sequence[int]) -> float:
    """The probability that the canary has at most as many passes as it has, if all passes were
    distributed at random. Both arguments are numbers of passes and failures."""
    passed, canary_turns, other_turns = canary[0] + others[0], sum(canary), sum(others)
    counts = range(max(0, passed - other_turns), canary[0] + 1)
    every = _ways(canary_turns + other_turns, passed)
    return min(
        1.0,
        math.fsum(
            math.exp(_ways(canary_turns, count) + _ways(other_turns, passed - count) - every)
            for count in counts
        ),
    )


def _ways(among: int, chosen: int) -> float:
    """The logarithm of the number of ways to choose."""
    return math.lgamma(among + 1) - math.lgamma(chosen + 1) - math.lgamma(among - chosen + 1)


def _rates(turns: Sequence[TrialTurn]) -> dict[tuple[SkillName, ...], float]:
    counts: dict[tuple[SkillName, ...], list[int]] = {}
    for turn in turns:
        count = counts.setdefault(_skills_of(turn), [0, 0])
        count[0] += _passed(turn)
        count[1] += 1
    overall = sum(map(_passed, turns)) / max(1, len(turns))
    return {
        skills: (passes + _PRIOR_TURNS * overall) / (count + _PRIOR_TURNS)
        for skills, (passes, count) in counts.items()
    }


def _skills_of(turn: TrialTurn) -> tuple[SkillName, ...]:
    return tuple(sorted(set(turn.skills)))


def _passed(turn: TrialTurn) -> bool:
    return turn.outcome is Outcome.PASS
