"""Watch the verdicts on live turns: promote a version on trial, or roll back one that is worse.

A version on trial is compared with the one that serves, and is promoted or rolled back. One that
serves every session since it passed the gate is compared with the turns of the version before it,
and is rolled back if it is shown to be worse."""

import logging
from dataclasses import dataclass, replace
from typing import Final

from anyio.to_thread import run_sync

from metaclaw.domain.ids import SkillName
from metaclaw.domain.policy import BASE_POLICY
from metaclaw.domain.verdict import Outcome
from metaclaw.errors import TrainingError
from metaclaw.learn.slow.serving_versions import BY_A_PERSON, Versions
from metaclaw.store import RefusedError, SqlPolicies
from metaclaw.train import Baseline, LiveReport, LiveRuling, LiveThresholds, TrialTurn, judge_live

log = logging.getLogger(__name__)

_BASELINE: Final = 200
_NEVER: Final = 1 << 62


@dataclass(eq=False, kw_only=True)
class VersionWatch:
    """Promotes a version on trial, or takes a serving one back, by the verdicts on live turns."""

    policies: SqlPolicies
    versions: Versions
    share: float
    rules: LiveThresholds
    notice: str | None = None

    async def look(self) -> LiveReport | None:
        """Promote or take back a version if the evidence says so. Returns the evidence; None where
        no version is watched.
        """
        serving = self.versions.serving
        if serving.canary is None:
            return await self._look_back(serving.version)
        report = await run_sync(self._report, serving.canary, serving.version)
        try:
            match report.ruling:
                case LiveRuling.PROMOTE:
                    await self.versions.promote(serving.canary, report.reason)
                case LiveRuling.ROLL_BACK:
                    await self.versions.rollback(None, report.reason)
                case LiveRuling.WAIT:
                    pass
        except (RefusedError, TrainingError) as error:
            # A person was quicker: what they decided stands.
            log.info("canary_decided_elsewhere version=%d reason=%s", serving.canary, error)
        return report

    async def _look_back(self, version: int) -> LiveReport | None:
        """Roll back a version that serves every session if its turns fail more often than those of
        the version before it.
        """
        report = None if version == BASE_POLICY else await run_sync(self._since_it_serves, version)
        if report is None or not report.is_worse:
            return report
        try:
            after = (await self.versions.rollback(None, report.reason)).version
        except RefusedError as error:
            log.info("version_rolled_back_elsewhere version=%d reason=%s", version, error)
            return report
        serves = f"version {after}" if after else "the untrained model"
        self.notice = f"version {version} was rolled back: {report.reason}; {serves} serves again"
        return report

    def _since_it_serves(self, number: int) -> LiveReport | None:
        """The evidence on a version that serves for the first time; None of one that a person
        promoted, whose word stands.
        """
        version, since = self.policies.version(number), self.policies.since(number)
        if version is None or since is None or not since.is_first or version.note == BY_A_PERSON:
            return None
        before = self._before(self.policies.before(number), since.turn, _BASELINE)
        found = self.policies.outcomes_by_version({number}, since.turn)
        decided = [one for one in found if one.outcome is not Outcome.UNKNOWN][
            : self.rules.settle_after
        ]
        turns = [TrialTurn(one.session, True, 1.0, one.outcome, one.skills) for one in decided]
        return judge_live(turns, replace(self.rules, settle_after=_NEVER), before)

    def _report(self, canary: int, serving: int) -> LiveReport:
        since = self.policies.since(canary)
        cursor = 0 if since is None else since.turn
        found = self.policies.outcomes_by_version({canary, serving}, cursor)
        # Where the canary answers every session, a turn of the other was under way when it began;
        # it says nothing of chance.
        skills_of_one = self._skills_of_one(canary, serving)
        turns = [
            TrialTurn(
                one.session,
                one.version == canary,
                self.share,
                one.outcome,
                tuple(name for name in one.skills if name not in skills_of_one),
            )
            for one in found
            if self.share < 1.0 or one.version == canary
        ]
        return judge_live(
            turns, self.rules, self._before(serving, cursor) if self.share == 1.0 else None
        )

    def _skills_of_one(self, canary: int, serving: int) -> frozenset[SkillName]:
        """Skills in the prompts of one of the two only, since the other has absorbed them: of these
        the coin tells nothing.
        """
        absorbed = self.versions.serving.absorbed
        return absorbed.get(canary, frozenset()) ^ absorbed.get(serving, frozenset())

    def _before(self, serving: int, cursor: int, most: int = 10_000) -> Baseline | None:
        """What the serving version did before the other began, in its newest `most` turns."""
        past = [
            one.outcome
            for one in self.policies.outcomes_by_version({serving}, 0, before=cursor, limit=most)
        ]
        passed, failed = past.count(Outcome.PASS), past.count(Outcome.FAIL)
        return Baseline(passed, passed + failed) if passed + failed else None
