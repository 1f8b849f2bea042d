"""The listening loop: a model reads each new message of a person, and the rules and facts it finds
are in force at once.

The messages of one person are read in order, those of different people concurrently. No message is
dropped: it waits for the budget and for the provider, and those of one person that waited are read
together. The cursor stays before the oldest unread message, so that a killed process reads it at
its next start. `ListenerHealth` says when a provider that failed is asked again. What a sure phrase
states is in force before any model is asked, and until both readings find no rule in it."""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import chain
from typing import Final

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from metaclaw.domain.chat import ChatRequest
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.turn import TurnKind
from metaclaw.errors import BudgetError, JudgeError, MetaClawError, StoreError, UpstreamError
from metaclaw.learn.models import ListenerHealth
from metaclaw.learn.rules import RuleWriter
from metaclaw.learn.second_opinion import UNREAD, SecondOpinion, ask_opinion, read_opinion
from metaclaw.learn.stated_rules import (
    MESSAGE_CHARS,
    PHRASES,
    Messages,
    ReadMessage,
    RuleItem,
    SpokenMessage,
    build_request,
    read_answer,
    sure_rules,
    takes_back,
)
from metaclaw.learn.supervision import (
    LISTEN_CURSOR,
    LISTENED,
    TURNS_CURSOR,
    AttemptLog,
    LoopProgress,
    LoopWakeup,
    RetryGuard,
)
from metaclaw.ports import Model, Purpose
from metaclaw.privacy import marked_message
from metaclaw.skills import plain_words
from metaclaw.store import LedgerReader, SqlCandidates, SqlCursors, TurnRow
from metaclaw.text import keep_ends
from metaclaw.upstream import TIMEOUT

log = logging.getLogger(__name__)

LISTEN: Final = "listen"
_ROWS_AT_ONCE: Final = 64
_MOST_READ_AT_ONCE: Final = 4
_BUDGET_PAUSES_S: Final = (2.0, 10.0, 60.0, 300.0, 900.0)
_MOST_UNUSABLE_ANSWERS: Final = 2
_NOT_UNDERSTOOD_PAUSES_S: Final = (600.0, 3_600.0, 86_400.0)
_UNREACHABLE_FAILURES: Final = 3
_MOST_WAITING: Final = 2_000
_SET_ASIDE: Final = "message of "
"""How the cursors are called that stand for messages which no model understood."""
_TASK_ENDS: Final = (80, 40)
_ANSWER_ENDS: Final = (173, 87)
_MOST_SESSIONS: Final = 2_000
_SHORT_PIECES: Final = 8
_LONG_PIECE_CHARS: Final = 4 * MESSAGE_CHARS
_PASTED_ENDS: Final = (2_000, 1_000)


@dataclass(slots=True)
class _Waiting:
    """A message that has not been read yet, and the name of the model that will read it, if any.
    `is_put_off` says that it waits for the budget. What was paid for is kept: the `pieces` that were
    read, `understood` and `opinions`."""

    spoken: SpokenMessage
    model: str
    failures: int = 0
    unreadable: int = 0
    again_at: float = 0.0
    is_put_off: bool = False
    is_done: bool = False
    pieces: list[ReadMessage] = field(default_factory=list)
    understood: ReadMessage | None = None
    opinions: dict[RuleItem, SecondOpinion] = field(default_factory=dict)


