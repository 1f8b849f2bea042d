"""Watching a new version live, by the verdicts on its turns: failures noticed, a person's feedback, checks.

A version on trial is compared with the one that serves, and is promoted or rolled back. One that serves everybody since it passed
the gate is compared with the turns of the version before it, and is rolled back if it is shown to be worse.
"""

import logging
from dataclasses import replace
from typing import Final

from anyio.to_thread import run_sync

from metaclaw.domain.ids import SkillName
from metaclaw.domain.policy import BASE_POLICY
from metaclaw.domain.verdict import Outcome
from metaclaw.errors import TrainingError
from metaclaw.learn.slow.versions import BY_A_PERSON, Versions
from metaclaw.store import RefusedError, SqlPolicies
from metaclaw.train import Baseline, LiveReport, LiveRules, LiveRuling, TrialTurn, judge_live

log = logging.getLogger(__name__)

_BASELINE: Final = 200
_NEVER: Final = 1 << 62


class CanaryWatch:
    """Looks at the evidence whenever it is asked to."""

    def __init__(self, *, policies: SqlPolicies, versions: Versions, share: float, rules: LiveRules | None = None) -> None:
        self._policies = policies
        self._versions = versions
        self._share = share
        self._rules = rules or LiveRules()
        self.notice: str | None = None

    async def look(self) -> LiveReport | None:
        """What the evidence says now, and it is done; None where nothing is on trial or watched."""
        serving = self._versions.serving
        if serving.canary is None:
            return await self._look_back(serving.version)
        report = await run_sync(self._report, serving.canary, serving.version)
        try:
            match report.ruling:
                case LiveRuling.PROMOTE:
                    await self._versions.promote(serving.canary, report.reason)
                case LiveRuling.ROLL_BACK:
                    await self._versions.rollback(None, report.reason)
                case LiveRuling.WAIT:
                    pass
        except (RefusedError, TrainingError) as error:
            # A person was quicker: what they decided stands.
            log.info("canary_decided_elsewhere version=%d reason=%s", serving.canary, error)
        return report

    async def _look_back(self, version: int) -> LiveReport | None:
        """Roll back a version that serves everybody if its turns fail more often than those of the version before it."""
        report = None if version == BASE_POLICY else await run_sync(self._since_it_serves, version)
        if report is None or not report.is_worse:
            return report
        try:
            after = (await self._versions.rollback(None, report.reason)).version
        except RefusedError as error:
            log.info("version_rolled_back_elsewhere version=%d reason=%s", version, error)
            return report
        serves = f"version {after}" if after else "the untrained model"
        self.notice = f"version {version} was rolled back: {report.reason}; {serves} serves again"
        return report

    def _since_it_serves(self, number: int) -> LiveReport | None:
        """The evidence on a version that serves for the first time; None of one that a person promoted, whose word stands."""
        version, since = self._policies.version(number), self._policies.since(number)
        if version is None or since is None or not since.is_first or version.note == BY_A_PERSON:
            return None
        before = self._before(self._policies.before(number), since.turn, _BASELINE)
        found = self._policies.outcomes_by_version({number}, since.turn)
        decided = [one for one in found if one.outcome is not Outcome.UNKNOWN][: self._rules.settle_after]
        turns = [TrialTurn(one.session, True, 1.0, one.outcome, one.skills) for one in decided]
        return judge_live(turns, replace(self._rules, settle_after=_NEVER), before)

    def _report(self, canary: int, serving: int) -> LiveReport:
        since = self._policies.since(canary)
        cursor = 0 if since is None else since.turn
        found = self._policies.outcomes_by_version({canary, serving}, cursor)
        # Where the canary answers everybody, a turn of the other was under way when it began; it says nothing of chance.
        told_to_one = self._told_to_one(canary, serving)
        turns = [
            TrialTurn(
                one.session,
                one.version == canary,
                self._share,
                one.outcome,
                tuple(name for name in one.skills if name not in told_to_one),
            )
            for one in found
            if self._share < 1.0 or one.version == canary
        ]
        return judge_live(turns, self._rules, self._before(serving, cursor) if self._share == 1.0 else None)

    def _told_to_one(self, canary: int, serving: int) -> frozenset[SkillName]:
        """Skills in the prompts of one of the two only, since the other has absorbed them: of these the coin tells nothing."""
        absorbed = self._versions.serving.absorbed
        return absorbed.get(canary, frozenset()) ^ absorbed.get(serving, frozenset())

    def _before(self, serving: int, cursor: int, most: int = 10_000) -> Baseline | None:
        """What the serving version did before the other began, in its newest `most` turns."""
        past = [one.outcome for one in self._policies.outcomes_by_version({serving}, 0, before=cursor, limit=most)]
        passed, failed = past.count(Outcome.PASS), past.count(Outcome.FAIL)
        return Baseline(passed, passed + failed) if passed + failed else None
