"""Watch the verdicts on live turns: roll back a version whose turns fail more often than those of
the version before it.

A version is also taken back when a rule is gone that its weights keep without being told, because
undone means undone.

The turns of the version before give a bound that its pass rate was below with probability at most
α/2 (`rate_at_least`). Bets at α/2 claim that the rate is below that bound now; they may be checked
after every turn (`bets`). Turns with unknown outcome are left out."""

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from anyio.to_thread import run_sync

from metaclaw.domain.ids import SkillName
from metaclaw.domain.policy import BASE_POLICY, PolicyVersion
from metaclaw.domain.verdict import Outcome
from metaclaw.store import RefusedError
from metaclaw.training.bets import GainBets
from metaclaw.training.serving_versions import BY_A_PERSON, Versions

log = logging.getLogger(__name__)

_BASELINE: Final = 200
_ALPHA: Final = 0.04
"""The probability with which an equal version is rolled back."""
_LEAST_FAILURES: Final = 3
_FORMED: Final = 25.0
"""A rule is a habit from so many fewer violations in 100 answers without it."""


@dataclass(eq=False, kw_only=True)
class VersionWatch:
    """Takes a version back by the verdicts on its first `settle_after` decided turns, or because a
    rule is gone. `has_rule` says whether a rule of this name is in force.
    """

    versions: Versions
    settle_after: int
    has_rule: Callable[[SkillName], bool]
    notice: str | None = None

    async def look(self) -> None:
        """Take back the version that serves if the evidence says so."""
        version = self.versions.serving.version
        reason = None if version == BASE_POLICY else await run_sync(self._objection, version)
        if reason is None:
            return
        try:
            after = (await self.versions.rollback(None, reason)).version
        except RefusedError as error:
            log.info("version_rolled_back_elsewhere version=%d reason=%s", version, error)
            return
        serves = f"version {after}" if after else "the untrained model"
        self.notice = f"version {version} was rolled back: {reason}; {serves} serves again"

    def _objection(self, number: int) -> str | None:
        """What speaks against a version; nothing against one that a person promoted, whose word
        stands.
        """
        version = self.versions.policies.version(number)
        if version is None or version.note == BY_A_PERSON:
            return None
        return self._kept_although_gone(version) or self._shown_worse(number)

    def _kept_although_gone(self, version: PolicyVersion) -> str | None:
        """A rule that it or a version before it learned to keep without its text, and that is no
        longer in force."""
        former: PolicyVersion | None = version
        while former is not None:
            for habit in () if former.report is None else former.report.habits:
                if habit.before - habit.after >= _FORMED and not self.has_rule(habit.rule):
                    return f"its weights keep {habit.rule} without being told, which was taken back"
            former = self.versions.policies.version(former.parent)
        return None

    def _shown_worse(self, number: int) -> str | None:
        """The evidence against a version that serves for the first time."""
        policies = self.versions.policies
        since = policies.since(number)
        if since is None or not since.is_first:
            return None
        former = policies.before(number)
        past = policies.outcomes_by_version({former}, 0, before=since.turn, limit=_BASELINE)
        decided = [one.outcome for one in past if one.outcome is not Outcome.UNKNOWN]
        passes = (
            one.outcome is Outcome.PASS
            for one in policies.outcomes_by_version({number}, since.turn)
            if one.outcome is not Outcome.UNKNOWN
        )
        before = decided.count(Outcome.PASS), len(decided)
        return shown_worse(passes, before, self.settle_after)


def shown_worse(
    passes: Iterable[bool], before: tuple[int, int], settle_after: int = 50
) -> str | None:
    """Why a version is shown to be worse, or None: `passes` tells of each decided turn since it
    serves whether it passed, oldest first; `before` is how many of how many passed before it."""
    floor = rate_at_least(*before, _ALPHA / 2)
    if not 0.0 < floor < 1.0:
        return None
    bets, failures = GainBets(), 0
    for turns, has_passed in zip(range(1, settle_after + 1), passes, strict=False):
        failures += not has_passed
        # Scaled so that a pass costs the whole bet.
        bets.add((floor - has_passed) / (1.0 - floor))
        if failures >= _LEAST_FAILURES and bets.e_value >= 2 / _ALPHA:
            return (
                f"fewer turns pass than before it (below {floor:.0%}): {turns - failures} of"
                f" {turns} turns passed; e = {bets.e_value:.3g}"
            )
    return None


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
