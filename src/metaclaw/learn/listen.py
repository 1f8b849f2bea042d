"""The listening loop: a model reads each new message of a person, and the rules and facts it finds
are in force at once.

The messages of one person are read in order, those of different people concurrently. The cursor
stays before the oldest unread message, so that a killed process reads it at its next start.
`ListenerHealth` says when a provider that failed is asked again; until then, and where no model can
be asked, only sure phrases make rules."""

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.turn import TurnKind
from metaclaw.errors import BudgetError, JudgeError, MetaClawError, StoreError, UpstreamError
from metaclaw.learn.models import ListenerHealth
from metaclaw.learn.rules import LISTENED, RuleWriter
from metaclaw.learn.stated_rules import (
    PHRASES,
    Messages,
    ReadMessage,
    SpokenMessage,
    build_request,
    head_and_tail,
    is_promising,
    read_answer,
    sure_rules,
    takes_back,
)
from metaclaw.learn.supervision import (
    LISTEN_CURSOR,
    TURNS_CURSOR,
    AttemptLog,
    LoopProgress,
    LoopWakeup,
    RetryGuard,
)
from metaclaw.ports import Model, Purpose
from metaclaw.skills import scope_of_lesson
from metaclaw.store import LedgerReader, SqlCandidates, SqlCursors, TurnRow
from metaclaw.text import keep_ends
from metaclaw.upstream import TIMEOUT

log = logging.getLogger(__name__)

LISTEN: Final = "listen"
_ROWS_AT_ONCE: Final = 64
_MOST_READ_AT_ONCE: Final = 4
_POLL_S: Final = 0.2
_IDLE_POLL_S: Final = 1.0
_POLLS_UNTIL_IDLE: Final = 150
_BUDGET_PAUSES_S: Final = (2.0, 10.0, 60.0, 300.0, 900.0)
_MOST_UNUSABLE_ANSWERS: Final = 2
_UNREACHABLE_FAILURES: Final = 3
_MOST_WAITING: Final = 2_000
_MESSAGE_CHARS: Final = 1_400
_TASK_ENDS: Final = (80, 40)
_ANSWER_ENDS: Final = (173, 87)
_MOST_SESSIONS: Final = 2_000
TOKENS: Final = 1_500
"""The most tokens of one call."""


@dataclass(slots=True)
class _Waiting:
    """A message that has not been read yet, and the name of the model that will read it, if any.
    `is_sure` says that its sure phrases have been searched, `is_applied` that rules from them are
    in force."""

    spoken: SpokenMessage
    model: str
    failures: int = 0
    unreadable: int = 0
    again_at: float = 0.0
    is_sure: bool = False
    is_applied: bool = False


