"""Live evidence about a canary: weights that answer a random share of the sessions, against those that answer the others. Pure.

**A coin** decided session by session who answers. Two things are made of it: bets that may be looked at after every turn (`coin`),
and one look when the trial is over (`lag`), which sees more; where the trial is then prolonged, a second when that is over.

**No coin** (π = 1: the canary answers everybody). Then the time before is what it is compared with: from its turns a pass rate is
taken that the true one is below with probability at most α/2, and a bet is made at α/2 that the rate is lower now (`e_below`).

**One skill.** The same is done over the turns of each skill alone, by the share of the coin that decided them: weights may have
lost one skill and be as good as ever elsewhere. With k skills each must show k times as much.

- worse is shown by a bet, on the whole or for one skill              → roll back
- `settle_after` decided canary turns, `least_sessions` on either side, and it does not lag behind, on the whole or with one skill
                                                                      → promote: not worse
- as much seen, but it lags                                           → roll back: not shown harmless
- as much seen, but of a skill that is common hardly a turn           → wait, up to `longest` turns
- else                                                                → wait

It lags if a canary that is equal would look like that with a probability of `doubt` at most; without a coin, if it is lower by more
than `slack`, or there is evidence of `suspicion`. Whether the canary is better was the gate's question. Turns whose outcome is
unknown are counted and not guessed. That is fair only if the turns of both sides are judged alike: to judge the canary's more
often is to bend the coin.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist

from metaclaw.domain.ids import SkillName
from metaclaw.domain.verdict import Outcome
from metaclaw.train.betting import e_below, rate_at_least
from metaclaw.train.coin import CoinBets, LiveTurn
from metaclaw.train.lag import chance_of_so_few, find_lag


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
        self._turns: list[LiveTurn] = []
        self._unknown = 0
        self._suspected = 1.0
        self._has_looked = False
        self._ruled: _Ruled = LiveRuling.WAIT, "nothing was seen", False

    def see(self, turn: LiveTurn) -> LiveReport:
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
