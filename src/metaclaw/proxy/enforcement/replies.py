"""How an answer under held rules is received and shown: text at once, calls only when the rules
allow it.

The first answer is relayed if it is in the client's wire; every other answer is rendered, as events
of a stream (`StreamedReply`) or as one body (`WholeReply`)."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from metaclaw.domain.chat import (
    Begin,
    ChatRequest,
    Completion,
    Delta,
    End,
    Failed,
    Finish,
    Part,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    Wire,
)
from metaclaw.errors import UpstreamError, WireError
from metaclaw.proxy.enforcement.attempts import Attempt, calls_of
from metaclaw.proxy.http.client import Client, RawHeaders
from metaclaw.proxy.response import (
    JSON_HEADERS,
    SSE_HEADERS,
    GeneratedAnswer,
    OpenedAnswer,
    RelayedAnswer,
    TurnBuilder,
    broken_off,
    each,
    linger,
    provider_deltas,
    raw_headers,
    relay,
    send_whole,
    settle_relayed,
)
from metaclaw.upstream import pour
from metaclaw.wires import (
    CallHold,
    Facts,
    HeldCall,
    StreamWriter,
    TailHold,
    collect,
    deltas_of,
    has_call_mark,
    read_answer,
    streamed_calls,
    streamed_facts,
    whole_calls,
    wire_format,
)

log = logging.getLogger(__name__)

_BREAK: Final = "\n\n"
_HEAD_WAIT_S: Final = 5.0
"""How long the response head waits for the first text, so that its header fields can name the rules
that held.
"""


@dataclass(slots=True)
class StreamedReply:
    """Events for the client. The head waits for the first text."""

    builder: TurnBuilder
    client: Client
    headers: RawHeaders = field(default_factory=lambda: [*SSE_HEADERS])
    status: int = 200
    writer: StreamWriter = field(init=False)
    has_begun: bool = False
    has_text: bool = False
    """Whether the client has been sent text of the answer."""
    shown_calls: dict[int, int] = field(default_factory=dict)
    """The calls that the client has been sent already, with the length of their arguments."""
    _waiting: list[Delta] = field(default_factory=list)
    """The deltas of this attempt from its first call on, which wait to be judged. If only tools of
    ours are held, from the first call of one of these on."""
    _unsent: list[bytes] = field(default_factory=list)
    _timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def send(self, data: bytes, *, now: bool = False) -> bool:
        """Send events; they are buffered until `now` or the timer sends the head, which names the
        rules that held. False if the client reads too slowly.
        """
        if self.client.started:
            return self.client.send(data) if data else True
        if data:
            self._unsent.append(data)
        if now or (data and not self.builder.held):
            self._start()
        elif self._timer is None and data:
            self._timer = asyncio.get_running_loop().call_later(_HEAD_WAIT_S, self._start)
        return True

    def _start(self) -> None:
        if not self.client.started:
            self.client.start(self.status, self.headers + self.builder.headers())
            if self._unsent:
                self.client.send(b"".join(self._unsent))

    async def receive(self, deltas: AsyncIterator[Delta]) -> Completion:
        """Send text at once and keep what must wait, in order. Raises UpstreamError if the answer
        fails or ends too early.
        """
        builder, received = self.builder, list[Delta]()
        is_ordered = wire_format(builder.incoming.wire).is_ordered
        needs_break, self._waiting, self.shown_calls = self.has_text, [], {}
        tools = builder.skill_tools
        async for delta in deltas:
            received.append(delta)
            match delta:
                case Begin():
                    if not self.has_begun:
                        self.has_begun = True
                        builder.answer_id, builder.model = delta.id, delta.model or builder.model
                        await self._say(delta, now=False)
                    continue
                case End() | Failed():
                    return collect(received)
                case ToolCallDelta():
                    is_ours = bool(builder.held) or delta.name in tools.names
                    must_wait = is_ours or bool(self._waiting)
                    if not must_wait:
                        shown = self.shown_calls.get(delta.index, 0)
                        self.shown_calls[delta.index] = shown + len(delta.arguments)
                case _:
                    must_wait = bool(self._waiting) and (
                        is_ordered or not isinstance(delta, TextDelta)
                    )
            if must_wait:
                self._waiting.append(delta)
                continue
            if isinstance(delta, TextDelta) and delta.text:
                if needs_break:
                    await self._say(TextDelta(_BREAK))
                needs_break, self.has_text = False, True
            await self._say(delta)
        raise broken_off(builder)

    async def finish(
        self, made: Sequence[Attempt], text: str, end: End, *, has_calls: bool
    ) -> bytes:
        """Send our text and the waiting calls; return the tail."""
        calls = self._calls(made[-1]) if has_calls else []
        if text:
            before, behind = _BREAK if self.has_text else "", _BREAK if calls else ""
            await self._say(TextDelta(before + text + behind))
        return await self.end(calls, end)

    def _calls(self, last: Attempt) -> list[Delta]:
        """What is to be sent of the last attempt: its calls without ours, and what came between
        them.
        """
        found: list[Delta] = []
        # A relayed attempt has no waiting deltas.
        for delta in self._waiting or deltas_of(last.completion):
            if not isinstance(delta, ToolCallDelta):
                if self._waiting:
                    found.append(delta)
                continue
            if delta.index in last.own:
                continue
            shown = None if self._waiting else self.shown_calls.get(delta.index)
            index = delta.index - sum(place < delta.index for place in last.own)
            if shown is None:
                found.append(replace(delta, index=index))
            elif rest := delta.arguments[shown:]:
                found.append(ToolCallDelta(index, None, None, rest))
        return found

    async def release(self, completion: Completion) -> bytes:
        """Send the calls of the first attempt, which comply; return the tail."""
        end = End(
            completion.finish or Finish.STOP,
            completion.usage,
            completion.stop_sequence,
            completion.tokens,
        )
        return await self.end(self._waiting, end)

    async def end(self, deltas: Sequence[Delta], end: End) -> bytes:
        builder = self.builder
        for delta in deltas:
            await self._say(delta)
        tail = self._written(end)
        builder.status = 200
        builder.complete(end.finish, end.usage, end.tokens)
        self.send(b"", now=True)
        return tail

    async def _say(self, delta: Delta, *, now: bool = True) -> None:
        data = self._written(delta)
        if not self.send(data, now=now and bool(data)):
            await self.client.drain()

    def _written(self, delta: Delta) -> bytes:
        data = self.writer.write(delta)
        if self.builder.footer is not None:
            data = self.builder.footer.feed(data)
        self.builder.add_client_bytes(data)
        return data


@dataclass(slots=True)
class WholeReply:
    """One body for the client."""

    builder: TurnBuilder
    client: Client
    headers: RawHeaders = field(default_factory=lambda: [*JSON_HEADERS])
    request: ChatRequest = field(init=False)

    def close(self) -> None:
        """Nothing waits."""

    async def receive(self, deltas: AsyncIterator[Delta]) -> Completion:
        """Read all of an answer. Raises UpstreamError if it fails or ends too early."""
        return collect([delta async for delta in deltas])

    async def finish(
        self, made: Sequence[Attempt], text: str, end: End, *, has_calls: bool
    ) -> bytes:
        """Return the texts of all attempts, our text, and the calls of the last attempt."""
        first, last = made[0].completion, made[-1].shown
        is_said = made if text else made[:-1]
        parts: list[Part] = [
            part
            for one in is_said
            for part in one.completion.parts
            if not isinstance(part, ToolCall)
        ]
        if not text:
            parts += last
        else:
            parts.append(Text(text))
            if has_calls:
                parts += [part for part in last if isinstance(part, ToolCall)]
        return await self.release(
            Completion(
                first.id,
                first.model,
                tuple(parts),
                end.finish,
                end.usage,
                stop_sequence=end.stop_sequence,
            )
        )

    async def release(self, completion: Completion) -> bytes:
        """Return the body of an answer."""
        return send_whole(self.builder, completion, self.request, self.client, self.headers)


Reply: TypeAlias = StreamedReply | WholeReply


async def receive(builder: TurnBuilder, opened: OpenedAnswer, reply: Reply) -> Completion:
    """Receive an answer as deltas. Raises UpstreamError if it fails or ends too early."""
    match opened:
        case GeneratedAnswer():
            return await reply.receive(opened.deltas)
        case RelayedAnswer() if opened.facts is not None:
            said = wire_format(builder.provider_wire).parse_answer(builder.provider_bytes)
            return await reply.receive(each(deltas_of(said)))
        case _:
            opening = opened.opening if isinstance(opened, RelayedAnswer) else None
            chunks, wire = opened.reply.chunks(), builder.provider_wire
            return await reply.receive(provider_deltas(builder, wire, opening or b"", chunks))


def first_answer(
    builder: TurnBuilder, opened: OpenedAnswer, client: Client
) -> "FirstAnswer | None":
    """The first answer; None for an error response, which has no calls."""
    match opened:
        case RelayedAnswer() if opened.opening is not None and opened.facts is not None:
            return None  # too long to be held, which held rules do not allow
        case RelayedAnswer() if opened.opening is not None:
            return RelayedStream(builder, opened, opened.opening, client)
        case RelayedAnswer() if opened.facts is not None:
            return RelayedBody(builder, opened, client)
        case GeneratedAnswer():
            return RenderedAnswer(builder, opened, client)
        case _:
            return None


class RenderedAnswer:
    """An answer in deltas, from a provider of another wire or from a model."""

    def __init__(self, builder: TurnBuilder, opened: GeneratedAnswer, client: Client) -> None:
        self._builder = builder
        self._opened = opened
        self._received = Completion("", "", (), None)
        self.reply: Reply
        if opened.request.stream:
            self.reply = StreamedReply(builder, client)
            self.reply.writer = wire_format(builder.incoming.wire).writer(opened.request)
        else:
            self.reply = WholeReply(builder, client)
            self.reply.request = opened.request

    async def receive(self) -> Sequence[HeldCall]:
        """Read all of it, send what is not held, and return its calls."""
        self._builder.status = 200
        self._received = await receive(self._builder, self._opened, self.reply)
        return calls_of(self._received)

    def completion(self) -> Completion:
        return self._received

    async def release(self) -> bytes:
        return await self.reply.release(self._received)

    def resume(self, request: ChatRequest) -> None:
        """Prepare the reply for a further attempt: it is ready."""


class RelayedBody:
    """A whole answer in the client's wire."""

    def __init__(self, builder: TurnBuilder, opened: RelayedAnswer, client: Client) -> None:
        self._builder = builder
        self._opened = opened
        self._calls: Sequence[HeldCall] = ()
        self.reply = WholeReply(builder, client, raw_headers(opened.headers) or [*JSON_HEADERS])

    async def receive(self) -> Sequence[HeldCall]:
        wire, body = self._builder.incoming.wire, self._builder.provider_bytes
        self._calls = whole_calls(wire, body) if has_call_mark(wire, body) else ()
        return self._calls

    def completion(self) -> Completion:
        builder = self._builder
        return _read(builder.incoming.wire, builder.provider_bytes, self._calls, stream=False)

    async def release(self) -> bytes:
        return await relay(self._builder, self._opened, self.reply.client)

    def resume(self, request: ChatRequest) -> None:
        self._builder.streamed = False
        self.reply.request = request


