"""Ask the provider again after calls that break a rule, until its calls comply or the retries are
used up.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from metaclaw.domain.chat import (
    Begin,
    ChatRequest,
    Completion,
    Delta,
    End,
    Failed,
    Finish,
    OpaqueDelta,
    ReasoningDelta,
    SampledTokens,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from metaclaw.domain.turn import HoldEnd
from metaclaw.errors import UpstreamError, WireError
from metaclaw.proxy.dispatch import Opener
from metaclaw.proxy.enforcement.attempts import (
    Attempt,
    Attempts,
    calls_of,
    silence_text,
    stop_text,
    text_of,
    warning_text,
)
from metaclaw.proxy.enforcement.held_rules import Ruling
from metaclaw.proxy.http.client import Client, RawHeaders
from metaclaw.proxy.response import (
    JSON_HEADERS,
    GeneratedAnswer,
    OpenedAnswer,
    RelayedAnswer,
    TranslatedAnswer,
    TurnBuilder,
    broken_off,
    each,
    linger,
    provider_deltas,
    render_whole,
)
from metaclaw.wires import HeldCall, StreamWriter, collect, deltas_of, wire_format

_HEAD_WAIT_S: Final = 5.0
"""How long the response head waits for the first text, so that its header fields can name the rules
that held.
"""


@dataclass(slots=True)
class ResponseSender:
    """Sends a held answer to the client: delays the head until the first text, and records what is
    shown.
    """

    builder: TurnBuilder
    client: Client
    attempts: Attempts
    headers: RawHeaders = field(default_factory=list)
    status: int = 200
    has_text: bool = False
    """Whether the client has been sent text of the answer."""
    _waiting: list[bytes] = field(default_factory=list)
    _timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def send(self, data: bytes, *, now: bool = False) -> bool:
        """Send events; they are buffered until `now` or the timer sends the head, which names the
        rules that held.
        """
        if self.client.started:
            return self.client.send(data) if data else True
        if data:
            self._waiting.append(data)
        if now:
            self._start()
        elif self._timer is None and data:
            self._timer = asyncio.get_running_loop().call_later(_HEAD_WAIT_S, self._start)
        return True

    def _start(self) -> None:
        if not self.client.started:
            self.client.start(self.status, self.headers + self.builder.headers())
            if self._waiting:
                self.client.send(b"".join(self._waiting))

    async def say(self, writer: StreamWriter, delta: Delta, *, now: bool = True) -> None:
        """Write a delta in the client's wire and send it."""
        data = writer.write(delta)
        if self.builder.footer is not None:
            data = self.builder.footer.feed(data)
        self.builder.add_client_bytes(data)
        if not self.send(data, now=now and bool(data)):
            await self.client.drain()

    async def finish_stream(
        self, writer: StreamWriter, waiting: Sequence[Delta], end: End
    ) -> bytes:
        """Send the waiting deltas and end the answer; return its tail."""
        builder = self.builder
        for delta in waiting:
            await self.say(writer, delta)
        tail = writer.write(end)
        if builder.footer is not None:
            tail = builder.footer.feed(tail)
        builder.add_client_bytes(tail)
        self._end(end.finish, end.usage, end.tokens)
        self.send(b"", now=True)
        return tail

    def finish_whole(self, completion: Completion, request: ChatRequest) -> bytes:
        """Defer the head of a whole answer; return its body."""
        builder = self.builder
        body = render_whole(builder, completion, request)
        self._end(completion.finish, completion.usage, completion.tokens)
        headers = self.headers or [*JSON_HEADERS]
        self.client.defer(200, headers + builder.headers())
        return body

    def _end(
        self, finish: Finish | None, usage: Usage | None, tokens: SampledTokens | None
    ) -> None:
        builder = self.builder
        builder.status = 200
        builder.complete(finish, usage, tokens if builder.enforcement is None else None)
        if self.attempts.made:
            first = self.attempts.made[0]
            builder.drop_provider_bytes()
            builder.add_provider_bytes(first.said)
            builder.answer_id = builder.answer_id or first.completion.id
            builder.model = first.completion.model or builder.model


_BREAK: Final = "\n\n"


