"""Live evidence about a canary: weights that answer a random share of the sessions, against those that answer the others. Pure.

**A coin** decided session by session which weights answer. Bets on it may be looked at after every turn (`bets`); a look at the
end of the trial (`find_lag`) sees more; where the trial is then prolonged, there is a second look at its end.

**No coin** (π = 1: the canary answers every session). Then it is compared with the turns before it: from these a pass rate is
taken that the true one is below with probability at most α/2, and a bet is made at α/2 that the rate is lower now (`e_below`).

**One skill.** The same is done over the turns of each skill alone: weights may have lost one skill and be as good as ever
elsewhere. With k skills each must show k times as much.

- worse is shown by a bet, on the whole or for one skill              → roll back
- `settle_after` decided canary turns, `least_sessions` on either side, and it does not lag behind, on the whole or with one skill
                                                                      → promote: not worse
- as much seen, but it lags                                           → roll back: not shown harmless
- as much seen, but of a common skill hardly a turn                   → wait, up to `longest` turns
- else                                                                → wait

It lags if an equal canary would look like that with probability at most `doubt`; without a coin, if its rate is lower by more
than `slack`, or there is evidence of `suspicion`. Turns whose outcome is unknown are counted and not guessed. That is fair only
if the turns of both sides are judged alike.

**The look at the end.** A turn is compared with what turns with the same skills come to on either side: y - p. R is the sum of
that over a session, A is how its coin fell. If the weights make no difference, then given all outcomes

    T = Σ (A - π)·R      has the mean 0 and the variance V = Σ π·(1-π)·R²,      z = T/√V.

With one skill there are too few sessions for that. There it is the exact chance of so few passes, if the passes of all turns
with the skill had been dealt to the turns at random. Turns of one session that resemble each other count for less:

    D = Σ R² / Σ p·(1-p)  over the sessions of the others, 1 where turns do not resemble each other;      chance^(1/D).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist

from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.verdict import Outcome
from metaclaw.train.bets import CoinBets, TrialTurn, e_below, rate_at_least

_DRAWN = 5.0
"""So many turns at the rate of all are added to those with the same skills."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Turns from before a version answered: how many were decided, and how many of them passed."""

    passes: int
    turns: int

    def __post_init__(self) -> None:
        if not 0 <= self.passes <= self.turns:
            raise ValueError(f"a baseline of {self.passes} passes in {self.turns} turns")


@dataclass(frozen=True, slots=True)
class LiveRules:
    """When a canary ends. `alpha` is the chance that an equal one is rolled back as worse, `doubt` that it lags when its trial is
    over; `least_failures` must have failed. For skills there are `alpha_skill` and `doubt_skill`; one in `common` of the others'
    turns or more must have been tried in `least_of_skill` canary turns."""

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


def judge_live(turns: Iterable[TrialTurn], rules: LiveRules | None = None, before: Baseline | None = None) -> LiveReport:
    """What the turns so far, oldest first, say. The first decisive moment stands, however many came later.

    `before` are turns of the serving version from before the canary; they count only where the canary answers every session.
    """
    watch = LiveWatch(rules, before)
    report = watch.report()
    for turn in turns:
        if (report := watch.see(turn)).ruling is not LiveRuling.WAIT:
            break
    return report


_Ruled = tuple[LiveRuling, str, bool]
"""What becomes of it, why, and whether it is shown to be worse."""


