"""From recorded turns to steps: what was asked, what was answered, and what came after it.

What stands behind an answer in the next request is what came after it. Where the answer is not there at all (a compaction, a
message that was edited and sent again), it is what the next request has behind its last answer and this one did not have.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from metaclaw.domain.chat import ChatRequest, Message, Role, Text, Tool, ToolCall, ToolResult, Wire
from metaclaw.domain.ids import TurnId
from metaclaw.domain.step import Step
from metaclaw.domain.turn import Turn, TurnKind
from metaclaw.errors import UpstreamError, WireError
from metaclaw.learn.answer_position import Mark, ReadTurn, bare_id, place_behind, repeats, text_of, without_prefill
from metaclaw.store import RecordedTurn
from metaclaw.wires import decode_json, portable_tools, read_answer, said_parts, wire_format

_LOOK_AHEAD: Final = 64
_REMEMBERED: Final = 40


class StepBuilder:
    """Makes steps. `words` gives a person's own words in a user message: it is told the agent's name and the raw text."""

    def __init__(self, words: Callable[[str, str], str]) -> None:
        self._words = words
        self._lock = threading.Lock()
        self._recent: dict[TurnId, tuple[Turn, ReadTurn | None]] = {}

    def build(
        self, recorded: RecordedTurn, following: RecordedTurn | None, is_last: bool = False, previous: Step | None = None
    ) -> Step | None:
        """The step of a main turn; `following` is the next main turn of its session and thread. None for a turn that is not the
        agent at work, or whose request cannot be read."""
        mine = self._read(recorded.turn)
        if mine is None:
            return None
        return self._step(mine, self._read(following.turn) if following is not None else None, is_last, previous)

    def chain(self, turns: Sequence[RecordedTurn], *, is_ended: bool = False) -> list[Step]:
        """The steps of the thread that begins with the first of these turns of one session, in order.

        Turns that do not continue it (side turns, other threads of the session) are passed over.
        """
        steps: list[Step] = []
        mine = self._read(turns[0].turn) if turns else None
        at = 0
        while mine is not None:
            at, following = self._next(mine, turns, at)
            is_last = is_ended and following is None and not any(later.turn.kind is TurnKind.MAIN for later in turns[at + 1 :])
            steps.append(self._step(mine, following, is_last, steps[-1] if steps else None))
            mine = following
        return steps

    def following(self, turn: RecordedTurn, later: Sequence[RecordedTurn]) -> RecordedTurn | None:
        """Which of a session's later turns goes on where this one ended: the first that shows its answer; else the first that may
        do so without showing it."""
        mine = self._read(turn.turn)
        if mine is None:
            return None
        at, found = self._next(mine, (turn, *later), 0)
        return later[at - 1] if found is not None else None

    def own_words(self, agent: str, message: Message) -> str:
        """What a person says in a message; empty where nobody does."""
        if message.role is not Role.USER:
            return ""
        # Part by part: a client's reminder in one part must not swallow the person's words in the next.
        said = (self._words(agent, part.text).strip() for part in message.parts if isinstance(part, Text))
        return "\n".join(filter(None, said))

    def _next(self, mine: ReadTurn, turns: Sequence[RecordedTurn], at: int) -> tuple[int, ReadTurn | None]:
        weak: tuple[int, ReadTurn | None] = (at, None)
        for number in range(at + 1, min(at + 1 + _LOOK_AHEAD, len(turns))):
            later = self._read(turns[number].turn)
            if later is None:
                continue
            if place_behind(mine, later) is not None:
                return number, later
            if weak[1] is None and self._may_follow(mine, later) and not self._is_anothers(turns, at, number, later):
                weak = number, later
        return weak

    def _may_follow(self, mine: ReadTurn, later: ReadTurn) -> bool:
        """Whether a request without the answer may come after it all the same: its history was cut, compacted or edited."""
        if repeats(mine, later) or not later.asked:
            return False
        if not set(mine.asked).isdisjoint(later.asked):
            return True
        first, begins = _first_said(mine.request), _first_said(later.request)
        if first is None or begins is None:
            return False
        before, now = self.own_words(mine.turn.agent, first).split(), self.own_words(mine.turn.agent, begins).split()
        # A summary that a program wrote stands where the person's words stood; or these are still mostly the same.
        return (bool(before) and not now) or 2 * len({*before} & {*now}) > len({*before, *now})

    def _is_anothers(self, turns: Sequence[RecordedTurn], at: int, number: int, later: ReadTurn) -> bool:
        """Whether this turn goes on where some other turn than that at `at` ended."""
        others = (turns[place].turn for place in range(number - 1, max(-1, number - _LOOK_AHEAD), -1) if place != at)
        return any(other is not None and place_behind(other, later) is not None for other in map(self._read, others))

    def _step(self, mine: ReadTurn, following: ReadTurn | None, is_last: bool, previous: Step | None) -> Step:
        turn = mine.turn
        after = self._after(mine, following) if following is not None else ()
        said_after = "\n".join(filter(None, (self.own_words(turn.agent, message) for message in after)))
        tasks = [said for message in mine.request.messages if (said := self.own_words(turn.agent, message))]
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
            said_after=None if turn.is_hired else said_after or None,
            is_last=is_last,
            previous=previous,
            is_hired=turn.is_hired,
            is_drawn=bool(turn.draws),
        )

    def _after(self, mine: ReadTurn, following: ReadTurn) -> tuple[Message, ...]:
        """What the following request added behind this answer."""
        place = place_behind(mine, following)
        messages = without_prefill(following.request.messages)
        if place is not None:
            return messages[place:]
        known = {(), *mine.marks}
        last = max((at for at, message in enumerate(messages) if message.role is Role.ASSISTANT), default=-1)
        return tuple(messages[at] for at in range(last + 1, len(messages)) if following.marks[at] not in known)

    def _read(self, turn: Turn) -> ReadTurn | None:
        """A turn is asked about several times in a row, and again with the turn that follows it; to read it takes long."""
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
        """Let go of what is remembered of turns; for when some of them are to be forgotten."""
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
            return ReadTurn(turn, request, marks, said_parts(turn.wire, turn.stream, shown, partial=True), "")
        return ReadTurn(turn, request, marks, answer.parts, answer.id)

    def _mark(self, agent: str, message: Message) -> Mark:
        """What stays of a message from request to request: who speaks, the words, which calls and results it holds."""
        if message.role is Role.SYSTEM:
            return ()
        said = text_of(message.parts)
        if message.role is Role.USER:
            said = self.own_words(agent, message) or said
        calls = (f"call {bare_id(part.id)} {part.name}" for part in message.parts if isinstance(part, ToolCall))
        results = (f"result {bare_id(part.call_id)}" for part in message.parts if isinstance(part, ToolResult))
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
    """The request's messages; where the client left the earlier ones with the provider, they are taken from the step before."""
    if previous is None or not request.extra.get("previous_response_id"):
        return request.messages
    earlier = (*previous.history, Message(Role.ASSISTANT, previous.answer))
    if request.messages[:1] and request.messages[0].role is Role.SYSTEM:
        # Instructions are never carried over: those of the new request stand alone.
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