@dataclass(eq=False, kw_only=True)
class Listening:
    """Reads new turns from the ledger, has a model read their messages, and applies the result.
    `listener` returns the model that may read a conversation, given its provider and model.
    `may_spend` says whether the budget allows a call, given the model's name and whether the
    message is promising. `read` is called when a message has been read."""

    reader: LedgerReader
    cursors: SqlCursors
    candidates: SqlCandidates
    messages: Messages
    rules: RuleWriter
    listener: Callable[[str, str], Model | None]
    timeout_s: float
    redact: Callable[[str], str]
    may_spend: Callable[[str, bool], Awaitable[bool]] | None = None
    read: Callable[[], None] = lambda: None
    today: Callable[[], date] = lambda: datetime.now(UTC).date()
    now: Callable[[], float] = time.monotonic
    attempt_log: AttemptLog | None = None

    def __post_init__(self) -> None:
        self.wakeup = LoopWakeup()
        self._guard = RetryGuard("listening", self.attempt_log)
        self._health = ListenerHealth(lambda: self.now())
        self._progress: LoopProgress | None = None
        self._kept = 0
        self._newest: TurnId | None = None
        self._waiting: deque[_Waiting] = deque()
        self._busy: dict[str, _Waiting] = {}
        self._interrupted: dict[TurnId, int] = {}
        self._said: OrderedDict[SessionId, str] = OrderedDict()

    @property
    def reading(self) -> int:
        """The number of unread messages, without those whose model has failed several times in a
        row.
        """
        unread = (*self._waiting, *self._busy.values())
        return sum(
            max(message.failures, self._health.failures(message.model)) < _UNREACHABLE_FAILURES
            for message in unread
        )

    @property
    def facts(self) -> Mapping[str, object]:
        """For `status`: whether messages are being read, and if not, why."""
        return self._health.facts(len(self._waiting) + len(self._busy))

    @property
    def reached(self) -> int:
        """The last row of the ledger that was read."""
        return 0 if self._progress is None else self._progress.reached

    def is_unread(self, turn: TurnId) -> bool:
        """Whether the message of this turn is still to be read."""
        if self._newest is None or turn > self._newest:
            return True
        return any(
            message.spoken.turn == turn for message in (*self._waiting, *self._busy.values())
        )

    def prepare(self) -> None:
        """At the first start, skip the turns that have verdicts already. Blocks; call it before any
        loop runs.
        """
        if not self.cursors.has_cursor(LISTEN_CURSOR):
            self.cursors.move_cursor(LISTEN_CURSOR, self.cursors.cursor(TURNS_CURSOR))

    async def run(self) -> None:
        """Run until cancelled."""
        empty_polls = 0
        self._progress = None
        async with anyio.create_task_group() as asking:
            while True:
                found = await self.poll(asking)
                empty_polls = 0 if found or self._waiting or self._busy else empty_polls + 1
                if found < _ROWS_AT_ONCE:
                    await self.wakeup.wait(
                        _POLL_S if empty_polls < _POLLS_UNTIL_IDLE else _IDLE_POLL_S
                    )

    async def poll(self, asking: TaskGroup) -> int:
        """Read new rows of the ledger and have their messages read; return how many rows there
        were.
        """
        progress = self._progress or await self._begin()
        rows = (
            await run_sync(self.reader.turns_after, progress.reached, _ROWS_AT_ONCE)
            if len(self._waiting) < _MOST_WAITING
            else []
        )
        if rows:
            await run_sync(self.rules.follow)
        for row in rows:
            spoken = await self._spoken(row) if row.kind is TurnKind.MAIN else None
            if spoken is not None:
                progress.begin(row.seq)
                self._waiting.append(_Waiting(spoken, self._model_name(spoken)))
            progress.reach(row.seq)
            self._newest = row.id
        self._ask_those_due(asking)
        await self._keep(progress)
        return len(rows)

    async def _begin(self) -> LoopProgress:
        self._waiting.clear()
        self._busy.clear()
        self._kept = await run_sync(self.cursors.cursor, LISTEN_CURSOR)
        interrupted = await run_sync(self.candidates.interrupted)
        listened = (attempt for attempt in interrupted if attempt.kind == LISTENED)
        self._interrupted = {
            turn: attempt.number for attempt in listened for turn in attempt.turns[-1:]
        }
        self._progress = LoopProgress(self._kept)
        return self._progress

    async def _keep(self, progress: LoopProgress) -> None:
        if progress.settled != self._kept:
            await run_sync(self.cursors.move_cursor, LISTEN_CURSOR, progress.settled)
            self._kept = progress.settled

    async def _spoken(self, row: TurnRow) -> SpokenMessage | None:
        """The message of a turn; None if no person wrote it, or if it repeats the session's last
        message.
        """
        async with self._guard.attempt(row.id) as may:
            spoken = await run_sync(self.messages.read, row) if may else None
        if spoken is None or self._said.get(spoken.session) == spoken.words.shown:
            return None
        self._said[spoken.session] = spoken.words.shown
        self._said.move_to_end(spoken.session)
        if len(self._said) > _MOST_SESSIONS:
            self._said.popitem(last=False)
        return spoken

    def _ask_those_due(self, asking: TaskGroup) -> None:
        """Start reading the oldest message of each person, so that their newest message decides."""
        passed_over, unreachable = set(self._busy), set[str]()
        for message in list(self._waiting):
            if len(self._busy) >= _MOST_READ_AT_ONCE:
                return
            person = scope_of_lesson(message.spoken.scope)
            if person in passed_over:
                if person in unreachable and not message.is_sure:
                    asking.start_soon(self._take_sure, message)
                continue
            passed_over.add(person)
            if message.again_at > self.now() or not self._health.admits(message.model):
                unreachable.add(person)
                if not message.is_sure:
                    asking.start_soon(self._take_sure, message)
            else:
                self._waiting.remove(message)
                self._busy[person] = message
                asking.start_soon(self._take, person, message)

    async def _take(self, person: str, message: _Waiting) -> None:
        """Have a message read; put it back into the queue if it must be read again."""
        is_done = True
        try:
            async with self._guard.attempt(message.spoken.turn) as may:
                is_done = not may or await self._handle(message)
        finally:
            self._busy.pop(person, None)
            self._health.release(message.model)
            if is_done:
                assert self._progress is not None
                self._progress.end(message.spoken.seq)
                self.read()
            else:
                self._waiting.appendleft(message)
            self.wakeup.notify()

    async def _handle(self, message: _Waiting) -> bool:
        """Have a message read and apply it; return False if it must be read again later."""
        spoken = message.spoken
        model = self.listener(spoken.provider, spoken.model)
        if model is None:
            await self._take_sure(message)
            if takes_back(spoken.words):
                await self.rules.announce_unread(spoken)
            return True
        if self.may_spend is not None:
            is_worth_reading = is_promising(spoken.words, is_answer=bool(spoken.answer))
            if not await self.may_spend(model.name, is_worth_reading):
                await self._take_sure(message)
                if is_worth_reading:
                    self._wait_for_budget(message)
                return not is_worth_reading
        try:
            understood = await self._ask(model, spoken)
        except StoreError:
            raise
        except JudgeError as error:
            return await self._not_understood(message, model, error)
        except BudgetError:
            await self._take_sure(message)
            self._wait_for_budget(message)
            return False
        except (MetaClawError, TimeoutError, OSError, ValueError) as error:
            reason = str(error) or f"no answer within {self.timeout_s:g} s"
            log.warning(
                "listener_unavailable model=%s turn=%s reason=%s", model.name, spoken.turn, reason
            )
            is_timeout = isinstance(error, TimeoutError) or (
                isinstance(error, UpstreamError) and error.code == TIMEOUT
            )
            self._health.record_failure(model.name, reason, is_costly=is_timeout)
            await self._take_sure(message)
            return False
        self._health.record_usable(model.name)
        await self.rules.apply(
            spoken,
            understood,
            LISTEN,
            self._interrupted.pop(spoken.turn, None),
            is_again=message.is_applied,
        )
        return True

    async def _not_understood(self, message: _Waiting, model: Model, error: JudgeError) -> bool:
        """Ask once more after an unusable answer, then give up; return whether the message is given
        up.
        """
        log.warning(
            "listener_answer_unusable model=%s turn=%s reason=%s",
            model.name,
            message.spoken.turn,
            error,
        )
        message.unreadable += 1
        if message.unreadable < _MOST_UNUSABLE_ANSWERS:
            return False
        self._health.record_unusable(model.name, str(error))
        await self._take_sure(message)
        return True

    def _model_name(self, spoken: SpokenMessage) -> str:
        model = self.listener(spoken.provider, spoken.model)
        return "" if model is None else model.name

    def _wait_for_budget(self, message: _Waiting) -> None:
        pause_s = _BUDGET_PAUSES_S[min(message.failures, len(_BUDGET_PAUSES_S) - 1)]
        message.failures += 1
        message.again_at = self.now() + pause_s

    async def _take_sure(self, message: _Waiting) -> None:
        """Apply the sure phrases of a message, once."""
        if not message.is_sure:
            message.is_sure = True
            sure = await run_sync(sure_rules, message.spoken.words)
            if sure.items:
                message.is_applied = True
                await self.rules.apply(
                    message.spoken, sure, PHRASES, self._interrupted.pop(message.spoken.turn, None)
                )

    async def _ask(self, model: Model, spoken: SpokenMessage) -> ReadMessage:
        today = self.today()
        request = await run_sync(
            lambda: build_request(*self._shown(spoken), self.rules.listed(spoken), today)
        )
        with anyio.fail_after(self.timeout_s):
            answer = await model.ask(request, Purpose.LISTEN)
        return read_answer(answer, today)

    def _shown(self, spoken: SpokenMessage) -> tuple[str, str]:
        """The message, and a line with the exchange before it, both without secrets. Blocks."""
        message = head_and_tail(self.redact(spoken.words.shown.strip()), _MESSAGE_CHARS)
        task, answer = (
            " ".join(self.redact(text).split()) for text in (spoken.task, spoken.answer)
        )
        if not answer:
            return message, ""
        task, answer = keep_ends(task, *_TASK_ENDS, " … "), keep_ends(answer, *_ANSWER_ENDS, " … ")
        return message, f'asked "{task}", the agent answered: {answer}'