class LiveWatch:
    """The bets on one canary, turn by turn."""

    def __init__(self, rules: LiveRules | None = None, before: Baseline | None = None) -> None:
        self._rules = rules or LiveRules()
        self._floor = 0.0 if before is None else rate_at_least(before.passes, before.turns, self._rules.alpha / 2)
        self._whole = CoinBets()
        self._skills: dict[SkillName, CoinBets] = {}
        self._always = [0, 0]
        self._turns: list[TrialTurn] = []
        self._unknown = 0
        self._suspected = 1.0
        self._has_looked = False
        self._ruled: _Ruled = LiveRuling.WAIT, "nothing was seen", False

    def see(self, turn: TrialTurn) -> LiveReport:
        """Settle the bets on one more turn. What was decided once stands, whatever comes later."""
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
        by_coin, by_floor = self._whole.e_worse, e_below(self._floor, *self._always) if any(self._always) else 0.0
        self._suspected = max(by_coin, by_floor)
        if self._ruled[0] is LiveRuling.WAIT:
            self._ruled = self._shown_worse(by_coin, by_floor) or self._settled()
        return self.report()

    def report(self) -> LiveReport:
        """What has been seen so far means."""
        (passed, failed), (others_passed, others_failed) = self._whole.counts[True], self._whole.counts[False]
        ruling, reason, is_worse = self._ruled
        return LiveReport(ruling, reason, self._suspected, passed, failed, others_passed, others_failed, self._unknown, is_worse)

    def _shown_worse(self, by_coin: float, by_floor: float) -> _Ruled | None:
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

    def _settled(self) -> _Ruled:
        decided = sum(self._whole.counts[True])
        if not self._was_seen_enough(decided):
            return LiveRuling.WAIT, f"{decided} canary turns decided, e = {self._suspected:.3g} for worse", False
        untried = self._hardly_tried() if decided < self._rules.longest else None
        if untried is None or not self._has_looked:
            self._has_looked = True
            # What serves has proven itself longer: in doubt it is what stays.
            if (doubt := self._doubt()) is not None:
                return LiveRuling.ROLL_BACK, f"not shown harmless{doubt}", False
        if untried is not None:
            return LiveRuling.WAIT, f"{decided} canary turns decided, of {untried} hardly one", False
        return LiveRuling.PROMOTE, f"not worse: {self._whole.words(self._suspected)}", False

    def _doubt(self) -> str | None:
        """Why the canary may be worse, if it looks so: one look, at everything there is."""
        rules, whole = self._rules, self._whole
        if self._is_alone:
            is_behind = self._suspected >= rules.suspicion or _rate(*whole.counts[True]) < self._floor - rules.slack
            return f": {whole.words(self._suspected)}" if is_behind else None
        lag = find_lag(self._turns)
        if lag.z < NormalDist().inv_cdf(rules.doubt):
            return f": {whole.words(self._suspected)}, z = {lag.z:.2f}"
        for skill, bets in self._skills.items():
            if bets.is_compared(rules.least_failures):
                chance = chance_of_so_few(bets.counts[True], bets.counts[False]) ** (1.0 / lag.likeness)
                if chance < rules.doubt_skill / len(self._skills):
                    return f" with {skill}: {bets.words(bets.e_worse)}, by chance in {chance:.2g}"
        return None

    def _was_seen_enough(self, decided: int) -> bool:
        """Enough turns, and enough sessions of the other side, too, where there is one."""
        seen = self._whole.seen
        sides = [seen[True]] if self._is_alone else [seen[True], seen[False]]
        return decided >= self._rules.settle_after and all(len(sessions) >= self._rules.least_sessions for sessions in sides)

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


def _rate(passes: int, failures: int) -> float:
    return passes / (passes + failures)


@dataclass(frozen=True, slots=True)
class Lag:
    """How a canary stands: z is negative where it lags; `likeness` is how many turns of one session count as one."""

    z: float
    likeness: float


@dataclass(slots=True)
class _Session:
    is_canary: bool
    share: float
    residual: float = 0.0


def find_lag(turns: Sequence[TrialTurn]) -> Lag:
    """How the canary stands on the whole, after turns whose outcomes are known and of which a coin decided who answers."""
    rates = _rates(turns)
    sessions: dict[SessionId, _Session] = {}
    spread = 0.0
    for turn in turns:
        rate = rates[_skills_of(turn)]
        sessions.setdefault(turn.session, _Session(turn.is_canary, turn.share)).residual += _passed(turn) - rate
        spread += 0.0 if turn.is_canary else rate * (1.0 - rate)
    total = math.fsum((one.is_canary - one.share) * one.residual for one in sessions.values())
    variance = math.fsum(one.share * (1.0 - one.share) * one.residual**2 for one in sessions.values())
    others = math.fsum(one.residual**2 for one in sessions.values() if not one.is_canary)
    return Lag(total / math.sqrt(variance) if variance else 0.0, max(1.0, others / spread) if spread else 1.0)


def chance_of_so_few(canary: Sequence[int], others: Sequence[int]) -> float:
    """How likely the canary has so few passes or fewer, if all passes were dealt out at random (passes and failures of each)."""
    passed, mine, theirs = canary[0] + others[0], sum(canary), sum(others)
    dealt = range(max(0, passed - theirs), canary[0] + 1)
    every = _ways(mine + theirs, passed)
    return min(1.0, math.fsum(math.exp(_ways(mine, some) + _ways(theirs, passed - some) - every) for some in dealt))


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
    return {skills: (passes + _DRAWN * overall) / (count + _DRAWN) for skills, (passes, count) in counts.items()}


def _skills_of(turn: TrialTurn) -> tuple[SkillName, ...]:
    return tuple(sorted(set(turn.skills)))


def _passed(turn: TrialTurn) -> bool:
    return turn.outcome is Outcome.PASS