@dataclass(slots=True)
class ReceivedDeltas:
    """The deltas of one attempt: `all` of them, and those `waiting` to be judged (calls, and in
    most wires all behind them).
    """

    waiting: list[Delta] = field(default_factory=list)
    all: list[Delta] = field(default_factory=list)


@dataclass(slots=True)
class Retries:
    """Repeats one answer until its calls comply."""

    builder: TurnBuilder
    opener: Opener
    sender: ResponseSender
    attempts: Attempts
    judge: Callable[[Sequence[HeldCall], str], Awaitable[Ruling]]
    """Finds the rules that the calls of an answer break, given its text."""

    async def streaming(self, writer: StreamWriter) -> bytes:
        """Continue an answer that is being streamed; return its tail."""
        received = ReceivedDeltas()

        async def receive(deltas: AsyncIterator[Delta]) -> list[Delta]:
            await self.receive(deltas, writer, received, is_first=False)
            return received.all

        while (body := self.attempts.next_body()) is not None:
            received = ReceivedDeltas()
            self.builder.enforced = tuple(
                self.attempts.held_rules()
            )  # before the head is sent with the next text
            try:
                await self._attempt(body, receive)
            except (UpstreamError, WireError) as error:
                return await self._stop_stream(writer, str(error))
            if not self.attempts.last.is_held:
                self._settle(HoldEnd.COMPLIED)
                if self.attempts.is_empty():
                    await self.sender.say(
                        writer, TextDelta(silence_text(self.attempts.held_rules(), self.builder.id))
                    )
                return await self._release(writer, received.waiting)
        if not self.attempts.warns:
            return await self._stop_stream(writer, "")
        last = deltas_of(self.attempts.last.completion)
        waiting = received.waiting or [delta for delta in last if isinstance(delta, ToolCallDelta)]
        self._settle(HoldEnd.WARNED)
        await self.sender.say(
            writer, TextDelta(self._break() + warning_text(self.attempts.last.ruling.held) + _BREAK)
        )
        return await self._release(writer, waiting)

    async def whole(self, request: ChatRequest) -> bytes:
        """Repeat a whole answer; return its body."""
        while (body := self.attempts.next_body()) is not None:
            try:
                await self._attempt(body, _all_of)
            except (UpstreamError, WireError) as error:
                return self._stop_whole(request, str(error))
            last = self.attempts.last.completion
            if not self.attempts.last.is_held:
                self._settle(HoldEnd.COMPLIED)
                said = (
                    [Text(silence_text(self.attempts.held_rules(), self.builder.id))]
                    if self.attempts.is_empty()
                    else last.parts
                )
                return self.sender.finish_whole(self.attempts.merged(said, last.finish), request)
        if not self.attempts.warns:
            return self._stop_whole(request, "")
        self._settle(HoldEnd.WARNED)
        last = self.attempts.last.completion
        words = [part for part in last.parts if not isinstance(part, ToolCall)]
        calls = [part for part in last.parts if isinstance(part, ToolCall)]
        warning = Text(warning_text(self.attempts.last.ruling.held))
        return self.sender.finish_whole(
            self.attempts.merged([*words, warning, *calls], last.finish), request
        )

    def deltas(self, opened: OpenedAnswer) -> AsyncIterator[Delta]:
        """The deltas of an answer."""
        builder = self.builder
        match opened:
            case GeneratedAnswer():
                return opened.deltas
            case TranslatedAnswer() if opened.completion is not None:
                return each(deltas_of(opened.completion))
            case RelayedAnswer() if opened.facts is not None:
                return each(
                    deltas_of(
                        wire_format(builder.provider_wire).parse_answer(builder.provider_bytes)
                    )
                )
            case TranslatedAnswer() | RelayedAnswer():
                return provider_deltas(builder, opened.opening or b"", opened.reply.chunks())

    async def receive(
        self,
        deltas: AsyncIterator[Delta],
        writer: StreamWriter,
        received: ReceivedDeltas,
        *,
        is_first: bool,
    ) -> None:
        """Send text at once and keep what must wait, in order. Raises UpstreamError if the answer
        ends too early.
        """
        builder, is_ordered = self.builder, wire_format(self.builder.incoming.wire).is_ordered
        has_broken = is_first
        async for delta in deltas:
            received.all.append(delta)
            match delta:
                case Begin():
                    if is_first:
                        builder.answer_id, builder.model = delta.id, delta.model or builder.model
                        await self.sender.say(writer, delta, now=False)
                case End():
                    return
                case Failed():
                    raise UpstreamError(delta.message, code=delta.code)
                case ToolCallDelta():
                    received.waiting.append(delta)
                case TextDelta() | ReasoningDelta() | OpaqueDelta():
                    if received.waiting and (is_ordered or not isinstance(delta, TextDelta)):
                        received.waiting.append(delta)
                        continue
                    if isinstance(delta, TextDelta) and delta.text:
                        if not has_broken and self.sender.has_text:
                            await self.sender.say(writer, TextDelta(_BREAK))
                        has_broken = self.sender.has_text = True
                    await self.sender.say(writer, delta)
        raise broken_off(builder)

    async def _attempt(
        self, body: bytes, receive: Callable[[AsyncIterator[Delta]], Awaitable[list[Delta]]]
    ) -> None:
        """Ask the same provider again and judge its answer. Raises UpstreamError."""
        builder, began = self.builder, time.perf_counter()
        builder.drop_provider_bytes()
        opened = await self.opener.again(builder, body)
        try:
            received = await receive(self.deltas(opened))
            if isinstance(opened, RelayedAnswer | TranslatedAnswer) and opened.opening is not None:
                await linger(opened.reply.chunks())
        finally:
            await opened.aclose()
        await self.judge_rendered(opened, body, collect(received), began)

    async def judge_rendered(
        self, opened: OpenedAnswer, sent: bytes, completion: Completion, began: float
    ) -> Attempt:
        """Judge an answer that came in deltas. Keep it as an attempt unless it is the first and
        complies.
        """
        calls = calls_of(completion)
        ruling = await self.judge(calls, text_of(completion)) if calls else Ruling()
        if isinstance(opened, GeneratedAnswer):
            # A model in this process sends no bytes: keep the answer as rendered in the client's
            # wire.
            said, stream = (
                wire_format(self.builder.provider_wire).render_answer(completion, opened.request),
                False,
            )
        else:
            said, stream = self.builder.provider_bytes, opened.opening is not None
        attempt = Attempt(sent, said, stream, completion, calls, ruling, began)
        if self.attempts.made or attempt.is_held:
            self.attempts.made.append(attempt)
        return attempt

    async def _release(self, writer: StreamWriter, waiting: Sequence[Delta]) -> bytes:
        end = end_of(self.attempts.last.completion, self.attempts.usage())
        return await self.sender.finish_stream(writer, waiting, end)

    async def _stop_stream(self, writer: StreamWriter, trouble: str) -> bytes:
        text = self._stop(trouble)
        await self.sender.say(writer, TextDelta(self._break() + text))
        return await self.sender.finish_stream(writer, [], End(Finish.STOP, self.attempts.usage()))

    def _stop_whole(self, request: ChatRequest, trouble: str) -> bytes:
        merged = self.attempts.merged([Text(self._stop(trouble))], Finish.STOP, is_last_said=False)
        return self.sender.finish_whole(merged, request)

    def _stop(self, trouble: str) -> str:
        text = stop_text(
            self.attempts.held_rules(), self.builder.id, len(self.attempts.made) - 1, trouble
        )
        self._settle(HoldEnd.STOPPED, text, trouble)
        return text

    def _settle(self, end: HoldEnd, text: str = "", trouble: str = "") -> None:
        """Record the rules that held: for the ledger, for later requests, and for the response's
        header fields.
        """
        self.builder.enforced = tuple(self.attempts.held_rules())
        self.builder.enforcement = self.attempts.enforcement(end, text, trouble)

    def _break(self) -> str:
        return _BREAK if self.sender.has_text else ""


def end_of(completion: Completion, usage: Usage | None = None) -> End:
    return End(
        completion.finish or Finish.STOP,
        usage or completion.usage,
        completion.stop_sequence,
        completion.tokens,
    )


async def _all_of(deltas: AsyncIterator[Delta]) -> list[Delta]:
    return [delta async for delta in deltas]
