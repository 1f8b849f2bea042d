"""Watch the verdicts on live turns: roll back a version whose turns fail more often than those of
the version before it."""

import logging
from dataclasses import dataclass
from typing import Final

from anyio.to_thread import run_sync

from metaclaw.domain.policy import BASE_POLICY
from metaclaw.domain.verdict import Outcome
from metaclaw.store import RefusedError, SqlPolicies
from metaclaw.training.live import Baseline, LiveThresholds, shown_worse
from metaclaw.training.serving_versions import BY_A_PERSON, Versions

log = logging.getLogger(__name__)

_BASELINE: Final = 200


@dataclass(eq=False, kw_only=True)
class VersionWatch:
    """Takes a version back by the verdicts on its first turns."""

    policies: SqlPolicies
    versions: Versions
    rules: LiveThresholds
    notice: str | None = None

    async def look(self) -> None:
        """Take back the version that serves if the evidence says so."""
        version = self.versions.serving.version
        reason = None if version == BASE_POLICY else await run_sync(self._shown_worse, version)
        if reason is None:
            return
        try:
            after = (await self.versions.rollback(None, reason)).version
        except RefusedError as error:
            log.info("version_rolled_back_elsewhere version=%d reason=%s", version, error)
            return
        serves = f"version {after}" if after else "the untrained model"
        self.notice = f"version {version} was rolled back: {reason}; {serves} serves again"

    def _shown_worse(self, number: int) -> str | None:
        """The evidence against a version that serves for the first time; None of one that a person
        promoted, whose word stands.
        """
        version, since = self.policies.version(number), self.policies.since(number)
        if version is None or since is None or not since.is_first or version.note == BY_A_PERSON:
            return None
        former = self.policies.before(number)
        past = self.policies.outcomes_by_version({former}, 0, before=since.turn, limit=_BASELINE)
        decided = [one.outcome for one in past if one.outcome is not Outcome.UNKNOWN]
        passes = (
            one.outcome is Outcome.PASS
            for one in self.policies.outcomes_by_version({number}, since.turn)
            if one.outcome is not Outcome.UNKNOWN
        )
        before = Baseline(decided.count(Outcome.PASS), len(decided))
        return shown_worse(passes, before, self.rules)
