"""Steps from recorded turns: the request, the answer, and the messages that followed it.

The messages after the answer in the next request followed it. If the next request does not contain
the answer (after a compaction, or if a message was edited and sent again), those that followed are
the new messages after the last answer in it."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from metaclaw.domain.chat import (
    ChatRequest,
    Message,
    Part,
    Role,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Wire,
    text_of,
)
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.turn import Step, Turn, TurnKind
from metaclaw.errors import UpstreamError, WireError
from metaclaw.outcome import bare_call_id
from metaclaw.store import LedgerReader, RecordedTurn
from metaclaw.wires import decode_json, portable_tools, read_answer, said_parts, wire_format

Mark: TypeAlias = tuple[str, ...]
"""The part of a message that is the same in later requests; empty for system text, which may
change.
"""

_LOOK_AHEAD: Final = 64
_REMEMBERED: Final = 40
_MOST_LATER: Final = 6
_LOOK_BACK: Final = 12


@dataclass(frozen=True, slots=True)
class ReadTurn:
    """A main turn whose request could be read, and the marks of the request's messages."""

    turn: Turn
    request: ChatRequest
    marks: tuple[Mark, ...]
    answer: tuple[Part, ...]
    answer_id: str

    @property
    def asked(self) -> list[Mark]:
        """The marks of all messages except system text."""
        return [mark for mark in self.marks if mark]


