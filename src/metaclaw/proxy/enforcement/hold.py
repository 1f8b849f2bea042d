"""Serves one answer under held rules: what the provider says in the client's wire is relayed, anything else is rendered."""

import logging
import time
from collections.abc import Sequence

from metaclaw.domain.chat import ChatRequest, Completion, Finish, Message, ToolCall, Wire
from metaclaw.domain.check import Conversation, ProgramCheck
from metaclaw.domain.turn import apply_splices
from metaclaw.errors import UpstreamError, WireError
from metaclaw.proxy.dispatch import Generated, Limits, Opened, Opener, Relayed, Translated
from metaclaw.proxy.enforcement.ask_again import AskAgain, Heard, end_of
from metaclaw.proxy.enforcement.attempts import Attempt, Attempts, text_of
from metaclaw.proxy.enforcement.enforcer import Enforcer
from metaclaw.proxy.enforcement.outlet import Outlet
from metaclaw.proxy.enforcement.relayed import RelayedStream
from metaclaw.proxy.held_rules import HeldRule, Ruling
from metaclaw.proxy.http.body import parse_object
from metaclaw.proxy.http.client import Client
from metaclaw.proxy.response import SSE_HEADERS, linger, raw_headers, relay, translate
from metaclaw.proxy.turn_builder import TurnBuilder
from metaclaw.wires import Facts, HeldCall, collect, has_call_mark, whole_calls, wire_format

log = logging.getLogger(__name__)


