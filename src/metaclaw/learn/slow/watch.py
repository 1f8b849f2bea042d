"""Watching a canary live: by the verdicts on its turns, against those of the serving version, it is promoted or rolled back."""

import logging

from anyio.to_thread import run_sync

from metaclaw.domain.ids import SkillName
from metaclaw.domain.verdict import Outcome
from metaclaw.errors import TrainingError
from metaclaw.learn.slow.versions import Versions
from metaclaw.store import RefusedError, SqlPolicies
from metaclaw.train.coin import LiveTurn
from metaclaw.train.live import Baseline, LiveReport, LiveRules, LiveRuling, judge_live

log = logging.getLogger(__name__)


class CanaryWatch:
    """Looks at the evidence whenever it is asked to."""

    def __init__(self, *, policies: SqlPolicies, versions: Versions, share: float, rules: LiveRules | None = None) -> None:
        self._policies = policies
        self._versions = versions
        self._share = share
        self._rules = rules or LiveRules()

    async def look(self) -> LiveReport | None:
        """What the evidence says now, and it is done; None where nothing is on trial."""
        serving = self._versions.serving
        if serving.canary is None:
            return None
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

    def _report(self, canary: int, serving: int) -> LiveReport:
        since = self._policies.since(canary)
        cursor = 0 if since is None else since.turn
        found = self._policies.outcomes_by_version({canary, serving}, cursor)
        # Where the canary answers everybody, a turn of the other was under way when it began; it says nothing of chance.
        told_to_one = self._told_to_one(canary, serving)
        turns = [
            LiveTurn(
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

    def _before(self, serving: int, cursor: int) -> Baseline | None:
        """What the serving version did before the canary began."""
        past = [one.outcome for one in self._policies.outcomes_by_version({serving}, 0, before=cursor)]
        passed, failed = past.count(Outcome.PASS), past.count(Outcome.FAIL)
        return Baseline(passed, passed + failed) if passed + failed else None