def without_prefill(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages without a prefill: the beginning of an answer that some clients put last for the
    model to continue.
    """
    end = len(messages)
    while end and messages[end - 1].role is Role.ASSISTANT:
        end -= 1
    return messages[:end]


def _answers(messages: Sequence[Message]) -> list[tuple[int, int]]:
    """The positions of the answers: each is a run of assistant messages, as (begin, end)."""
    runs: list[tuple[int, int]] = []
    for at, message in enumerate(messages):
        if message.role is not Role.ASSISTANT:
            continue
        if runs and runs[-1][1] == at:
            runs[-1] = (runs[-1][0], at + 1)
        else:
            runs.append((at, at + 1))
    return runs


def place_behind(turn: ReadTurn, following: ReadTurn) -> int | None:
    """The position in the following request after this answer; None if the answer is not in it."""
    messages = following.request.messages
    if turn.answer_id and following.request.extra.get("previous_response_id") == turn.answer_id:
        return 1 if messages and messages[0].role is Role.SYSTEM else 0
    runs = _answers(messages)
    expected = _expected(turn, following)
    if expected is not None:
        return next(
            (
                end
                for begin, end in runs
                if begin == expected and _is_in_place(turn, messages[begin:end])
            ),
            None,
        )
    ends = [end for begin, end in runs if _is_same(turn, messages[begin:end])]
    asked = turn.request.messages
    # An earlier answer may have the same text ("Done."): then the text must occur once more than
    # before.
    before = sum(1 for begin, end in _answers(asked) if _is_same(turn, asked[begin:end]))
    return ends[-1] if len(ends) > before else None


def _expected(turn: ReadTurn, following: ReadTurn) -> int | None:
    """The position that the answer must have if the following request begins with this whole
    request; else None.
    """
    asked = [mark for mark in turn.marks[: len(without_prefill(turn.request.messages))] if mark]
    at = 0
    for number, mark in enumerate(following.marks):
        if not mark:
            continue
        if at == len(asked):
            return number
        if mark != asked[at]:
            return None
        at += 1
    return None


def repeats(mine: ReadTurn, other: ReadTurn) -> bool:
    """Whether the other request is a retry, or has only messages of this request."""
    again = other.asked
    return other.turn.retry_of == mine.turn.id or again == mine.asked[: len(again)]


def _is_same(turn: ReadTurn, run: Sequence[Message]) -> bool:
    """Whether this run of assistant messages is the answer, at any position."""
    parts = [part for message in run for part in message.parts]
    calls, shown = _calls(turn.answer), _calls(parts)
    if calls or shown:
        return bool(
            {bare_call_id(call.id) for call in calls} & {bare_call_id(call.id) for call in shown}
        )
    said = _squeezed(text_of(turn.answer))
    return bool(said) and said == _squeezed(text_of(parts))


def _is_in_place(turn: ReadTurn, run: Sequence[Message]) -> bool:
    """Whether a run at the position of the answer is the answer; clients may change ids, cut it, or
    put a prefill in front.
    """
    if _is_same(turn, run):
        return True
    parts = [part for message in run for part in message.parts]
    if [call.name for call in _calls(turn.answer)] != [call.name for call in _calls(parts)]:
        return False
    said, shown = _squeezed(text_of(turn.answer)), _squeezed(text_of(parts))
    return (
        bool(_calls(parts))
        or not said
        or shown.endswith(said)
        or shown.startswith(said)
        or said.startswith(shown)
    )


def _calls(parts: Sequence[Part]) -> list[ToolCall]:
    return [part for part in parts if isinstance(part, ToolCall)]


def _squeezed(text: str) -> str:
    return "".join(text.split())


class StepBuilder:
    """Builds steps. `words` returns a person's own words, given the agent's name and the text of a
    user message.
    """

    def __init__(self, words: Callable[[str, str], str]) -> None:
        self._words = words
        self._lock = threading.Lock()
        self._recent: dict[TurnId, tuple[Turn, ReadTurn | None]] = {}

    def build(
        self,
        recorded: RecordedTurn,
        following: RecordedTurn | None,
        is_last: bool = False,
        previous: Step | None = None,
    ) -> Step | None:
        """The step of a main turn; `following` is the next main turn of its session and thread.
        None for other turns, and if the request cannot be read."""
        mine = self._read(recorded.turn)
        if mine is None:
            return None
        return self._step(
            mine, self._read(following.turn) if following is not None else None, is_last, previous
        )

    def chain(self, turns: Sequence[RecordedTurn], *, is_ended: bool = False) -> list[Step]:
        """The steps of the thread that begins with the first of these turns of one session, in
        order.

        Turns that do not continue it (side turns, other threads of the session) are passed over.
        """
        steps: list[Step] = []
        mine = self._read(turns[0].turn) if turns else None
        at = 0
        while mine is not None:
            at, following = self._next(mine, turns, at)
            is_last = (
                is_ended
                and following is None
                and not any(later.turn.kind is TurnKind.MAIN for later in turns[at + 1 :])
            )
            steps.append(self._step(mine, following, is_last, steps[-1] if steps else None))
            mine = following
        return steps

    def following(self, turn: RecordedTurn, later: Sequence[RecordedTurn]) -> RecordedTurn | None:
        """The later turn of the session that continues this one: the first whose request contains
        its answer, else the first that may continue it without its answer."""
        mine = self._read(turn.turn)
        if mine is None:
            return None
        at, following = self._next(mine, (turn, *later), 0)
        return later[at - 1] if following is not None else None

    def own_words(self, agent: str, message: Message) -> str:
        """A person's own words in a message, or an empty string."""
        if message.role is not Role.USER:
            return ""
        # Part by part, so that a client's reminder in one part does not hide the person's words in
        # the next.
        said = (
            self._words(agent, part.text).strip()
            for part in message.parts
            if isinstance(part, Text)
        )
        return "\n".join(filter(None, said))

    def with_own_words(self, agent: str, message: Message) -> Message:
        """A user's message without the texts that the client added."""
        if message.role is not Role.USER:
            return message
        said = self.own_words(agent, message)
        others = tuple(part for part in message.parts if not isinstance(part, Text))
        return replace(message, parts=(*others, Text(said)) if said else others)

    def _next(
        self, turn: ReadTurn, turns: Sequence[RecordedTurn], at: int
    ) -> tuple[int, ReadTurn | None]:
        weak: tuple[int, ReadTurn | None] = (at, None)
        for number in range(at + 1, min(at + 1 + _LOOK_AHEAD, len(turns))):
            later = self._read(turns[number].turn)
            if later is None:
                continue
            if place_behind(turn, later) is not None:
                return number, later
            if (
                weak[1] is None
                and self._may_follow(turn, later)
                and not self._is_anothers(turns, at, number, later)
            ):
                weak = number, later
        return weak

    def _may_follow(self, turn: ReadTurn, later: ReadTurn) -> bool:
        """Whether a request without the answer may still follow it: its history may be cut,
        compacted or edited.
        """
        if repeats(turn, later) or not later.asked:
            return False
        if not set(turn.asked).isdisjoint(later.asked):
            return True
        first, begins = _first_said(turn.request), _first_said(later.request)
        if first is None or begins is None:
            return False
        before, now = (
            self.own_words(turn.turn.agent, first).split(),
            self.own_words(turn.turn.agent, begins).split(),
        )
        # The first message is a summary that a program wrote, or mostly the same words of the
        # person.
        return (bool(before) and not now) or 2 * len({*before} & {*now}) > len({*before, *now})

    def _is_anothers(
        self, turns: Sequence[RecordedTurn], at: int, number: int, later: ReadTurn
    ) -> bool:
        """Whether the turn `later` continues another turn than the turn at `at`."""
        others = (
            turns[place].turn
            for place in range(number - 1, max(-1, number - _LOOK_AHEAD), -1)
            if place != at
        )
        return any(
            other is not None and place_behind(other, later) is not None
            for other in map(self._read, others)
        )

    def _step(
        self, mine: ReadTurn, following: ReadTurn | None, is_last: bool, previous: Step | None
    ) -> Step:
        turn = mine.turn
        after = self._after(mine, following) if following is not None else ()
        said_after = "\n".join(
            filter(None, (self.own_words(turn.agent, message) for message in after))
        )
        tasks = [
            said
            for message in mine.request.messages
            if (said := self.own_words(turn.agent, message))
        ]
        earlier = previous.task if previous is not None else ""
        return Step(
            turn=turn.id,
            session=turn.session,
            scope=turn.scope,
            stamp=turn.stamp,
            model=turn.model,
            task=tasks[-1] if tasks else earlier,
            history=_history(mine.request, previous),
            tools=_tools(mine.request),
            answer=mine.answer,
            end=turn.end,
            finish=turn.finish,
            after=after,
            said_after=None if turn.is_subagent else said_after or None,
            is_last=is_last,
            previous=previous,
            is_subagent=turn.is_subagent,
            provider=turn.provider,
        )

    def _after(self, turn: ReadTurn, following: ReadTurn) -> tuple[Message, ...]:
        """Messages that the following request added after this answer."""
        place = place_behind(turn, following)
        messages = without_prefill(following.request.messages)
        if place is not None:
            return messages[place:]
        known = {(), *turn.marks}
        last = max(
            (at for at, message in enumerate(messages) if message.role is Role.ASSISTANT),
            default=-1,
        )
        return tuple(
            messages[at]
            for at in range(last + 1, len(messages))
            if following.marks[at] not in known
        )

    def _read(self, turn: Turn) -> ReadTurn | None:
        """The parsed turn. Cached, because parsing is slow and a turn is read several times in a
        row.
        """
        with self._lock:
            known = self._recent.get(turn.id)
        if known is not None and known[0] == turn:
            return known[1]
        read = self._parse(turn)
        with self._lock:
            self._recent.pop(turn.id, None)
            self._recent[turn.id] = turn, read
            while len(self._recent) > _REMEMBERED:
                del self._recent[next(iter(self._recent))]
        return read

    def forget(self) -> None:
        """Drop the cached turns, because a session is to be forgotten."""
        with self._lock:
            self._recent.clear()

    def _parse(self, turn: Turn) -> ReadTurn | None:
        if turn.kind is not TurnKind.MAIN:
            return None
        try:
            request = read_request(turn.wire, turn.exchange.request)
        except WireError:
            return None
        marks = tuple(self._mark(turn.agent, message) for message in request.messages)
        shown = turn.exchange.shown
        try:
            answer = read_answer(turn.wire, turn.stream, shown)
        except UpstreamError:
            return ReadTurn(
                turn, request, marks, said_parts(turn.wire, turn.stream, shown, partial=True), ""
            )
        return ReadTurn(turn, request, marks, answer.parts, answer.id)

    def _mark(self, agent: str, message: Message) -> Mark:
        """The part of a message that is the same in later requests: its role, words, calls and
        results.
        """
        if message.role is Role.SYSTEM:
            return ()
        said = text_of(message.parts)
        if message.role is Role.USER:
            said = self.own_words(agent, message) or said
        calls = (
            f"call {bare_call_id(part.id)} {part.name}"
            for part in message.parts
            if isinstance(part, ToolCall)
        )
        results = (
            f"result {bare_call_id(part.call_id)}"
            for part in message.parts
            if isinstance(part, ToolResult)
        )
        return (str(message.role), " ".join(said.split()), *calls, *results)


def read_request(wire: Wire, body: bytes) -> ChatRequest:
    """The request in these bytes. Raises WireError."""
    try:
        value = decode_json(body)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise WireError("the body is not a JSON object")
    return wire_format(wire).parse_request(value)


def _history(request: ChatRequest, previous: Step | None) -> tuple[Message, ...]:
    """The request's messages; if the provider stores the earlier ones, they are taken from the step
    before.
    """
    if previous is None or not request.extra.get("previous_response_id"):
        return request.messages
    earlier = (*previous.history, Message(Role.ASSISTANT, previous.answer))
    if request.messages[:1] and request.messages[0].role is Role.SYSTEM:
        # The new request's instructions replace the earlier ones.
        spoken = earlier[1:] if earlier[0].role is Role.SYSTEM and not earlier[0].extra else earlier
        return (request.messages[0], *spoken, *request.messages[1:])
    return (*earlier, *request.messages)


def _tools(request: ChatRequest) -> tuple[Tool, ...]:
    try:
        return portable_tools(request)
    except WireError:
        return tuple(tool for tool in request.tools if isinstance(tool, Tool))


def _first_said(request: ChatRequest) -> Message | None:
    return next((message for message in request.messages if message.role is not Role.SYSTEM), None)


@dataclass(frozen=True, slots=True)
class StepWithNext:
    """A step, and the turn that continues it, if any."""

    step: Step
    followed_by: TurnId | None


@dataclass(eq=False)
class RecordedSteps:
    """Reads steps from the ledger. Blocks."""

    reader: LedgerReader
    builder: StepBuilder

    def step(self, turn: TurnId) -> Step | None:
        """The step of a main turn; None if there is no such turn, or if its request cannot be
        read.
        """
        found = self.with_following(turn)
        return None if found is None else found.step

    def with_following(self, turn: TurnId) -> StepWithNext | None:
        """The step of a main turn, and the turn that continues it."""
        recorded = self.reader.turn(turn)
        if recorded is None:
            return None
        following = self._following(recorded)
        session = self.reader.session(recorded.turn.session)
        is_ended = session is not None and session.ended_at is not None
        step = self.build(recorded, following, is_last=is_ended and following is None)
        return (
            None
            if step is None
            else StepWithNext(step, None if following is None else following.turn.id)
        )

    def alone(self, turn: TurnId) -> Step | None:
        """The step of a turn without what followed it."""
        recorded = self.reader.turn(turn)
        return None if recorded is None else self.build(recorded, None)

    def session_of(self, turn: TurnId) -> tuple[Step, tuple[Message, ...]] | None:
        """The step of a turn, and the conversation up to its answer, with only the person's own
        words of the user's messages.
        """
        recorded = self.reader.turn(turn)
        step = None if recorded is None else self.build(recorded, None)
        if recorded is None or step is None:
            return None
        agent = recorded.turn.agent
        spoken = tuple(self.builder.with_own_words(agent, message) for message in step.history)
        return step, (*spoken, Message(Role.ASSISTANT, step.answer))

    def conversation(self, session: SessionId) -> tuple[Step, tuple[Message, ...]] | None:
        """As `session_of`, up to the last main turn of a session; None for a sub-agent's."""
        last = self.reader.last_main_turn(session)
        read = None if last is None else self.session_of(last.id)
        return None if read is None or read[0].is_subagent else read

    def build(
        self, recorded: RecordedTurn, following: RecordedTurn | None, *, is_last: bool = False
    ) -> Step | None:
        """The step of a turn whose following turn is known. If the request has no task, because the
        provider stores the conversation, the turns before it are read, too."""
        step = self.builder.build(recorded, following, is_last)
        if step is None or step.task or recorded.turn.wire is not Wire.RESPONSES:
            return step
        before = self._before(recorded)
        return step if before is None else self.builder.build(recorded, following, is_last, before)

    def _following(self, recorded: RecordedTurn) -> RecordedTurn | None:
        """The turn that continues this one. Turns of other threads and retries are skipped."""
        later: list[RecordedTurn] = []
        row = self.reader.next_main_turn(recorded.turn.session, recorded.seq)
        while row is not None and len(later) < _MOST_LATER:
            turn = self.reader.turn(row.id)
            if turn is not None:
                later.append(turn)
                if (following := self.builder.following(recorded, later)) is not None:
                    return following
            row = self.reader.next_main_turn(recorded.turn.session, row.seq)
        return None

    def _before(self, recorded: RecordedTurn) -> Step | None:
        rows = self.reader.main_turns_before(recorded.turn.session, recorded.seq, _LOOK_BACK)
        earlier = [turn for row in reversed(rows) if (turn := self.reader.turn(row.id)) is not None]
        for at in range(len(earlier)):
            chain = self.builder.chain([*earlier[at:], recorded])
            if chain and chain[-1].turn == recorded.turn.id:
                return chain[-1].previous
        return None


def without_bodies(step: Step) -> Step:
    """The step without its long texts: enough to compare it with others."""
    return replace(step, history=(), tools=(), after=(), answer=(), previous=None)
