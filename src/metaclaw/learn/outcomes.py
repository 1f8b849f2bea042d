"""The outcome loop: give every main turn a verdict.

A turn is assessed when the next request of its session arrives, and the last turn when its session
ends. Checks and detectors, which are free, decide first; the judge is asked, in the background,
only about turns that they cannot decide, and only about a share of the turns, within a budget.
Other turns wait with an unknown verdict whose comment says so, also over a restart; those most
likely to have failed are asked about first. If the judge gives no vote, it is asked again, after
longer and longer pauses.

After a stop the loop continues at the first turn that is not done (`LoopProgress`) and skips turns
that have a verdict."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.turn import Step, TurnKind
from metaclaw.domain.verdict import Outcome, Source, Verdict
from metaclaw.errors import BudgetError
from metaclaw.learn.assessment import Assessment
from metaclaw.learn.steps import RecordedSteps
from metaclaw.learn.supervision import (
    ENDS_CURSOR,
    SET_ASIDE,
    TURNS_CURSOR,
    AttemptLog,
    LoopProgress,
    LoopWakeup,
    RetryGuard,
)
from metaclaw.outcome import fuse
from metaclaw.store import (
    EndedSession,
    LedgerReader,
    RecordedTurn,
    RefusedError,
    SqlCursors,
    SqlVerdicts,
    TurnRow,
)

log = logging.getLogger(__name__)

BUDGET_USED: Final = "waits for the learning budget"
SHARE_USED: Final = "the judge's share is used up"
MOST_TRIES: Final = 4
FIRST_PAUSE_S: Final = 60.0
_MOST_QUESTIONS_SAVED: Final = 20.0
_MOST_QUESTIONS: Final = 1000

_ROWS_AT_ONCE: Final = 64
_LOOK_BACK: Final = 8
_LOOK_FAR_BACK: Final = 32
_PAUSE_PER_VERDICT_S: Final = 0.02
_MOST_JUDGED_AT_ONCE: Final = 4


class JudgeAllowance:
    """The questions that the judge may be asked. Every turn adds `share` of a question, up to 20;
    every question takes one.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._most = _MOST_QUESTIONS_SAVED if share > 0 else 0.0
        self._left = self._most
        self.turns = 0
        self.questions = 0

    def earn(self) -> None:
        """Count a main turn."""
        self.turns += 1
        self._left = min(self._left + self._share, self._most)

    def take(self) -> bool:
        """Count one more question and return True if it may be asked."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        self.questions += 1
        return True

    def give_back(self) -> None:
        """Return a question that was taken and not asked."""
        self._left += 1.0
        self.questions -= 1


@dataclass(frozen=True, slots=True)
class Question:
    """A turn to ask the judge about, not before `at_s`; it gave no vote `tries` times."""

    turn: TurnId
    p_fail: float
    tries: int
    at_s: float
    waits_for_budget: bool


class OpenQuestions:
    """Turns to ask about later, at most 1,000; of more, those that failed with the lowest
    probability stay unknown. `now` is a monotonic clock in seconds, because a wall clock that is set
    back would delay them."""

    def __init__(self, verdicts: SqlVerdicts, now: Callable[[], float]) -> None:
        self._verdicts = verdicts
        self._now = now
        self._waiting: dict[TurnId, Question] = {}

    @property
    def waiting_for_budget(self) -> int:
        """Number of questions that wait for the budget."""
        return sum(question.waits_for_budget for question in self._waiting.values())

    def put(self, verdict: Verdict, tries: int = 0) -> None:
        """Ask about the turn of this unknown verdict later; after a pause if a judge was asked, and
        no more after `MOST_TRIES`."""
        if tries >= MOST_TRIES:
            return
        at_s = self._now() + (FIRST_PAUSE_S * 2 ** (tries - 1) if tries else 0.0)
        waits = verdict.comment == BUDGET_USED
        question = Question(verdict.turn, fuse(verdict.signals), tries, at_s, waits)
        self._waiting[verdict.turn] = question
        if len(self._waiting) > _MOST_QUESTIONS:
            least = min(self._waiting.values(), key=lambda one: one.p_fail)
            del self._waiting[least.turn]

    def due(self) -> Question | None:
        """The question that is due about the turn that most probably failed; of several, the
        newest."""
        now = self._now()
        due = (one for one in reversed(self._waiting.values()) if one.at_s <= now)
        return max(due, key=lambda one: one.p_fail, default=None)

    def remove(self, question: Question) -> None:
        """Remove a question that is asked now."""
        del self._waiting[question.turn]

    def recall(self) -> None:
        """Find the questions that were open before the start. Blocks."""
        self._waiting.clear()
        for turn in reversed(self._verdicts.recent(Outcome.UNKNOWN, _MOST_QUESTIONS)):
            verdict = self._verdicts.verdict_of(turn)
            tries = sum(map(has_no_vote, self._verdicts.verdicts_of(turn)))
            if verdict is not None and (tries or verdict.comment in (BUDGET_USED, SHARE_USED)):
                self.put(verdict, tries)


def has_no_vote(verdict: Verdict) -> bool:
    """Whether a judge was asked and none of its votes could be read. The answer that it cannot tell
    is a vote with a reason.
    """
    return (
        verdict.votes is not None
        and verdict.votes.share_failed is None
        and not verdict.votes.reasons
    )


class _Hold(NamedTuple):
    """The progress that a running question delays, and the point of its turn."""

    progress: LoopProgress
    point: int


@dataclass(eq=False, kw_only=True)
class OutcomeLoop:
    """Reads new turns from the ledger and records verdicts. `may_ask` says whether the budget
    allows one more question. `catch_up` loads the skills in force, and blocks."""

    reader: LedgerReader
    cursors: SqlCursors
    verdicts: SqlVerdicts
    recorded: RecordedSteps
    assessor: Assessment
    allowance: JudgeAllowance
    may_ask: Callable[[], Awaitable[bool]]
    on_failure: Callable[[], None]
    now: Callable[[], float]
    catch_up: Callable[[], object]
    attempt_log: AttemptLog

    def __post_init__(self) -> None:
        self.wakeup = LoopWakeup()
        self.questions = OpenQuestions(self.verdicts, self.now)
        self._limiter = anyio.CapacityLimiter(_MOST_JUDGED_AT_ONCE)
        self._turns: LoopProgress | None = None
        self._ends = LoopProgress()
        self._asking: set[TurnId] = set()
        self._guard = RetryGuard("sensing", self.attempt_log)
        self._judging = RetryGuard("judging", self.attempt_log)
        self._kept: dict[str, int] = {}
        self._verdicts_made = 0

    async def run(self) -> None:
        """Run until cancelled."""
        self._turns = None  # after a failure, begin again at the stored cursor
        async with anyio.create_task_group() as judging:
            while True:
                self._verdicts_made = 0
                rows = await self.poll(judging)
                if rows >= _ROWS_AT_ONCE:
                    # Far behind means much traffic: pause, so that writing verdicts does not slow
                    # down serving.
                    await anyio.sleep(self._verdicts_made * _PAUSE_PER_VERDICT_S)
                else:
                    await self.wakeup.wait_after(is_empty=not rows)

    async def poll(self, judging: TaskGroup) -> int:
        """Assess the turns that new rows complete; return how many rows there were."""
        turns = self._turns or await self._begin()
        rows = await run_sync(self.reader.turns_after, turns.reached, _ROWS_AT_ONCE)
        if rows:
            await run_sync(
                self.catch_up
            )  # after reading the rows, so that the skills of their turns are known
        for row in rows:
            if row.kind is TurnKind.MAIN:
                async with self._guard.attempt(row.id) as may:
                    await (self._arrived(row, turns, judging) if may else self._leave(row))
        if rows:
            turns.reach(rows[-1].seq)
        ended = await self._sessions_that_ended(judging)
        await self._ask_what_is_due(judging)
        await self._keep(TURNS_CURSOR, turns.settled)
        await self._keep(ENDS_CURSOR, self._ends.settled)
        return len(rows) + ended

    async def _begin(self) -> LoopProgress:
        for name in (TURNS_CURSOR, ENDS_CURSOR):
            self._kept[name] = await run_sync(self.cursors.cursor, name)
        self._turns, self._ends = (
            LoopProgress(self._kept[TURNS_CURSOR]),
            LoopProgress(self._kept[ENDS_CURSOR]),
        )
        self._asking.clear()
        await run_sync(self.questions.recall)
        return self._turns

    async def _keep(self, name: str, point: int) -> None:
        if point != self._kept[name]:
            await run_sync(self.cursors.move_cursor, name, point)
            self._kept[name] = point

    async def _arrived(self, row: TurnRow, turns: LoopProgress, judging: TaskGroup) -> None:
        """Assess the turns that a new turn follows."""
        self.allowance.earn()
        followed, this = await run_sync(self._read_around, row)
        for step in followed:
            await self._assess(step, this, _Hold(turns, row.seq), judging)

    async def _leave(self, row: TurnRow) -> None:
        """Record a turn that is set aside, and the open turns before it, which would be read with
        it, as unknown.
        """
        earlier, is_open = await run_sync(self._before, row, _LOOK_FAR_BACK)
        for turn in (
            row.id,
            *(before.id for before, waits in zip(earlier, is_open, strict=True) if waits),
        ):
            await self._record(_unknown(turn, SET_ASIDE))

    def _read_around(self, row: TurnRow) -> tuple[list[Step], Step | None]:
        """The steps that a new turn follows, and its own step. Reads only the turns from the first
        open one to this turn.
        """
        earlier, is_open = self._before(row, _LOOK_BACK)
        if len(earlier) == _LOOK_BACK and is_open[-1]:
            # Several agents work in one session: the turn that this one follows may be further
            # back.
            earlier, is_open = self._before(row, _LOOK_FAR_BACK)
        # If a failed request was sent again, this turn follows only the second one.
        retried = {turn.retry_of for turn in (row, *earlier)}
        oldest = max(
            (at for at, turn in enumerate(earlier) if is_open[at] and turn.id not in retried),
            default=-1,
        )
        this = self.reader.turn(row.id) if oldest >= 0 else None
        if this is None:
            return [], None
        followed: list[Step] = []
        later = [this]
        for at, turn in enumerate(earlier[: oldest + 1]):
            recorded = self.reader.turn(turn.id) if turn.id not in retried else None
            if recorded is None:
                continue
            if is_open[at]:
                followed.extend(self._if_followed_by(this, recorded, later))
            later.insert(0, recorded)
        return followed, self.recorded.build(this, None) if followed else None

    def _before(self, row: TurnRow, limit: int) -> tuple[list[TurnRow], list[bool]]:
        """The main turns of the session before this one, newest first, and whether each is open: it
        waits for a verdict.
        """
        earlier = self.reader.main_turns_before(row.session, row.seq, limit)
        standings = self.reader.standings_of([turn.id for turn in earlier]) if earlier else {}
        without_verdict = {turn for turn, standing in standings.items() if standing.verdict is None}
        return earlier, [
            turn.id in without_verdict and turn.id not in self._asking for turn in earlier
        ]

    def _if_followed_by(
        self, this: RecordedTurn, recorded: RecordedTurn, later: list[RecordedTurn]
    ) -> list[Step]:
        if self.recorded.builder.following(recorded, later) is not this:
            return []
        step = self.recorded.build(recorded, this)
        return [] if step is None else [step]

    async def _sessions_that_ended(self, judging: TaskGroup) -> int:
        """Assess the last turns of sessions that ended; return how many ended."""
        ended = await run_sync(self.reader.sessions_ended, self._ends.reached, _ROWS_AT_ONCE)
        for session in ended:
            if not session.is_open:
                await self._ended(session, judging)
            self._ends.reach(session.seq)
        return len(ended)

    async def _ended(self, session: EndedSession, judging: TaskGroup) -> None:
        async with self._guard.attempt(session.id) as may:
            for step in await run_sync(self._last_steps, session.id) if may else ():
                await self._assess(step, None, _Hold(self._ends, session.seq), judging)
            if not may and (last := await run_sync(self._last_open, session.id)) is not None:
                await self._record(_unknown(last.id, SET_ASIDE))

    def _last_steps(self, session: SessionId) -> list[Step]:
        last = self._last_open(session)
        recorded = None if last is None else self.reader.turn(last.id)
        step = None if recorded is None else self.recorded.build(recorded, None, is_last=True)
        return [] if step is None else [step]

    def _last_open(self, session: SessionId) -> TurnRow | None:
        """The last main turn of a session, if it has no verdict yet."""
        last = self.reader.last_main_turn(session)
        standing = (
            None if last is None or last.id in self._asking else self.reader.standing_of(last.id)
        )
        return last if standing is not None and standing.verdict is None else None

    async def _assess(
        self, step: Step, later: Step | None, hold: _Hold, judging: TaskGroup
    ) -> None:
        found = await run_sync(self.assessor.at_once, step, later)
        if found.verdict is not None:
            await self._record(found.verdict)
        elif not self.assessor.has_judge(step):
            failed = found.failed_check
            why = (
                f"the check of {failed} failed to run; metaclaw status says why"
                if failed
                else "no judge is configured"
            )
            await self._record(_unknown(step.turn, why))
        elif self.allowance.take():
            self._asking.add(step.turn)
            hold.progress.begin(hold.point)
            judging.start_soon(self._ask, step, later, 1, partial(hold.progress.end, hold.point))
        else:
            await self._put_off(step, later, SHARE_USED)

    async def _put_off(self, step: Step, later: Step | None, why: str) -> None:
        """Record a turn as unknown for now, and ask about it when the allowance and the budget
        permit.
        """
        verdict = replace(
            _unknown(step.turn, why), signals=await run_sync(self.assessor.signals, step, later)
        )
        await self._record(verdict)
        self.questions.put(verdict)

    async def _ask_what_is_due(self, judging: TaskGroup) -> None:
        while len(self._asking) < _MOST_JUDGED_AT_ONCE and (question := self.questions.due()):
            if not self.allowance.take():
                return
            if not await self.may_ask():
                self.allowance.give_back()
                return
            self.questions.remove(question)
            self._asking.add(question.turn)
            judging.start_soon(self._ask_again, question.turn, question.tries + 1)

    async def _ask(
        self, step: Step, later: Step | None, tries: int, done: Callable[[], None]
    ) -> None:
        try:
            async with self._limiter, self._judging.attempt(step.turn) as may:
                asked = (
                    await self.assessor.asked(step, later)
                    if may
                    else _unknown(step.turn, SET_ASIDE)
                )
        except BudgetError:
            self.allowance.give_back()
            await self._put_off(step, later, BUDGET_USED)
        else:
            verdict = asked or _unknown(step.turn, "no judge is configured")
            await self._record(verdict)
            if has_no_vote(verdict):
                self.questions.put(verdict, tries)
        self._asking.discard(step.turn)
        done()

    async def _ask_again(self, turn: TurnId, tries: int) -> None:
        """Ask about a turn that was put off, or on which the judge gave no readable vote."""
        async with self._guard.attempt(turn) as may:
            step = await run_sync(self._read_again, turn) if may else None
        if step is not None:
            await self._ask(step, None, tries, lambda: None)
        self._asking.discard(turn)

    def _read_again(self, turn: TurnId) -> Step | None:
        standing = self.reader.standing_of(turn)
        is_unknown = (
            standing is not None
            and standing.verdict is not None
            and standing.verdict.outcome is Outcome.UNKNOWN
        )
        return self.recorded.step(turn) if is_unknown else None

    async def _record(self, verdict: Verdict) -> None:
        try:
            stands = await run_sync(self.verdicts.record_verdict, verdict)
        except RefusedError as error:
            log.debug(
                "verdict_refused turn=%s reason=%s", verdict.turn, error
            )  # the turn was forgotten meanwhile
            return
        self._verdicts_made += 1
        log.debug(
            "verdict turn=%s outcome=%s source=%s", verdict.turn, verdict.outcome, verdict.source
        )
        if stands and verdict.teaches:
            self.on_failure()


def _unknown(turn: TurnId, why: str) -> Verdict:
    return Verdict(turn, Outcome.UNKNOWN, Source.UNDECIDED, None, comment=why)