class RelayedStream:
    """A stream in the client's wire: text is sent at once, the events of calls wait.

    `_hold` has the bytes of the calls, `_tail` has the bytes of the end, and `_passed` are the
    bytes released so far."""

    def __init__(
        self, builder: TurnBuilder, opened: RelayedAnswer, opening: bytes, client: Client
    ) -> None:
        wire = builder.incoming.wire
        self.reply = StreamedReply(builder, client, raw_headers(opened.headers), opened.status)
        self._builder = builder
        self._opened = opened
        self._opening = opening
        self._hold = CallHold(wire, () if builder.held else builder.skill_tools.names)
        self._tail = TailHold(wire)
        self._passed: list[bytes] = []
        self._watch: TailHold | None = None
        self._calls: Sequence[HeldCall] = ()
        self._facts: Facts | None = None
        self._is_whole = False

    async def receive(self) -> Sequence[HeldCall]:
        """Read the stream to its end. Raises UpstreamError if it has calls and ended too early."""
        builder = self._builder
        builder.streamed, builder.status = True, self._opened.status
        chunks = self._opened.reply.chunks()
        must_pause = not self._pass_on(self._opening)
        while must_pause or await pour(chunks, self._take):
            must_pause = False
            await self.reply.client.drain()
            if self._is_whole:
                await linger(chunks)
                break
        self._release(self._hold.close())
        if self._hold.has_calls:
            self.reply.has_text = self._hold.has_words
            self._facts = self._read_facts()
            whole = self._hold.held if builder.held else builder.provider_bytes
            self._calls = streamed_calls(builder.incoming.wire, whole)
        return self._calls

    def completion(self) -> Completion:
        builder = self._builder
        return _read(builder.incoming.wire, builder.provider_bytes, self._calls, stream=True)

    async def release(self) -> bytes:
        builder, footer = self._builder, self._builder.footer
        if self._hold.has_calls:
            self._release_held()
        if footer is not None:
            rest = footer.close()
            builder.add_client_bytes(rest)
            self.reply.send(self._tail.feed(rest))
            if not footer.is_added:
                builder.drop_client_bytes()
        settle_relayed(builder, terminal=self._tail.terminal, facts=self._facts)
        self.reply.send(b"", now=True)
        return self._tail.held()

    def resume(self, request: ChatRequest) -> None:
        builder, shown = self._builder, b"".join(self._passed)
        for place, call in enumerate(wire_format(builder.incoming.wire).calls.shown(shown)):
            self.reply.shown_calls[place] = len(call.arguments)
        if builder.footer is None:
            builder.add_client_bytes(shown)
        self.reply.send(self._tail.held())
        self.reply.has_begun = True
        self.reply.writer = wire_format(builder.incoming.wire).resumed_writer(request, shown)

    def _read_facts(self) -> Facts:
        facts = streamed_facts(self._builder.incoming.wire, self._builder.provider_bytes)
        if facts.error is not None:
            raise UpstreamError(facts.error)
        if facts.finish is None and not self._is_whole:
            raise broken_off(self._builder)
        return facts

    def _release_held(self) -> None:
        held, watch = self._hold.held, self._watch
        end = b"" if watch is None or not watch.terminal else watch.held()
        if (
            watch is not None
            and end
            and self._builder.footer is None
            and not self._tail.held()
            and held.endswith(end)
        ):
            # `watch` has found where the end begins.
            self._tail, held = watch, held[: -len(end)]
            self._builder.relayed_bytes += len(held)
            self.reply.send(held)
        else:
            self._release(held)

    def _take(self, chunk: bytes) -> bool:
        builder, tail = self._builder, self._tail
        builder.add_provider_bytes(chunk)
        if (
            builder.footer is not None
            or not self._hold.has_words
            or not self._hold.is_free_of_calls(chunk)
        ):
            return self._pass_on(chunk)
        # The fast path for text, as without held rules: the client has been sent text before, so
        # the head is out.
        self._passed.append(chunk)
        released = tail.feed(chunk)
        self._is_whole = tail.is_complete
        builder.relayed_bytes += len(released)
        return (not released or self.reply.client.send(released)) and not self._is_whole

    def _pass_on(self, chunk: bytes) -> bool:
        """Hold or send a piece of the stream; False if reading must pause."""
        went = self._release(self._hold.feed(chunk))
        ending = self._tail
        if self._hold.has_calls:
            # The end of the stream is held too, and the provider may leave the connection open
            # after it.
            if self._watch is None:
                self._watch, chunk = (
                    TailHold(self._builder.incoming.wire),
                    self._hold.held + self._hold.unfinished,
                )
            self._watch.feed(chunk)
            ending = self._watch
        self._is_whole = ending.is_complete
        return went and not self._is_whole

    def _release(self, data: bytes) -> bool:
        if not data:
            return True
        self._passed.append(data)
        footer = self._builder.footer
        if footer is not None:
            data = footer.feed(data)
            self._builder.add_client_bytes(data)
        released = self._tail.feed(data)
        self._builder.relayed_bytes += len(released)
        return self.reply.send(released, now=self._hold.has_words)


FirstAnswer: TypeAlias = RenderedAnswer | RelayedBody | RelayedStream
"""The first answer to a request, and the reply that it or later attempts are sent with."""


def _read(wire: Wire, answer: bytes, calls: Sequence[HeldCall], *, stream: bool) -> Completion:
    """Parse an answer in the client's wire. If it cannot be parsed, the result has only its
    calls.
    """
    try:
        return read_answer(wire, stream, answer)
    except (UpstreamError, WireError) as error:
        log.info("answer_unread wire=%s error=%s", wire, error)
        made = tuple(ToolCall(call.id, call.name, call.arguments) for call in calls)
        return Completion("", "", made, Finish.TOOL_CALLS)
