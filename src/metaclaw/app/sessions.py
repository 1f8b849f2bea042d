"""The life of sessions in the running program: taken up at the start, ended by silence or by a person, and forgotten."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count

import anyio
import anyio.to_thread

from metaclaw.domain.ids import SessionId
from metaclaw.domain.status import Health
from metaclaw.errors import StoreError
from metaclaw.proxy import Origins, Placer
from metaclaw.store import LedgerReader, SqlForgetting, SqlLedger

log = logging.getLogger(__name__)

_SWEEP_EVERY_S = 15.0
_SWEEPS_PER_FULL_LOOK = 240
_RESTORED_SESSIONS = 500


@dataclass(frozen=True, slots=True)
class SessionKeeper:
    """Ends sessions that have been silent for `silence`. Each of `forgetters` drops what it remembers of a forgotten session."""

    reader: LedgerReader
    ledger: SqlLedger
    forgetting: SqlForgetting
    origins: Origins
    placer: Placer
    silence: timedelta
    forgetters: Sequence[Callable[[SessionId], object]]

    def restore(self) -> None:
        """Take up the sessions that were active when the program last stopped, with the skills in their prompts. Blocks."""
        unwanted = self.forgetting.begun()
        recent = self.reader.recent_traces(self._silent_since(), _RESTORED_SESSIONS)
        traces = [trace for trace in recent if trace.session not in unwanted]
        self.origins.restore(traces)
        for trace in traces:
            found = self.reader.turn(trace.last_turn)
            if found is not None:
                self.placer.restore(trace.session, found.turn.segment, found.turn.stamp, found.turn.placements, found.turn.draws)

    async def end(self, session: SessionId) -> bool:
        """End a session because its owner said so; False if it is not active."""
        if not self.origins.end(session):
            return False
        self.placer.forget((session,))
        await self.ledger.end_session(session, "owner said so")
        return True

    def forget(self, session: SessionId) -> None:
        """Drop everything about a forgotten session from memory: its next request begins a new one."""
        self.origins.end(session)
        self.placer.forget((session,))
        for forget in self.forgetters:
            forget(session)

    async def run(self) -> None:
        """End silent sessions until cancelled."""
        for sweep in count():
            if self.ledger.health.health is not Health.DEGRADED:  # a failing store keeps turns in memory, not ends of sessions
                if sweep % _SWEEPS_PER_FULL_LOOK == 0:
                    await self._end_unknown()
                silent = self.origins.sweep()
                self.placer.forget(silent)
                await self.ledger.end_sessions(silent, "silence")
            await anyio.sleep(_SWEEP_EVERY_S)

    async def _end_unknown(self) -> None:
        """End silent sessions that this process does not remember, so that their last turns are judged."""
        try:
            silent = await anyio.to_thread.run_sync(lambda: self.reader.silent_sessions(self._silent_since()))
        except StoreError as error:
            log.debug("silent_sessions_unknown reason=%s", error)  # the health of the store shows it
            return
        await self.ledger.end_sessions([one for one in silent if not self.origins.is_active(one)], "silence")

    def _silent_since(self) -> datetime:
        return datetime.now(UTC) - self.silence