@dataclass(eq=False, kw_only=True)
class Listening:
    """Reads new turns from the ledger, has a model read their messages, and applies the result.
    `listener` returns the model that may read a conversation, given its provider and model.
    `read` is called when a message has been read."""

    reader: LedgerReader
    cursors: SqlCursors
    candidates: SqlCandidates
    messages: Messages
    rules: RuleWriter
    listener: Callable[[str, str], Model | None]
    timeout_s: float
    redact: Callable[[str], str]
    read: Callable[[], None]
    today: Callable[[], date]
    now: Callable[[], float]
    attempt_log: AttemptLog

    def __post_init__(self) -> None:
        self.wakeup = LoopWakeup()
        self._guard = RetryGuard("listening", self.attempt_log)
        self._health = ListenerHealth(lambda: self.now())
        self._progress: LoopProgress | None = None
        self._kept = 0
        self._newest: TurnId | None = None
        self._waiting: deque[_Waiting] = deque()
        self._not_understood: list[_Waiting] = []
        self._busy: dict[str, list[_Waiting]] = {}
        self._interrupted: dict[TurnId, int] = {}
        self._set_aside: set[TurnId] = set()
        self._said: OrderedDict[SessionId, str] = OrderedDict()

    def _unread(self) -> list[_Waiting]:
        return [*self._waiting, *chain.from_iterable(self._busy.values())]

    @property
    def reading(self) -> int:
        """The number of unread messages, without those whose model has failed several times in a
        row.
        """
        return sum(
            max(message.failures, self._health.failures(message.model)) < _UNREACHABLE_FAILURES
            for message in self._unread()
        )

    @property
    def put_off(self) -> int:
        """The number of messages that wait for the budget, or for one that does."""
        unread = self._unread()
        people = {one.spoken.person for one in unread if one.is_put_off}
        return sum(one.spoken.person in people for one in unread)

    @property
    def facts(self) -> Mapping[str, object]:
        """For `status`: whether messages are being read, and if not, why."""
        unread = len(self._unread()) + len(self._not_understood)
        return {**self._health.facts(unread), "put_off": self.put_off}

    @property
    def reached(self) -> int:
        """The last row of the ledger that was read."""
        return 0 if self._progress is None else self._progress.reached

    def is_unread(self, turn: TurnId) -> bool:
        """Whether the message of this turn is still to be read, and nothing says that this takes
        long.
        """
        if self._newest is None or turn > self._newest:
            return True
        return any(message.spoken.turn == turn for message in self._unread())

    def prepare(self) -> None:
        """At the first start, skip the turns that have verdicts already. Blocks; call it before any
        loop runs.
        """
        if not self.cursors.has_cursor(LISTEN_CURSOR):
            self.cursors.move_cursor(LISTEN_CURSOR, self.cursors.cursor(TURNS_CURSOR))

    async def run(self) -> None:
        """Run until cancelled."""
        self._progress = None
        async with anyio.create_task_group() as asking:
            while True:
                found = await self.poll(asking)
                if found < _ROWS_AT_ONCE:
                    is_empty = not (found or self._waiting or self._busy)
                    await self.wakeup.wait_after(is_empty=is_empty)

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
            await run_sync(self.rules.library.follow)
        for row in rows:
            spoken = await self._spoken(row) if row.kind is TurnKind.MAIN else None
            if spoken is not None:
                progress.begin(row.seq)
                self._waiting.append(_Waiting(spoken, self._model_name(spoken)))
                await self._take_sure(spoken)
            progress.reach(row.seq)
            self._newest = row.id
        self._retry_not_understood()
        self._ask_those_due(asking)
        await self._keep(progress)
        return len(rows)

    async def _begin(self) -> LoopProgress:
        self._waiting.clear()
        self._not_understood.clear()
        self._set_aside.clear()
        self._busy.clear()
        self._said.clear()  # what the loop had begun when it failed is no repetition
        self._kept = await run_sync(self.cursors.cursor, LISTEN_CURSOR)
        interrupted = await run_sync(self.candidates.interrupted)
        listened = (attempt for attempt in interrupted if attempt.kind == LISTENED)
        self._interrupted = {
            turn: attempt.number for attempt in listened for turn in attempt.turns[-1:]
        }
        for name in await run_sync(self.cursors.cursor_names, _SET_ASIDE):
            turn = TurnId(name.removeprefix(_SET_ASIDE))
            spoken = await run_sync(self.messages.of, turn)
            if spoken is None:  # it was forgotten
                await run_sync(self.cursors.drop_cursor, name)
            else:
                self._set_aside.add(turn)
                self._not_understood.append(_Waiting(spoken, ""))
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
        if spoken is None or self._said.get(spoken.session) == spoken.own:
            return None
        self._said[spoken.session] = spoken.own
        self._said.move_to_end(spoken.session)
        if len(self._said) > _MOST_SESSIONS:
            self._said.popitem(last=False)
        return spoken

    def _ask_those_due(self, asking: TaskGroup) -> None:
        """Start reading the oldest message of each person, so that their newest message decides."""
        passed_over = set(self._busy)
        for message in list(self._waiting):
            if len(self._busy) >= _MOST_READ_AT_ONCE:
                return
            person = message.spoken.person
            if person in passed_over:
                continue
            passed_over.add(person)
            if message.again_at <= self.now() and self._health.admits(message.model):
                group = self._with_those_put_off(message, person)
                self._busy[person] = group
                asking.start_soon(self._take, person, group)

    def _with_those_put_off(self, message: _Waiting, person: str) -> list[_Waiting]:
        """The message, out of the queue; if it waited for the budget, with the later ones of its
        person that fit into one call.
        """
        group, chars = [message], len(message.spoken.text)
        for other in list(self._waiting):
            if (
                other is not message
                and message.is_put_off
                and message.failures % 2 == 1  # else alone, in case several do not fit the budget
                and other.model == message.model
                and other.spoken.person == person
            ):
                chars += len(other.spoken.text)
                if chars > MESSAGE_CHARS:
                    break
                group.append(other)
        for one in group:
            self._waiting.remove(one)
        return group

    async def _take(self, person: str, group: list[_Waiting]) -> None:
        """Have messages read; put them back into the queue if they must be read again."""
        try:
            async with self._guard.attempt(group[0].spoken.turn) as may:
                if may:
                    await self._handle(group)
                else:
                    group[0].is_done = True
        finally:
            self._busy.pop(person, None)
            self._health.release(group[0].model)
            assert self._progress is not None
            for message in reversed(group):
                if message.is_done:
                    self._progress.end(message.spoken.seq)
                elif message.unreadable < _MOST_UNUSABLE_ANSWERS:
                    self._waiting.appendleft(message)
            if any(message.is_done for message in group):
                self.read()
            self.wakeup.notify()

    async def _handle(self, group: list[_Waiting]) -> None:
        """Have messages read and apply them; those that must be read again later are not done."""
        newest = group[-1].spoken
        model = self.listener(newest.provider, newest.model)
        try:
            if model is not None:
                await self._ask(model, [one for one in group if one.understood is None])
            for message in group:
                await self._apply(model, message)
                await self._take_up(message.spoken.turn)
                message.is_done = True
        except StoreError:
            raise
        except JudgeError as error:
            assert model is not None
            await self._record_unusable(group, model, error)
        except BudgetError:
            self._wait_for_budget(group)
        except (MetaClawError, TimeoutError, OSError, ValueError) as error:
            assert model is not None
            reason = str(error) or f"no answer within {self.timeout_s:g} s"
            log.warning(
                "listener_unavailable model=%s turn=%s reason=%s", model.name, newest.turn, reason
            )
            is_timeout = isinstance(error, TimeoutError) or (
                isinstance(error, UpstreamError) and error.code == TIMEOUT
            )
            self._health.record_failure(model.name, reason, is_costly=is_timeout)

    async def _apply(self, model: Model | None, message: _Waiting) -> None:
        """Apply what was understood of a message; without a model, say that nobody read it."""
        spoken = message.spoken
        if model is None or message.understood is None:
            if takes_back(spoken.own):
                await self.rules.announce_unread(spoken)
            return
        await self._give_opinions(model, message, message.understood)
        self._health.record_usable(model.name)
        attempt = self._interrupted.pop(spoken.turn, None)
        await self.rules.apply(spoken, message.understood, LISTEN, attempt, message.opinions)
        await self.rules.name_skills(spoken, message.understood.skills)

    async def _record_unusable(
        self, group: list[_Waiting], model: Model, error: JudgeError
    ) -> None:
        """Ask once more after an unusable answer, then let the message wait, and others go first.
        Several messages are read one by one.
        """
        first = group[0]
        log.warning(
            "listener_answer_unusable model=%s turn=%s reason=%s",
            model.name,
            first.spoken.turn,
            error,
        )
        if len(group) > 1:
            for message in group:
                message.is_put_off = False
            return
        first.unreadable += 1
        if first.unreadable >= _MOST_UNUSABLE_ANSWERS:
            self._health.record_unusable(model.name, str(error))
            await self._put_aside(first, model.name)

    async def _put_aside(self, message: _Waiting, model: str) -> None:
        """Let a message wait that a model does not understand, also over a restart: a cursor of
        its own stands for it, so that the cursor of the loop can move on."""
        assert self._progress is not None
        spoken = message.spoken
        pause = min(message.failures, len(_NOT_UNDERSTOOD_PAUSES_S) - 1)
        message.again_at = self.now() + _NOT_UNDERSTOOD_PAUSES_S[pause]
        message.failures += 1
        message.model = model
        self._not_understood.append(message)
        if spoken.turn not in self._set_aside:
            await run_sync(self.cursors.move_cursor, _SET_ASIDE + spoken.turn, spoken.seq)
            self._set_aside.add(spoken.turn)
        # Its turn must not train weights before it is understood.
        if spoken.turn not in self._interrupted and (
            number := await self.rules.claim([spoken.turn])
        ):
            self._interrupted[spoken.turn] = number
        self._progress.end(spoken.seq)

    async def _take_up(self, turn: TurnId) -> None:
        """Remove what stands for a message that was set aside."""
        if turn in self._set_aside:
            await run_sync(self.cursors.drop_cursor, _SET_ASIDE + turn)
            self._set_aside.remove(turn)

    def _retry_not_understood(self) -> None:
        """Ask again about a message that no model understood: another model at once, the same one
        after a pause. One at a time, and only a model that gives usable answers."""
        if any(message.unreadable for message in self._unread()):
            return
        for message in self._not_understood:
            model = self._model_name(message.spoken)
            is_due = message.again_at <= self.now() or model != message.model
            if model and is_due and self._health.is_usable(model):
                self._not_understood.remove(message)
                message.model, message.again_at = model, 0.0
                message.unreadable = _MOST_UNUSABLE_ANSWERS - 1
                self._waiting.appendleft(message)
                return

    def _model_name(self, spoken: SpokenMessage) -> str:
        model = self.listener(spoken.provider, spoken.model)
        return "" if model is None else model.name

    def _wait_for_budget(self, group: list[_Waiting]) -> None:
        first = next(message for message in group if not message.is_done)
        pause_s = _BUDGET_PAUSES_S[min(first.failures, len(_BUDGET_PAUSES_S) - 1)]
        first.failures += 1
        first.again_at = self.now() + pause_s
        for message in group:
            message.is_put_off = True

    async def _take_sure(self, spoken: SpokenMessage) -> None:
        """Put in force what the sure phrases of a message state."""
        sure = await run_sync(sure_rules, spoken.own)
        if sure.items:
            attempt = self._interrupted.pop(spoken.turn, None)
            await self.rules.apply(spoken, sure, PHRASES, attempt)

    async def _ask(self, model: Model, group: Sequence[_Waiting]) -> None:
        """Have messages of one person read: a long one in pieces, several in one call."""
        if not group:
            return
        rules = await run_sync(self.rules.listed, group[-1].spoken)
        marked = [await run_sync(self._marked, one.spoken) for one in group]
        pasted = keep_ends(
            "\n".join(block for _, blocks in marked for block in blocks), *_PASTED_ENDS
        )
        if len(group) == 1:
            spoken = group[0].spoken
            answers = await run_sync(self._exchange, spoken)
            skills = await run_sync(self.rules.skills_for, spoken) if spoken.listed else ()
            channel, read = spoken.scope.channel, group[0].pieces
            for piece in _pieces(marked[0][0])[len(read) :]:
                request = build_request(
                    piece, pasted, answers, rules, self.today(), channel, skills
                )
                read.append(await self._read_answer(model, request))
            correction = next((part.correction for part in read if part.correction), None)
            items = tuple(item for part in read for item in part.items)
            named = tuple(name for part in read for name in part.skills)
            group[0].understood = ReadMessage(items, correction, named)
            return
        together = "\n\n".join(_numbered([text for text, _ in marked]))
        request = build_request(together, pasted, "", rules, self.today())
        items = (await self._read_answer(model, request)).items
        # Each item goes to the newest message with its quote. It is not known which of the answers
        # a correction is about.
        texts = [plain_words(self.redact(one.spoken.text)) for one in group]
        places = [_newest_with(plain_words(item.quote or item.text), texts) for item in items]
        for place, one in enumerate(group):
            mine = (item for item, found in zip(items, places, strict=True) if found == place)
            one.understood = ReadMessage(tuple(mine), None)

    async def _read_answer(self, model: Model, request: ChatRequest) -> ReadMessage:
        with anyio.fail_after(self.timeout_s):
            return read_answer(await model.ask(request, Purpose.LISTEN), self.today())

    async def _give_opinions(
        self, model: Model, message: _Waiting, understood: ReadMessage
    ) -> None:
        """Get a second opinion on each item that would change what is in force, and on each sure
        phrase in which the reader found nothing."""
        await run_sync(self.rules.library.follow)
        doubtful = await run_sync(self.rules.doubtful, message.spoken, understood.items)
        passed_over = await run_sync(self.rules.passed_over, message.spoken, understood.items)
        for item in (*doubtful, *passed_over):
            if item not in message.opinions:
                message.opinions[item] = await self._opinion(model, message.spoken, item)

    async def _opinion(self, model: Model, spoken: SpokenMessage, item: RuleItem) -> SecondOpinion:
        near = await run_sync(self.rules.near, spoken, item)
        text, pasted = await run_sync(self._marked, spoken)
        answers = await run_sync(self._exchange, spoken)
        request = ask_opinion(item, text, "\n".join(pasted), answers, near)
        for _ in range(_MOST_UNUSABLE_ANSWERS):
            try:
                with anyio.fail_after(self.timeout_s):
                    return read_opinion(await model.ask(request, Purpose.CONFIRM))
            except JudgeError as error:
                log.warning("opinion_unusable model=%s reason=%s", model.name, error)
        return UNREAD

    def _marked(self, spoken: SpokenMessage) -> tuple[str, list[str]]:
        """The message without secrets, and the blocks in it that are not the person's words.
        Blocks."""
        return marked_message(self.redact(spoken.text.strip()), MESSAGE_CHARS)

    def _exchange(self, spoken: SpokenMessage) -> str:
        """A line with the exchange before the message, without secrets. Blocks."""
        task, answer = (
            " ".join(self.redact(text).split()) for text in (spoken.task, spoken.answer)
        )
        if not answer:
            return ""
        task, answer = keep_ends(task, *_TASK_ENDS, " … "), keep_ends(answer, *_ANSWER_ENDS, " … ")
        return f'asked "{task}", the agent answered: {answer}'


def _pieces(text: str) -> list[str]:
    """A message in pieces that fit into one call; those of a very long one are longer."""
    most = MESSAGE_CHARS if len(text) <= _SHORT_PIECES * MESSAGE_CHARS else _LONG_PIECE_CHARS
    pieces: list[str] = []
    while len(text) > most:
        cut = text.rfind("\n", most // 2, most) + 1 or most
        pieces.append(text[:cut])
        text = text[cut:]
    return [*pieces, text]


def _numbered(texts: Sequence[str]) -> Iterator[str]:
    for number, text in enumerate(texts, 1):
        yield f"-- message {number} of {len(texts)} --\n{text}"


def _newest_with(words: str, texts: Sequence[str]) -> int:
    """The place of the newest text with these words, or of the newest."""
    return max((place for place, text in enumerate(texts) if words in text), default=len(texts) - 1)
