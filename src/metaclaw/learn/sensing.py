"""The first loop: every main turn gets a verdict as soon as what followed it is known.

A turn is looked at when the next request of its session shows what came of it, and the last one when its session ends. What free
detectors or a skill's own check can tell is told at once; only what stays undecided goes to the judge, aside, so that one slow
question holds nothing up. A judge that cannot be asked leaves the turn unknown, to be tried again a few times.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.step import Step
from metaclaw.domain.turn import TurnKind
from metaclaw.domain.verdict import Outcome, Source, Verdict
from metaclaw.learn.allowance import Allowance
from metaclaw.learn.bell import Bell
from metaclaw.learn.steps import StepBuilder
from metaclaw.ports import VerdictStore
from metaclaw.store import LedgerReader, SessionRow, SqlCursors, TurnRow

log = logging.getLogger(__name__)

_CURSOR: Final = "sensing"
_ENDS_CURSOR: Final = "sensing ends"
_AT_ONCE: Final = 64
_LOOK_BACK: Final = 8
_SERVING_TO_SENSING: Final = 19.0
_LOOK_EVERY_S: Final = 0.25
_JUDGED_AT_ONCE: Final = 4
_TRY_AGAIN: Final = timedelta(seconds=60)
_MOST_TRIES: Final = 4
_MOST_WAITING: Final = 1000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Assessor(Protocol):
    """Says what a step came to."""

    def at_once(self, step: Step) -> Verdict | None:
        """The verdict of checks and detectors; None where they cannot tell. Blocks."""

    async def asked(self, step: Step) -> Verdict | None:
        """The judge's verdict; None where there is no judge. An unknown one where it could not tell."""


@dataclass(frozen=True, slots=True)
class _Undecided:
    turn: TurnId
    due: datetime
    tries: int


