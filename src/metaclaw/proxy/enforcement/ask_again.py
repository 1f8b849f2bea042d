"""Asking the provider again after calls that break a rule, until they comply or the tries are used up."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

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
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
    Wire,
)
from metaclaw.domain.turn import HoldEnd
from metaclaw.errors import UpstreamError, WireError
from metaclaw.proxy.dispatch import Generated, Limits, Opened, Opener, Relayed, Translated
from metaclaw.proxy.enforcement.attempts import Attempt, Attempts, calls_of, text_of
from metaclaw.proxy.enforcement.notes import silence_text, stop_text, warning_text
from metaclaw.proxy.enforcement.outlet import Outlet
from metaclaw.proxy.held_rules import Ruling
from metaclaw.proxy.response import each, linger, provider_deltas
from metaclaw.proxy.turn_builder import TurnBuilder
from metaclaw.wires import HeldCall, StreamWriter, collect, deltas_of, wire_format

_BREAK: Final = "\n\n"


class RuleJudge(Protocol):
    """Says which rules the calls of an answer break. `said` is the answer as bytes in the client's wire, or None."""

    async def __call__(self, calls: Sequence[HeldCall], said: bytes | None, text: str = "") -> Ruling: ...


@dataclass(slots=True)
class Heard:
    """What has been heard of an attempt that arrives in deltas: calls wait, and in most wires all that follows them."""

    waiting: list[Delta] = field(default_factory=list)
    all: list[Delta] = field(default_factory=list)
    end: End | None = None


