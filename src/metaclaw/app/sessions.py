"""The life of sessions in the running program: taken up at the start, ended by silence or by a
person, and forgotten.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from typing import NamedTuple, cast

import anyio
import anyio.to_thread

from metaclaw.clock import utc_now
from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.skill import SKILLS_NAMED
from metaclaw.domain.status import Health
from metaclaw.domain.turn import Origin, Placement, SessionTrace, Stamp
from metaclaw.errors import StoreError
from metaclaw.proxy import Incoming, Origins, Placer, StoredAnswers, TrueAnswers
from metaclaw.store import LedgerReader, SqlForgetting, SqlLedger

log = logging.getLogger(__name__)

_SWEEP_EVERY_S = 15.0
_SWEEPS_PER_FULL_LOOK = 240
_RESTORED_SESSIONS = 500
_PREFIXES = 64


class StoredSession(NamedTuple):
    """A session of an earlier run, the placements of its last turn, and the skills that its messages
    were found to need."""

    trace: SessionTrace
    placed: tuple[int, Stamp, Sequence[Placement]] | None
    named: Sequence[SkillName] = ()


@dataclass(frozen=True, slots=True)
class SessionKeeper:
    """Ends sessions that have been silent for `silence`. Each of `forgetters` drops what it
    remembers of a forgotten session.
    """

    reader: LedgerReader
    ledger: SqlLedger
    forgetting: SqlForgetting
    origins: Origins
    placer: Placer
    answers: TrueAnswers
    silence: timedelta
    forgetters: Sequence[Callable[[SessionId], object]]
    is_shared: bool = False
    """Whether other programs on the store may serve the same sessions."""
    _forgotten_here: set[SessionId] = field(default_factory=set, init=False)

    def stored(self) -> Sequence[StoredSession]:
        """The sessions that were active when the program last stopped. Blocks."""
        unwanted = self.forgetting.begun()
        recent = self.reader.recent_traces(self._silent_since(), _RESTORED_SESSIONS)
        named = self._named()
        return [
            self._read(trace, named.get(trace.session, ()))
            for trace in recent
            if trace.session not in unwanted
        ]

    def _named(self) -> dict[object, list[SkillName]]:
        """The skills that the reader of messages named last, by session."""
        return {
            event.data["session"]: cast("list[SkillName]", event.data["skills"])
            for event in reversed(self.reader.events_of(SKILLS_NAMED, _RESTORED_SESSIONS))
        }

    def _read(self, trace: SessionTrace, named: Sequence[SkillName]) -> StoredSession:
        found = self.reader.turn(trace.last_turn)
        if found is None:
            return StoredSession(trace, None)
        turn = found.turn
        return StoredSession(trace, (turn.segment, turn.stamp, turn.placements), named)

    def restore(self, stored: Sequence[StoredSession]) -> None:
        """Take up sessions with the skills in their prompts, except those that requests have been
        served for meanwhile.
        """
        restored = [one for one in stored if not self.origins.is_active(one.trace.session)]
        self.origins.restore([one.trace for one in restored])
        for one in restored:
            self._place(one)

    def _place(self, stored: StoredSession) -> None:
        if stored.placed is not None:
            self.placer.restore(stored.trace.session, *stored.placed)
            self.placer.name(stored.trace.session, stored.named)

    async def bring(self, incoming: Incoming, origin: Origin) -> Origin:
        """The origin of a request after a look whether another program has served its session: it
        seems to begin one, or its history has answers that were not given here.
        """
        began = origin.session_began
        read = incoming.wire, incoming.headers, incoming.json
        heads = self.origins.prefixes(*read, incoming.path)[-_PREFIXES:]
        name = None if origin.key is None and began else origin.session
        try:
            found = await anyio.to_thread.run_sync(self._served_elsewhere, name, heads, not began)
        except StoreError as error:
            log.debug("session_unknown session=%s reason=%s", origin.session, error)
            return origin
        if found is None:
            return origin
        stored, answers = found
        self.answers.restore(answers)
        if began:
            if not self.origins.withdraw(origin):
                return origin
            self.restore([stored])
        elif self.origins.catch_up(origin, stored.trace):
            self._place(stored)
        else:
            return origin
        return self.origins.identify(*read, incoming.peer, path=incoming.path)

    def _served_elsewhere(
        self, session: SessionId | None, heads: Sequence[bytes], is_known: bool
    ) -> tuple[StoredSession, StoredAnswers] | None:
        trace = self.reader.trace_of(session, heads, is_known=is_known)
        if trace is None:
            return None
        stored = self._read(trace, self._named().get(trace.session, ()))
        return stored, self.answers.stored(trace.session)

    async def end(self, session: SessionId) -> bool:
        """End a session because its owner said so; False if it is not active."""
        if not self.origins.end(session):
            return False
        self.placer.forget((session,))
        await self.ledger.end_session(session, "owner said so")
        return True

    def forget(self, session: SessionId) -> None:
        """Drop everything about a forgotten session from memory: its next request begins a new
        one.
        """
        self._forgotten_here.add(session)
        self._drop(session)

    def forget_elsewhere(self, session: SessionId) -> None:
        """As `forget`, after the store says that the session is forgotten; not for one that was
        forgotten here, which may be a new one by now.
        """
        if session in self._forgotten_here:
            self._forgotten_here.discard(session)
        else:
            self._drop(session)

    def _drop(self, session: SessionId) -> None:
        self.origins.end(session)
        self.placer.forget((session,))
        for forget in self.forgetters:
            forget(session)

    async def run(self) -> None:
        """End silent sessions until cancelled."""
        for sweep in count():
            if (
                self.ledger.health.health is not Health.DEGRADED
            ):  # a failing store keeps turns in memory, not ends of sessions
                if sweep % _SWEEPS_PER_FULL_LOOK == 0:
                    await self._end_unknown()
                silent = self.origins.sweep()
                self.placer.forget(silent)
                if self.is_shared and silent:
                    silent = await self._silent_everywhere(silent)
                await self.ledger.end_sessions(silent, "silence")
            await anyio.sleep(_SWEEP_EVERY_S)

    async def _silent_everywhere(self, silent: Sequence[SessionId]) -> list[SessionId]:
        """Those of the sessions that no other program has served meanwhile."""
        try:
            found = await anyio.to_thread.run_sync(
                lambda: set(self.reader.silent_sessions(self._silent_since()))
            )
        except StoreError:
            return []  # `_end_unknown` finds them later
        return [session for session in silent if session in found]

    async def _end_unknown(self) -> None:
        """End silent sessions that this process does not remember, so that their last turns are
        judged.
        """
        try:
            silent = await anyio.to_thread.run_sync(
                lambda: self.reader.silent_sessions(self._silent_since())
            )
        except StoreError as error:
            log.debug(
                "silent_sessions_unknown reason=%s", error
            )  # the health of the store shows it
            return
        await self.ledger.end_sessions(
            [one for one in silent if not self.origins.is_active(one)], "silence"
        )

    def _silent_since(self) -> datetime:
        return utc_now() - self.silence
