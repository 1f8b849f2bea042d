"""Serve one answer whose tool calls are held back until the rules have been checked. An answer in
the client's wire is relayed; every other answer is rendered."""

import logging
import time
from collections.abc import Sequence

from metaclaw.domain.chat import ChatRequest, Completion, Finish, Message, ToolCall, Wire
from metaclaw.domain.check import Conversation, ProgramCheck
from metaclaw.domain.turn import apply_splices
from metaclaw.errors import UpstreamError, WireError
from metaclaw.proxy.dispatch import Opener
from metaclaw.proxy.enforcement.attempts import Attempt, Attempts, text_of
from metaclaw.proxy.enforcement.enforcer import Enforcer
from metaclaw.proxy.enforcement.held_rules import HeldRule, Ruling
from metaclaw.proxy.enforcement.retries import ReceivedDeltas, ResponseSender, Retries, end_of
from metaclaw.proxy.http.body import parse_object
from metaclaw.proxy.http.client import Client
from metaclaw.proxy.response import (
    BLANK_LINES,
    SSE_HEADERS,
    GeneratedAnswer,
    OpenedAnswer,
    RelayedAnswer,
    TranslatedAnswer,
    TurnBuilder,
    broken_off,
    linger,
    raw_headers,
    relay,
    settle_relayed,
    translate,
)
from metaclaw.upstream import pour
from metaclaw.wires import (
    CallHold,
    Facts,
    HeldCall,
    TailHold,
    collect,
    has_call_mark,
    read_answer,
    streamed_facts,
    whole_calls,
    wire_format,
)

log = logging.getLogger(__name__)


class RelayedStream:
    """A relayed stream whose calls are held: text is sent at once, the events of calls wait.

    `hold` has the bytes of the calls, `tail` has the bytes of the end, and `passed` are the bytes
    released so far."""

    def __init__(self, builder: TurnBuilder, sender: ResponseSender) -> None:
        wire = builder.incoming.wire
        self.hold, self.tail = CallHold(wire), TailHold(wire)
        self.passed: list[bytes] = []
        self._builder = builder
        self._sender = sender
        self._watch: TailHold | None = None
        self._is_whole = False

    async def take_in(self, opened: RelayedAnswer, opening: bytes) -> None:
        """Read the stream to its end, and send what is not held."""
        builder, sender = self._builder, self._sender
        builder.streamed = True
        builder.status = sender.status = opened.status
        sender.headers = raw_headers(opened.headers)
        chunks = opened.reply.chunks()
        must_pause = not self._pass_on(opening)
        while must_pause or await pour(chunks, self._take):
            must_pause = False
            await sender.client.drain()
            if self._is_whole:
                await linger(chunks)
                break
        self._release(self.hold.close())

    def facts(self) -> Facts:
        """The facts of the stream. Raises UpstreamError if it ended too early."""
        facts = streamed_facts(self._builder.incoming.wire, self._builder.provider_bytes)
        if facts.error is not None:
            raise UpstreamError(facts.error)
        if facts.finish is None and not self._is_whole:
            raise broken_off(self._builder)
        return facts

    def release_held(self) -> None:
        """Send the held calls to the client."""
        held, watch = self.hold.held, self._watch
        is_known = (
            self._builder.footer is None
            and watch is not None
            and watch.terminal
            and not self.tail.held()
        )
        if is_known and watch is not None and held.endswith(end := watch.held()):
            # `watch` has found where the end begins.
            self.tail, held = watch, held[: -len(end)]
            self._builder.relayed_bytes += len(held)
            self._sender.send(held)
        else:
            self._release(held)

    def finish(self, facts: Facts | None) -> bytes:
        """Send everything but the tail; return the tail."""
        builder, footer = self._builder, self._builder.footer
        if footer is not None:
            rest = footer.close()
            builder.add_client_bytes(rest)
            self._sender.send(self.tail.feed(rest))
            if not footer.is_added:
                builder.drop_client_bytes()
        settle_relayed(builder, terminal=self.tail.terminal, facts=facts)
        self._sender.send(b"", now=True)
        return self.tail.held()

    def _take(self, chunk: bytes) -> bool:
        builder, client, tail = self._builder, self._sender.client, self.tail
        builder.add_provider_bytes(chunk)
        if (
            builder.footer is not None
            or not self.hold.has_words
            or not self.hold.is_free_of_calls(chunk)
        ):
            return self._pass_on(chunk)
        # The fast path for text, as without held rules: the client has been sent text before, so
        # the head is out.
        self.passed.append(chunk)
        released = tail.feed(chunk)
        self._is_whole = tail.terminal and tail.held().endswith(BLANK_LINES)
        builder.relayed_bytes += len(released)
        return (not released or client.send(released)) and not self._is_whole

    def _pass_on(self, chunk: bytes) -> bool:
        """Hold or send a piece of the stream; False if reading must pause."""
        data = self.hold.feed(chunk)
        went = self._release(data)
        if self.hold.has_calls:
            # The end of the stream is held too, and the provider may leave the connection open
            # after it.
            if self._watch is None:
                self._watch = TailHold(self._builder.incoming.wire)
                self._watch.feed(self.hold.held + self.hold.unfinished)
            else:
                self._watch.feed(chunk)
            ending = self._watch
        else:
            ending = self.tail
        self._is_whole = ending.terminal and ending.held().endswith(BLANK_LINES)
        return went and not self._is_whole

    def _release(self, data: bytes) -> bool:
        if not data:
            return True
        self.passed.append(data)
        footer = self._builder.footer
        if footer is not None:
            data = footer.feed(data)
            self._builder.add_client_bytes(data)
        released = self.tail.feed(data)
        self._builder.relayed_bytes += len(released)
        return self._sender.send(released, now=self.hold.has_words)