class Sensing:
    """Reads the ledger behind its cursor and records verdicts."""

    def __init__(
        self,
        *,
        reader: LedgerReader,
        cursors: SqlCursors,
        verdicts: VerdictStore,
        steps: StepBuilder,
        assessor: Assessor,
        allowance: Allowance,
        heard: Callable[[Step], None],
        failed: Callable[[], None],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.bell = Bell()
        self._reader = reader
        self._cursors = cursors
        self._verdicts = verdicts
        self._steps = steps
        self._assessor = assessor
        self._allowance = allowance
        self._heard = heard
        self._failed = failed
        self._now = now
        self._after: int | None = None
        self._ended_us = 0
        self._last_ended: SessionId | None = None
        self._asking: set[TurnId] = set()
        self._again: deque[_Undecided] = deque(maxlen=_MOST_WAITING)
        self._limiter = anyio.CapacityLimiter(_JUDGED_AT_ONCE)

    async def run(self) -> None:
        """Until cancelled."""
        async with anyio.create_task_group() as judging:
            while True:
                began_s = time.monotonic()
                rows = await self.look(judging)
                if rows >= _AT_ONCE:
                    # Far behind means much traffic: then most of the time belongs to serving.
                    await anyio.sleep((time.monotonic() - began_s) * _SERVING_TO_SENSING)
                elif not rows:
                    await self.bell.wait(_LOOK_EVERY_S)

    async def look(self, judging: TaskGroup) -> int:
        """Take in what is new; how much there was."""
        if self._after is None:
            self._after = await run_sync(self._cursors.cursor, _CURSOR)
            self._ended_us = await run_sync(self._cursors.cursor, _ENDS_CURSOR)
        rows = await run_sync(self._reader.turns_after, self._after, _AT_ONCE)
        for row in rows:
            if row.kind is TurnKind.MAIN:
                self._allowance.earn()
                await self._arrived(row, judging)
        if rows:
            self._after = rows[-1].seq
            await run_sync(self._cursors.move_cursor, _CURSOR, self._after)
        ended = await self._sessions_that_ended(judging)
        self._try_again(judging)
        return len(rows) + ended

    async def _arrived(self, row: TurnRow, judging: TaskGroup) -> None:
        """A new turn shows what came of the one before it, and may hold a person's new words."""
        began, followed = await run_sync(self._read_around, row)
        if began is not None:
            self._heard(began)
        for step in followed:
            await self._assess(step, judging)

    def _read_around(self, row: TurnRow) -> tuple[Step | None, list[Step]]:
        """The step of a turn with which a task begins (else None), and the steps that the turn follows."""
        earlier = [one for one in self._reader.main_turns_before(row.session, row.seq, _LOOK_BACK) if one.retry_of is None]
        this = self._reader.turn(row.id)
        if this is None:
            return None, []
        followed = []
        later = [this]
        for one in earlier:
            recorded = self._reader.turn(one.id)
            if recorded is None:
                continue
            if self._is_open(one.id) and self._steps.following(recorded, later) is this:
                step = self._steps.build(recorded, this)
                followed.extend([step] if step is not None else [])
            elif len(later) == 1:
                break  # the turn before this one has been looked at, and so have those before it
            later.insert(0, recorded)
        is_new_task = not earlier or earlier[0].segment != row.segment
        return (self._steps.build(this, None) if is_new_task else None), followed

    def _is_open(self, turn: TurnId) -> bool:
        """Whether nobody has looked at this turn yet, or is looking at it now."""
        standing = self._reader.standing_of(turn)
        return turn not in self._asking and standing is not None and standing.verdict is None

    async def _sessions_that_ended(self, judging: TaskGroup) -> int:
        """The last turn of a session has no next state; it is judged by itself."""
        since = _EPOCH + timedelta(microseconds=self._ended_us)
        ended = await run_sync(self._reader.sessions_ended, since, self._last_ended, _AT_ONCE)
        for session in ended:
            for step in await run_sync(self._last_steps, session.id):
                await self._assess(step, judging)
        if ended:
            self._ended_us, self._last_ended = _instant(ended[-1]), ended[-1].id
            await run_sync(self._cursors.move_cursor, _ENDS_CURSOR, self._ended_us)
        return len(ended)

    def _last_steps(self, session: SessionId) -> list[Step]:
        last = self._reader.last_main_turn(session)
        if last is None or not self._is_open(last.id):
            return []
        recorded = self._reader.turn(last.id)
        step = None if recorded is None else self._steps.build(recorded, None, is_last=True)
        return [] if step is None else [step]

    async def _assess(self, step: Step, judging: TaskGroup) -> None:
        verdict = await run_sync(self._assessor.at_once, step)
        if verdict is not None:
            await self._record(verdict)
        elif self._allowance.take():
            self._asking.add(step.turn)
            judging.start_soon(self._ask, step, 1)
        else:
            await self._record(Verdict(step.turn, Outcome.UNKNOWN, Source.NOBODY, None, comment="the judge's share is used up"))

    async def _ask(self, step: Step, tries: int) -> None:
        async with self._limiter:
            verdict = await self._assessor.asked(step)
        if verdict is None:
            verdict = Verdict(step.turn, Outcome.UNKNOWN, Source.NOBODY, None, comment="nobody judges")
        elif verdict.outcome is Outcome.UNKNOWN and verdict.p_fail is None and tries < _MOST_TRIES:
            self._again.append(_Undecided(step.turn, self._now() + _TRY_AGAIN * 2 ** (tries - 1), tries + 1))
        await self._record(verdict)
        self._asking.discard(step.turn)

    def _try_again(self, judging: TaskGroup) -> None:
        """Ask once more about turns of which the judge could say nothing, because it was down or made no sense."""
        for _ in range(len(self._again)):
            one = self._again.popleft()
            if one.due > self._now():
                self._again.append(one)
            else:
                judging.start_soon(self._ask_again, one)

    async def _ask_again(self, one: _Undecided) -> None:
        step = await run_sync(self._read_again, one.turn)
        if step is not None:
            await self._ask(step, one.tries)

    def _read_again(self, turn: TurnId) -> Step | None:
        standing, recorded = self._reader.standing_of(turn), self._reader.turn(turn)
        if (
            recorded is None
            or standing is None
            or (standing.verdict is not None and standing.verdict.outcome is not Outcome.UNKNOWN)
        ):
            return None
        row = self._reader.next_main_turn(recorded.turn.session, recorded.seq)
        following = None if row is None else self._reader.turn(row.id)
        return self._steps.build(recorded, following, is_last=following is None)

    async def _record(self, verdict: Verdict) -> None:
        stands = await run_sync(self._verdicts.record_verdict, verdict)
        log.debug("verdict turn=%s outcome=%s source=%s", verdict.turn, verdict.outcome, verdict.source)
        if stands and verdict.teaches:
            self._failed()


def _instant(session: SessionRow) -> int:
    assert session.ended_at is not None
    return (session.ended_at - _EPOCH) // timedelta(microseconds=1)