class Hold:
    """Serves one answer under held rules."""

    def __init__(
        self, draft: TurnBuilder, client: Client, limits: Limits, opener: Opener, enforcer: Enforcer, rules: tuple[HeldRule, ...]
    ) -> None:
        self._draft = draft
        self._client = client
        self._limits = limits
        self._enforcer = enforcer
        self._rules = rules
        self._attempts = Attempts(draft)
        self._outlet = Outlet(draft, client, self._attempts)
        self._ask_again = AskAgain(draft, limits, opener, self._outlet, self._attempts, self._judge)
        self.failed: list[tuple[HeldRule, str]] = []
        """Rules whose check could not be run, and why."""

    async def answer(self, opened: Opened) -> bytes:
        """Get the answer to the client, up to its tail."""
        draft = self._draft
        try:
            match opened:
                case Relayed() if opened.opening is not None:
                    return await self._relay_stream(opened, opened.opening)
                case Relayed() if opened.facts is not None:
                    return await self._relay_whole(opened)
                case Relayed():
                    return await relay(draft, opened, self._client, self._limits)
                case Translated() if opened.opening is None and opened.completion is None:
                    return await translate(draft, opened, self._client, self._limits)
                case Translated() | Generated():
                    return await self._render(opened)
        finally:
            self._outlet.close()

    # The provider speaks the client's wire: its bytes are the answer unless a rule is broken.

    async def _relay_stream(self, opened: Relayed, opening: bytes) -> bytes:
        stream = RelayedStream(self._draft, self._outlet, self._limits)
        await stream.take_in(opened, opening)
        facts: Facts | None = None
        if stream.hold.has_calls:
            self._outlet.has_text = stream.hold.has_words
            facts = stream.facts()
            calls = stream.hold.calls
            ruling = await self._judge(calls, self._draft.said if self._has_programs() else None)
            if ruling.broken:
                return await self._insist(stream, calls, ruling)
            stream.release_held()
        return stream.finish(facts)

    async def _insist(self, stream: RelayedStream, calls: Sequence[HeldCall], ruling: Ruling) -> bytes:
        """Go on with a stream whose calls break a rule."""
        draft, wire = self._draft, self._draft.incoming.wire
        shown = b"".join(stream.passed)
        if draft.footer is None:
            draft.show(shown)
        self._outlet.send(stream.tail.held())
        completion = _read(wire, draft.said, calls, stream=True)
        self._attempts.add(Attempt(self._sent(), draft.said, True, completion, calls, ruling, draft.incoming.began))
        return await self._ask_again.streaming(wire_format(wire).resumed_writer(self._request(), shown))

    async def _relay_whole(self, opened: Relayed) -> bytes:
        draft, wire = self._draft, self._draft.incoming.wire
        body = draft.said
        calls = whole_calls(wire, body) if has_call_mark(wire, body) else []
        ruling = await self._judge(calls, body) if calls else Ruling()
        if not ruling.broken:
            return await relay(draft, opened, self._client, self._limits)
        draft.streamed = False
        self._outlet.headers = raw_headers(opened.headers)
        completion = _read(wire, body, calls, stream=False)
        self._attempts.add(Attempt(self._sent(), body, False, completion, calls, ruling, draft.incoming.began))
        return await self._ask_again.whole(self._request())

    # The answer arrives in deltas, from a provider of another wire or from a model.

    async def _render(self, opened: Translated | Generated) -> bytes:
        draft, request = self._draft, opened.request
        began, sent = time.perf_counter(), self._sent()
        deltas = self._ask_again.deltas(opened)
        draft.status = 200
        if not request.stream:
            completion = collect([delta async for delta in deltas])
            attempt = await self._ask_again.judge_rendered(opened, sent, completion, began)
            return await self._ask_again.whole(request) if attempt.is_broken else self._outlet.finish_whole(completion, request)
        self._outlet.headers = [*SSE_HEADERS]
        writer = wire_format(draft.incoming.wire).writer(request)
        heard = Heard()
        await self._ask_again.hear(deltas, writer, heard, is_first=True)
        if isinstance(opened, Translated):
            await linger(opened.reply.chunks())
        completion = collect(heard.all)
        attempt = await self._ask_again.judge_rendered(opened, sent, completion, began)
        if attempt.is_broken:
            return await self._ask_again.streaming(writer)
        return await self._outlet.finish_stream(writer, heard.waiting, end_of(completion))

    async def _judge(self, calls: Sequence[HeldCall], said: bytes | None, text: str = "") -> Ruling:
        programs = self._has_programs()
        if programs and said is not None:
            text = text_of(_read(self._draft.incoming.wire, said, calls, stream=self._draft.streamed))
        ruling = await self._enforcer.judge.judge(self._rules, calls, text, self._conversation() if programs else None)
        for rule, reason in ruling.failed:
            log.warning("check_failed rule=%s turn=%s reason=%s", rule.name, self._draft.id, reason)
        self.failed += ruling.failed
        return ruling

    def _has_programs(self) -> bool:
        return any(isinstance(rule.check, ProgramCheck) for rule in self._rules)

    def _conversation(self) -> Conversation:
        messages: tuple[Message, ...] = ()
        try:
            messages = wire_format(self._draft.incoming.wire).parse_request(parse_object(self._draft.incoming.body)).messages
        except WireError as error:
            log.debug("conversation_unread turn=%s error=%s", self._draft.id, error)
        return Conversation(messages, self._draft.origin.task)

    def _sent(self) -> bytes:
        draft = self._draft
        return draft.translated if draft.translated is not None else apply_splices(draft.incoming.body, draft.splices)

    def _request(self) -> ChatRequest:
        """The request as a writer needs it, also where all of it cannot be read."""
        incoming = self._draft.incoming
        try:
            return wire_format(incoming.wire).parse_request(parse_object(incoming.body))
        except WireError:
            options = incoming.json.get("stream_options")
            wants = isinstance(options, dict) and options.get("include_usage") is True
            return ChatRequest(incoming.wire, incoming.model, (), stream=incoming.stream, include_usage=wants)


def _read(wire: Wire, said: bytes, calls: Sequence[HeldCall], *, stream: bool) -> Completion:
    """An answer in the client's wire; of one that cannot be read, just its calls."""
    format_ = wire_format(wire)
    try:
        if not stream:
            return format_.parse_answer(said)
        reader = format_.reader()
        return collect([*reader.feed(said), *reader.close()])
    except (UpstreamError, WireError) as error:
        log.info("answer_unread wire=%s error=%s", wire, error)
        return Completion("", "", tuple(ToolCall(call.id, call.name, call.arguments) for call in calls), Finish.TOOL_CALLS)