class Hold:
    """Serves one answer under held rules."""

    def __init__(
        self,
        builder: TurnBuilder,
        client: Client,
        opener: Opener,
        enforcer: Enforcer,
        rules: tuple[HeldRule, ...],
    ) -> None:
        self._builder = builder
        self._client = client
        self._enforcer = enforcer
        self._rules = rules
        self._attempts = Attempts(builder)
        self._sender = ResponseSender(builder, client, self._attempts)
        self._retries = Retries(builder, opener, self._sender, self._attempts, self._judge)
        self.failed: list[tuple[HeldRule, str]] = []
        """Rules whose check could not be run and that let the calls pass, and why."""

    async def answer(self, opened: OpenedAnswer) -> bytes:
        """Send the answer except its tail, and return the tail."""
        builder = self._builder
        try:
            match opened:
                case RelayedAnswer() if opened.opening is not None:
                    return await self._relay_stream(opened, opened.opening)
                case RelayedAnswer() if opened.facts is not None:
                    return await self._relay_whole(opened)
                case RelayedAnswer():
                    return await relay(builder, opened, self._client)
                case TranslatedAnswer() if opened.opening is None and opened.completion is None:
                    return await translate(builder, opened, self._client)
                case TranslatedAnswer() | GeneratedAnswer():
                    return await self._render(opened)
        finally:
            self._sender.close()

    # The provider speaks the client's wire: its bytes are relayed unless a rule is broken.

    async def _relay_stream(self, opened: RelayedAnswer, opening: bytes) -> bytes:
        stream = RelayedStream(self._builder, self._sender)
        await stream.take_in(opened, opening)
        facts: Facts | None = None
        if stream.hold.has_calls:
            self._sender.has_text = stream.hold.has_words
            facts = stream.facts()
            calls = stream.hold.calls
            ruling = await self._judge(calls, self._text_for_programs(calls))
            if ruling.held:
                return await self._retry_stream(stream, calls, ruling)
            stream.release_held()
        return stream.finish(facts)

    async def _retry_stream(
        self, stream: RelayedStream, calls: Sequence[HeldCall], ruling: Ruling
    ) -> bytes:
        """Continue a stream whose calls break a rule with further attempts."""
        builder, wire = self._builder, self._builder.incoming.wire
        shown = b"".join(stream.passed)
        if builder.footer is None:
            builder.add_client_bytes(shown)
        self._sender.send(stream.tail.held())
        completion = _read(wire, builder.provider_bytes, calls, stream=True)
        self._attempts.made.append(
            Attempt(
                self._sent(),
                builder.provider_bytes,
                True,
                completion,
                calls,
                ruling,
                builder.incoming.began,
            )
        )
        return await self._retries.streaming(
            wire_format(wire).resumed_writer(self._request(), shown)
        )

    async def _relay_whole(self, opened: RelayedAnswer) -> bytes:
        builder, wire = self._builder, self._builder.incoming.wire
        body = builder.provider_bytes
        calls = whole_calls(wire, body) if has_call_mark(wire, body) else []
        ruling = await self._judge(calls, self._text_for_programs(calls)) if calls else Ruling()
        if not ruling.held:
            return await relay(builder, opened, self._client)
        builder.streamed = False
        self._sender.headers = raw_headers(opened.headers)
        completion = _read(wire, body, calls, stream=False)
        self._attempts.made.append(
            Attempt(self._sent(), body, False, completion, calls, ruling, builder.incoming.began)
        )
        return await self._retries.whole(self._request())

    # The answer arrives in deltas, from a provider of another wire or from a model.

    async def _render(self, opened: TranslatedAnswer | GeneratedAnswer) -> bytes:
        builder, request = self._builder, opened.request
        began, sent = time.perf_counter(), self._sent()
        deltas = self._retries.deltas(opened)
        builder.status = 200
        if not request.stream:
            completion = collect([delta async for delta in deltas])
            attempt = await self._retries.judge_rendered(opened, sent, completion, began)
            return (
                await self._retries.whole(request)
                if attempt.is_held
                else self._sender.finish_whole(completion, request)
            )
        self._sender.headers = [*SSE_HEADERS]
        writer = wire_format(builder.incoming.wire).writer(request)
        received = ReceivedDeltas()
        await self._retries.receive(deltas, writer, received, is_first=True)
        if isinstance(opened, TranslatedAnswer):
            await linger(opened.reply.chunks())
        completion = collect(received.all)
        attempt = await self._retries.judge_rendered(opened, sent, completion, began)
        if attempt.is_held:
            return await self._retries.streaming(writer)
        return await self._sender.finish_stream(writer, received.waiting, end_of(completion))

    async def _judge(self, calls: Sequence[HeldCall], text: str) -> Ruling:
        ruling = await self._enforcer.judge.judge(
            self._rules, calls, text, self._conversation() if self._has_programs() else None
        )
        for rule, reason in (
            *ruling.passed,
            *((one.rule, one.reason) for one in ruling.held if not one.is_checked),
        ):
            log.warning(
                "check_failed rule=%s turn=%s reason=%s", rule.name, self._builder.id, reason
            )
        self.failed += ruling.passed
        return ruling

    def _text_for_programs(self, calls: Sequence[HeldCall]) -> str:
        """The text of a relayed answer; empty if no check is a program, because only programs get
        it.
        """
        builder = self._builder
        if not self._has_programs():
            return ""
        return text_of(
            _read(builder.incoming.wire, builder.provider_bytes, calls, stream=builder.streamed)
        )

    def _has_programs(self) -> bool:
        return any(isinstance(rule.check, ProgramCheck) for rule in self._rules)

    def _conversation(self) -> Conversation:
        messages: tuple[Message, ...] = ()
        try:
            messages = (
                wire_format(self._builder.incoming.wire)
                .parse_request(parse_object(self._builder.incoming.body))
                .messages
            )
        except WireError as error:
            log.debug("conversation_unread turn=%s error=%s", self._builder.id, error)
        return Conversation(messages, self._builder.origin.task)

    def _sent(self) -> bytes:
        builder = self._builder
        return (
            builder.translated
            if builder.translated is not None
            else apply_splices(builder.incoming.body, builder.splices)
        )

    def _request(self) -> ChatRequest:
        """The parsed request; if it cannot be parsed, only the fields that a writer needs."""
        incoming = self._builder.incoming
        try:
            return wire_format(incoming.wire).parse_request(parse_object(incoming.body))
        except WireError:
            options = incoming.json.get("stream_options")
            wants = isinstance(options, dict) and options.get("include_usage") is True
            return ChatRequest(
                incoming.wire, incoming.model, (), stream=incoming.stream, include_usage=wants
            )


def _read(wire: Wire, answer: bytes, calls: Sequence[HeldCall], *, stream: bool) -> Completion:
    """Parse an answer in the client's wire. If it cannot be parsed, the result has only its
    calls.
    """
    try:
        return read_answer(wire, stream, answer)
    except (UpstreamError, WireError) as error:
        log.info("answer_unread wire=%s error=%s", wire, error)
        return Completion(
            "",
            "",
            tuple(ToolCall(call.id, call.name, call.arguments) for call in calls),
            Finish.TOOL_CALLS,
        )