class AskAgain:
    """Asks for one answer until its calls comply."""

    def __init__(
        self, draft: TurnBuilder, limits: Limits, opener: Opener, outlet: Outlet, attempts: Attempts, judge: RuleJudge
    ) -> None:
        self._draft = draft
        self._limits = limits
        self._opener = opener
        self._outlet = outlet
        self._attempts = attempts
        self._judge = judge

    async def streaming(self, writer: StreamWriter) -> bytes:
        """Go on with an answer that is being streamed; its tail."""
        heard = Heard()

        async def hear(deltas: AsyncIterator[Delta]) -> None:
            await self.hear(deltas, writer, heard, is_first=False)

        while (body := self._attempts.next_body()) is not None:
            heard = Heard()
            self._draft.enforced = tuple(self._attempts.broken_rules())  # before the head goes out with the next words
            try:
                await self._attempt(body, hear)
            except (UpstreamError, WireError) as error:
                return await self._stop_stream(writer, str(error))
            if not self._attempts.last.is_broken:
                self._settle(HoldEnd.COMPLIED)
                if self._attempts.is_empty():
                    await self._outlet.say(writer, TextDelta(self._silence()))
                return await self._release(writer, heard.waiting)
        if not self._attempts.warns:
            return await self._stop_stream(writer, "")
        waiting = heard.waiting or _call_deltas(self._attempts.last.completion)
        self._settle(HoldEnd.WARNED)
        await self._outlet.say(writer, TextDelta(self._break() + warning_text(self._attempts.last.ruling.broken) + _BREAK))
        return await self._release(writer, waiting)

    async def whole(self, request: ChatRequest) -> bytes:
        """Make a whole answer; its body."""
        while (body := self._attempts.next_body()) is not None:
            try:
                await self._attempt(body, _drain)
            except (UpstreamError, WireError) as error:
                return self._stop_whole(request, str(error))
            last = self._attempts.last.completion
            if not self._attempts.last.is_broken:
                self._settle(HoldEnd.COMPLIED)
                said = [Text(self._silence())] if self._attempts.is_empty() else last.parts
                return self._outlet.finish_whole(self._attempts.merged(said, last.finish), request)
        if not self._attempts.warns:
            return self._stop_whole(request, "")
        self._settle(HoldEnd.WARNED)
        last = self._attempts.last.completion
        words = [part for part in last.parts if not isinstance(part, ToolCall)]
        calls = [part for part in last.parts if isinstance(part, ToolCall)]
        warning = Text(warning_text(self._attempts.last.ruling.broken))
        return self._outlet.finish_whole(self._attempts.merged([*words, warning, *calls], last.finish), request)

    def deltas(self, opened: Opened) -> AsyncIterator[Delta]:
        """An answer part by part."""
        draft = self._draft
        match opened:
            case Generated():
                return opened.deltas
            case Translated() if opened.completion is not None:
                return each(deltas_of(opened.completion))
            case Relayed() if opened.facts is not None:
                return each(deltas_of(wire_format(draft.provider_wire).parse_answer(draft.said)))
            case Translated() | Relayed():
                return provider_deltas(draft, opened.opening or b"", opened.reply.chunks(), self._limits)

    async def hear(self, deltas: AsyncIterator[Delta], writer: StreamWriter, heard: Heard, *, is_first: bool) -> None:
        """Pass text on as it comes; what must wait is kept in its order. Raises UpstreamError for an answer that breaks off."""
        draft, is_unordered = self._draft, self._draft.incoming.wire is Wire.CHAT
        has_broken = is_first
        async for delta in deltas:
            heard.all.append(delta)
            match delta:
                case Begin():
                    if is_first:
                        draft.answer_id, draft.model = delta.id, delta.model or draft.model
                        await self._outlet.say(writer, delta, now=False)
                case End():
                    heard.end = delta
                    return
                case Failed():
                    raise UpstreamError(delta.message, code=delta.code)
                case ToolCallDelta():
                    heard.waiting.append(delta)
                case TextDelta() | ReasoningDelta() | OpaqueDelta():
                    if heard.waiting and not (is_unordered and isinstance(delta, TextDelta)):
                        heard.waiting.append(delta)
                        continue
                    if isinstance(delta, TextDelta) and delta.text:
                        if not has_broken and self._outlet.has_text:
                            await self._outlet.say(writer, TextDelta(_BREAK))
                        has_broken = self._outlet.has_text = True
                    await self._outlet.say(writer, delta)
        raise UpstreamError(f"provider {draft.provider} ended its stream before the answer was whole")

    async def _attempt(self, body: bytes, hear: Callable[[AsyncIterator[Delta]], Awaitable[None]]) -> None:
        """Ask the same provider again and judge what it says. Raises UpstreamError."""
        draft, began = self._draft, time.perf_counter()
        draft.unsay()
        heard: list[Delta] = []

        async def kept(deltas: AsyncIterator[Delta]) -> AsyncIterator[Delta]:
            async for delta in deltas:
                heard.append(delta)
                yield delta

        opened = await self._opener.again(draft, body)
        try:
            await hear(kept(self.deltas(opened)))
            if isinstance(opened, Relayed | Translated) and opened.opening is not None:
                await linger(opened.reply.chunks())
        finally:
            await opened.aclose()
        await self.judge_rendered(opened, body, collect(heard), began)

    async def judge_rendered(self, opened: Opened, sent: bytes, completion: Completion, began: float) -> Attempt:
        """Judge an answer that came in deltas, and keep it as an attempt unless it is the first and complies."""
        calls = calls_of(completion)
        ruling = await self._judge(calls, None, text_of(completion)) if calls else Ruling()
        if isinstance(opened, Generated):
            # A model has no bytes of its own: the answer is told to it as the client's wire would.
            said, stream = wire_format(self._draft.provider_wire).render_answer(completion, opened.request), False
        else:
            said, stream = self._draft.said, opened.opening is not None
        attempt = Attempt(sent, said, stream, completion, calls, ruling, began)
        if self._attempts or attempt.is_broken:
            self._attempts.add(attempt)
        return attempt

    async def _release(self, writer: StreamWriter, waiting: Sequence[Delta]) -> bytes:
        end = end_of(self._attempts.last.completion, self._attempts.usage())
        return await self._outlet.finish_stream(writer, waiting, end)

    async def _stop_stream(self, writer: StreamWriter, trouble: str) -> bytes:
        text = self._stop(trouble)
        await self._outlet.say(writer, TextDelta(self._break() + text))
        return await self._outlet.finish_stream(writer, [], End(Finish.STOP, self._attempts.usage()))

    def _stop_whole(self, request: ChatRequest, trouble: str) -> bytes:
        merged = self._attempts.merged([Text(self._stop(trouble))], Finish.STOP, is_last_said=False)
        return self._outlet.finish_whole(merged, request)

    def _stop(self, trouble: str) -> str:
        text = stop_text(self._attempts.broken_rules(), self._draft.id, self._attempts.count() - 1, trouble)
        self._settle(HoldEnd.STOPPED, text, trouble)
        return text

    def _settle(self, end: HoldEnd, text: str = "", trouble: str = "") -> None:
        """Write down what was done: for the ledger, for later requests, and for the response's head."""
        self._draft.enforced = tuple(self._attempts.broken_rules())
        self._draft.enforcement = self._attempts.enforcement(end, text, trouble)

    def _silence(self) -> str:
        return silence_text(self._attempts.broken_rules(), self._draft.id)

    def _break(self) -> str:
        return _BREAK if self._outlet.has_text else ""


def end_of(completion: Completion, usage: Usage | None = None) -> End:
    """The end of an answer."""
    return End(completion.finish or Finish.STOP, usage or completion.usage, completion.stop_sequence, completion.tokens)


async def _drain(deltas: AsyncIterator[Delta]) -> None:
    async for _ in deltas:
        pass


def _call_deltas(completion: Completion) -> list[Delta]:
    return [delta for delta in deltas_of(completion) if isinstance(delta, ToolCallDelta)]
