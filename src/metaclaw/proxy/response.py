"""Send an answer to the client, relayed as bytes, translated, or rendered from a model's deltas;
and build its turn.

`relay`, `translate` and `render` send everything but the tail, and return the tail: the last bytes,
without which the answer is incomplete. The caller sends the tail once the turn is on disk."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from metaclaw.domain.chat import (
    Begin,
    ChatRequest,
    Completion,
    Delta,
    End,
    Failed,
    Finish,
    SampledTokens,
    Usage,
    Wire,
)
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import (
    Enforcement,
    Exchange,
    Origin,
    Placement,
    Splice,
    Stamp,
    Times,
    TrueAnswer,
    Turn,
    TurnEnd,
)
from metaclaw.errors import UpstreamError
from metaclaw.ports import Headers, Reply
from metaclaw.proxy.answer_record import (
    MAX_RECORD_BYTES,
    AnswerRecord,
    RecordBudget,
    RecordTooLongError,
)
from metaclaw.proxy.enforcement.held_rules import HeldRule
from metaclaw.proxy.http.client import Client, Incoming, RawHeaders
from metaclaw.proxy.skill_tool import NO_TOOLS, SkillTools
from metaclaw.upstream import pour
from metaclaw.wires import (
    Facts,
    Footer,
    TailHold,
    collect,
    parse_error,
    streamed_facts,
    wire_format,
)

MAX_TRANSLATED_BYTES: Final = 64 * 1024 * 1024
"""The most of a stream that is translated: some wires repeat the whole answer at its end."""
SSE_HEADERS: Final[RawHeaders] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
]
JSON_HEADERS: Final[RawHeaders] = [(b"content-type", b"application/json")]
_LINGER_S: Final = 0.05


class TurnBuilder:
    """Collects what happens to one request and builds its turn. Only the task that serves the
    request writes here. Most requests leave most attributes as they are here.
    """

    provider: str = ""
    translated: bytes | None = None
    status: int = 0
    end: TurnEnd = TurnEnd.FAILED
    error: str | None = None
    finish: Finish | None = None
    usage: Usage | None = None
    tokens: SampledTokens | None = None
    answer_id: str | None = None
    footer: Footer | None = None
    """Appends a line to the answer that the client is shown."""
    relayed_bytes: int = 0
    true_answers: tuple[TrueAnswer, ...] = ()
    """True answers to put back into the history that the client sent."""
    enforced: tuple[SkillName, ...] = ()
    """The rules that held calls of this answer back."""
    enforcement: Enforcement | None = None
    failed_checks: tuple[tuple[HeldRule, str], ...] = ()
    """Held rules whose check could not be run, and why."""
    held: tuple[HeldRule, ...] = ()
    """The rules that hold the calls of this answer."""
    not_held: tuple[HeldRule, ...] = ()
    """Held rules that cannot be enforced for this request."""
    skills_read: tuple[Skill, ...] = ()
    """The skills that the model has read in full by calling them."""
    _seen: AnswerRecord | None = None
    _first_byte_s: float | None = None
    _asked_s: float | None = None

    def __init__(
        self,
        id_: TurnId,
        incoming: Incoming,
        origin: Origin,
        stamp: Stamp,
        placements: tuple[Placement, ...],
        splices: tuple[Splice, ...],
        listed_skills: tuple[SkillName, ...] = (),
        *,
        skill_tools: SkillTools = NO_TOOLS,
        budget: RecordBudget | None = None,
    ) -> None:
        """`skill_tools` are tools of ours in the request."""
        self.id = id_
        self.incoming = incoming
        self.origin = origin
        self.stamp = stamp
        self.placements = placements
        self.splices = splices
        self.listed_skills = listed_skills
        self.skill_tools = skill_tools
        self.provider_wire = incoming.wire
        self.model = incoming.model
        self.streamed = incoming.stream
        self._budget = budget or RecordBudget()
        self._said = AnswerRecord(self._budget)

    def require_whole(self) -> None:
        """From now on the provider's bytes are needed as a whole: too many of them are an error
        instead of a cut record.
        """
        self._said.must_be_whole = True

    def allow_cut(self) -> None:
        """The provider's bytes so far were sent: their record may be cut."""
        self._said.must_be_whole = False

    def add_provider_bytes(self, data: bytes) -> None:
        """Record bytes from the provider. Raises UpstreamError if they are too many and are needed
        as a whole.
        """
        if self._first_byte_s is None:
            self._first_byte_s = time.perf_counter() - self.incoming.began
        try:
            self._said.add(data)
        except RecordTooLongError as error:
            raise self.too_long(MAX_RECORD_BYTES) from error

    def too_long(self, max_bytes: int) -> UpstreamError:
        """The error of an answer that has to be held, and is too long for that."""
        return UpstreamError(
            f"provider {self.provider} sent more than {max_bytes} bytes in one answer; it was"
            " cut off"
        )

    async def gather(self, reply: Reply) -> bytes:
        """Record all of a reply and return its bytes. Raises UpstreamError if they are too many."""
        self.require_whole()
        async for chunk in reply.chunks():
            self.add_provider_bytes(chunk)
        return self.provider_bytes

    async def gather_or_stop(self, reply: Reply) -> bytes | None:
        """Record all of a reply; None at its end. If a chunk does not fit, stop before it and
        return it.
        """
        may_stop, self._said.must_be_whole = not self._said.must_be_whole, True
        async for chunk in reply.chunks():
            if may_stop and not self._said.has_room(len(chunk)):
                return chunk
            self.add_provider_bytes(chunk)
        return None

    def begin_attempt(self, provider: str) -> None:
        """Record which provider is asked now, and drop the bytes of the one before it."""
        self.provider = provider
        self._asked_s = time.perf_counter() - self.incoming.began
        if self._said.size:
            self.drop_provider_bytes()

    def drop_provider_bytes(self) -> None:
        """Drop the provider's bytes so far: they are not relayed."""
        self._said.release()
        self._said, self._first_byte_s = (
            AnswerRecord(self._budget, must_be_whole=self._said.must_be_whole),
            None,
        )

    def add_client_bytes(self, data: bytes) -> None:
        """Record bytes shown to the client, if they differ from the provider's."""
        if self._seen is None:
            self._seen = AnswerRecord(self._budget)
        self._seen.add(data)

    def drop_client_bytes(self) -> None:
        """Record that the client was shown exactly the provider's bytes."""
        if self._seen is not None:
            self._seen.release()
        self._seen = None

    def add_error_bytes(self, data: bytes) -> None:
        """Record our error, shown to the client after the part of the provider's bytes that was
        relayed.
        """
        if self._seen is None:
            self.add_client_bytes(self.provider_bytes[: self.relayed_bytes])
        self.add_client_bytes(data)

    def release(self) -> None:
        """Free the records: the turn is written, or waits in the ledger's memory."""
        self._said.release()
        self.drop_client_bytes()

    @property
    def provider_bytes(self) -> bytes:
        """All bytes from the provider so far; only the first of them if the record was cut."""
        return self._said.kept()

    @property
    def provider_size(self) -> int:
        """The number of bytes from the provider so far."""
        return self._said.size

    def facts_of_stream(self, tail: bytes) -> Facts:
        """The facts of a relayed stream that ends with `tail`."""
        if not self._said.is_cut:
            return streamed_facts(self.incoming.wire, self.provider_bytes)
        begin, end = self._said.edges()
        return streamed_facts(self.incoming.wire, begin + b"\n\n" + max(end, tail, key=len))

    def fail(self, status: int, error: str) -> None:
        """Record that the answer failed."""
        self.end, self.status, self.error = TurnEnd.FAILED, status, error

    def set_facts(self, facts: Facts) -> None:
        """Record finish reason, usage, id and model of a relayed answer."""
        self.finish, self.usage, self.answer_id = facts.finish, facts.usage, facts.id
        self.model = facts.model or self.model

    def complete(
        self, finish: Finish | None, usage: Usage | None, tokens: SampledTokens | None
    ) -> None:
        """Record that the answer is complete."""
        self.finish, self.usage, self.tokens, self.end = finish, usage, tokens, TurnEnd.COMPLETED

    def turn(self) -> Turn:
        incoming, origin = self.incoming, self.origin
        cut = self._cut_record()
        return Turn(
            id=self.id,
            session=origin.session,
            kind=origin.kind,
            kind_reason=origin.kind_reason,
            scope=origin.scope,
            stamp=self.stamp,
            agent=origin.agent,
            wire=incoming.wire,
            path=incoming.path,
            stream=self.streamed,
            model=self.model,
            provider=self.provider,
            provider_wire=self.provider_wire,
            status=self.status,
            end=self.end,
            error=self.error if cut is None else _cut_note(cut, self.error),
            exchange=Exchange(
                request=incoming.body,
                splices=self.splices if self.translated is None else (),
                translated=self.translated,
                said=self.provider_bytes,
                seen=None if self._seen is None else self._seen.kept(),
            ),
            finish=self.finish,
            usage=self.usage,
            tokens=self.tokens,
            times=Times(
                incoming.received_at,
                self._first_byte_s,
                time.perf_counter() - incoming.began,
                self._asked_s,
            ),
            segment=origin.segment,
            retry_of=origin.retry_of,
            parent=origin.parent,
            key=origin.key,
            head=origin.head,
            placements=self.placements,
            enforcement=self.enforcement,
            truncated=cut is not None,
        )

    def _cut_record(self) -> AnswerRecord | None:
        if self._said.is_cut:
            return self._said
        return self._seen if self._seen is not None and self._seen.is_cut else None

    def headers(self) -> RawHeaders:
        """The `x-metaclaw-*` header fields of the response."""
        session = (
            self.origin.session.encode("ascii", "backslashreplace")
            .replace(b"\r", b"")
            .replace(b"\n", b"")
        )
        held = [(b"x-metaclaw-enforced", ",".join(self.enforced).encode())] if self.enforced else []
        return [
            (b"x-metaclaw-session", session),
            (b"x-metaclaw-turn", self.id.encode()),
            (b"x-metaclaw-generation", str(self.stamp.generation).encode()),
            (b"x-metaclaw-policy", str(self.stamp.policy_version).encode()),
            (b"x-metaclaw-skills", ",".join(self.stamp.skills).encode()),
            (b"x-metaclaw-listed", ",".join(self.listed_skills).encode()),
            *held,
        ]


class RelayedAnswer(msgspec.Struct, frozen=True, gc=False):
    """The provider answers in the client's wire; `headers` are those the client may see.

    A stream has been read up to the end of `opening`. A whole answer has been read completely, and
    `facts` describes it. A whole answer that is too long to be held has both: it has been recorded
    up to `opening`. An error response has neither."""

    reply: Reply
    headers: Headers
    body: bytes | None
    opening: bytes | None = None
    facts: Facts | None = None

    @property
    def status(self) -> int:
        return self.reply.status

    async def aclose(self) -> None:
        await self.reply.aclose()


class Translation(msgspec.Struct, frozen=True, gc=False):
    """What a provider was sent in another wire than the client's, and its reply."""

    reply: Reply
    wire: Wire
    body: bytes
    is_stream: bool = False

    @property
    def status(self) -> int:
        return self.reply.status

    async def aclose(self) -> None:
        await self.reply.aclose()


@dataclass(frozen=True, slots=True)
class GeneratedAnswer:
    """An answer in deltas: of a model in this process, or of a provider of another wire."""

    deltas: AsyncGenerator[Delta, None]
    request: ChatRequest
    translation: Translation | None = None
    status: int = 200

    async def aclose(self) -> None:
        await self.deltas.aclose()
        if self.translation is not None:
            await self.translation.aclose()


OpenedAnswer: TypeAlias = RelayedAnswer | Translation | GeneratedAnswer
"""A `Translation` by itself is an error response."""


def _cut_note(cut: AnswerRecord, error: str | None) -> str:
    note = f"only a part of the answer is recorded: {len(cut.kept()):,} of {cut.size:,} bytes"
    return note if error is None else f"{error}; {note}"


def raw_headers(headers: Headers) -> RawHeaders:
    """A provider's header fields for the client, without the content length."""
    return [
        (name.encode("latin-1"), value.encode("latin-1", "replace"))
        for name, value in headers
        if name.lower() != "content-length"
    ]


def send(builder: TurnBuilder, opened: OpenedAnswer, client: Client) -> Awaitable[bytes]:
    """Send an answer except its tail, and return the tail."""
    match opened:
        case RelayedAnswer():
            return relay(builder, opened, client)
        case Translation():
            return refuse(builder, opened.reply, client)
        case GeneratedAnswer():
            return render(builder, opened.deltas, opened.request, client)


async def relay(builder: TurnBuilder, opened: RelayedAnswer, client: Client) -> bytes:
    """Send the provider's bytes to a client of the same wire."""
    raw = raw_headers(opened.headers) + builder.headers()
    builder.streamed = opened.opening is not None and opened.facts is None
    status = builder.status = opened.status
    if opened.opening is not None:
        if not builder.streamed:
            return await _relay_long(builder, opened, opened.opening, raw, client)
        client.start(status, raw)
        return await _relay_stream(builder, opened, opened.opening, client)
    return await _relay_whole(builder, opened, raw, client)


async def _relay_stream(
    builder: TurnBuilder, opened: RelayedAnswer, opening: bytes, client: Client
) -> bytes:
    hold, footer = TailHold(builder.incoming.wire), builder.footer
    is_whole = False

    def take(chunk: bytes) -> bool:
        builder.add_provider_bytes(chunk)
        return pass_on(chunk)

    def pass_on(chunk: bytes) -> bool:
        nonlocal is_whole
        if footer is not None:
            chunk = footer.feed(chunk)
            builder.add_client_bytes(chunk)
        released = hold.feed(chunk)
        is_whole = hold.is_complete
        if not released:
            return not is_whole
        builder.relayed_bytes += len(released)
        return client.send(released) and not is_whole

    chunks = opened.reply.chunks()
    must_pause = not pass_on(opening)
    while must_pause or await pour(chunks, take):
        must_pause = False
        await client.drain()
        if is_whole:
            await linger(chunks)
            break
    if footer is not None:
        rest = footer.close()
        builder.add_client_bytes(rest)
        if released := hold.feed(rest):
            client.send(released)
        if not footer.is_added:
            builder.drop_client_bytes()
    tail = hold.held()
    settle_relayed(builder, terminal=hold.terminal, tail=tail)
    return tail


async def linger(chunks: AsyncIterator[bytes]) -> None:
    """Read a complete answer's stream to its end, ignoring what comes, so that the connection can
    be used again. Gives up soon.
    """
    try:
        async with asyncio.timeout(_LINGER_S):
            async for _ in chunks:
                pass
    except (TimeoutError, UpstreamError):
        return


def settle_relayed(
    builder: TurnBuilder, *, terminal: bool, facts: Facts | None = None, tail: bytes = b""
) -> None:
    """Record finish reason, usage, id and model of a stream. Raises UpstreamError if it ended too
    early.
    """
    facts = facts or builder.facts_of_stream(tail)
    builder.set_facts(facts)
    if facts.error is not None:
        builder.fail(builder.status, facts.error)
    elif terminal or facts.finish is not None:
        builder.end = TurnEnd.COMPLETED
    else:
        raise broken_off(builder)


def broken_off(builder: TurnBuilder) -> UpstreamError:
    """The error of a stream that ended too early."""
    return UpstreamError(
        f"provider {builder.provider} ended its stream before the answer was complete"
    )


async def _relay_long(
    builder: TurnBuilder, opened: RelayedAnswer, opening: bytes, headers: RawHeaders, client: Client
) -> bytes:
    """Send a whole answer that is too long to be held. Its last chunk is the tail."""
    declared = [
        (b"content-length", value.encode("latin-1"))
        for name, value in opened.headers
        if name.lower() == "content-length"
    ]
    client.start(opened.status, headers + declared)
    await client.write(builder.provider_bytes)
    builder.allow_cut()
    builder.add_provider_bytes(opening)
    last = opening
    async for chunk in opened.reply.chunks():
        await client.write(last)
        builder.add_provider_bytes(chunk)
        last = chunk
    builder.end = TurnEnd.COMPLETED
    return last


async def _relay_whole(
    builder: TurnBuilder, opened: RelayedAnswer, headers: RawHeaders, client: Client
) -> bytes:
    facts = opened.facts
    if facts is None:
        message, _ = parse_error(builder.status, await builder.gather(opened.reply))
        builder.fail(builder.status, message)
    else:
        builder.set_facts(facts)
        builder.end = TurnEnd.COMPLETED
    client.defer(builder.status, headers)
    body = builder.provider_bytes
    if builder.footer is None or facts is None:
        return body
    body = builder.footer.whole(body)
    if builder.footer.is_added:
        builder.add_client_bytes(body)
    return body


async def refuse(builder: TurnBuilder, reply: Reply, client: Client) -> bytes:
    """Write the error response of a provider of another wire in the client's."""
    message, code = parse_error(reply.status, await builder.gather(reply))
    body = wire_format(builder.incoming.wire).error_body(reply.status, message, code, None)
    builder.fail(reply.status, message)
    builder.add_client_bytes(body)
    retry_after = raw_headers(
        [(name.lower(), value) for name, value in reply.headers if name.lower() == "retry-after"]
    )
    client.defer(reply.status, JSON_HEADERS + retry_after + builder.headers())
    return body


async def render(
    builder: TurnBuilder, deltas: AsyncIterator[Delta], request: ChatRequest, client: Client
) -> bytes:
    """Write an answer in the client's wire, streamed or whole as the client asked."""
    if request.stream:
        return await _render_stream(builder, deltas, request, client)
    builder.require_whole()
    completion = collect([delta async for delta in deltas])
    return send_whole(builder, completion, request, client, JSON_HEADERS)


async def _render_stream(
    builder: TurnBuilder, deltas: AsyncIterator[Delta], request: ChatRequest, client: Client
) -> bytes:
    """Send deltas as events of the client's wire; return the terminal events as the tail."""
    writer = wire_format(builder.incoming.wire).writer(request)
    tail = b""
    builder.status = 200
    async for delta in deltas:
        data = writer.write(delta)
        if builder.footer is not None:
            data = builder.footer.feed(data)
        builder.add_client_bytes(data)
        match delta:
            case Begin():
                builder.answer_id, builder.model = delta.id, delta.model or builder.model
            case End():
                builder.complete(delta.finish, delta.usage, delta.tokens)
                tail = data
                break
            case Failed():
                builder.fail(502, delta.message)
                tail = data
                break
            case _:
                pass
        if not client.started:
            client.start(200, SSE_HEADERS + builder.headers())
        if data:
            await client.write(data)
    if not tail:
        raise broken_off(builder)
    if not client.started:
        client.defer(200, SSE_HEADERS + builder.headers())
    return tail


def send_whole(
    builder: TurnBuilder,
    completion: Completion,
    request: ChatRequest,
    client: Client,
    headers: RawHeaders,
) -> bytes:
    """Write a whole answer in the client's wire; its body is the tail."""
    body = wire_format(builder.incoming.wire).render_answer(completion, request)
    if builder.footer is not None:
        body = builder.footer.whole(body)
    builder.add_client_bytes(body)
    builder.answer_id, builder.model = completion.id, completion.model or builder.model
    builder.status = 200
    builder.complete(completion.finish, completion.usage, completion.tokens)
    client.defer(200, headers + builder.headers())
    return body


async def each(deltas: Iterable[Delta]) -> AsyncGenerator[Delta, None]:
    """Yield the deltas asynchronously."""
    for delta in deltas:
        yield delta


async def provider_deltas(
    builder: TurnBuilder, wire: Wire, opening: bytes, chunks: AsyncIterator[bytes]
) -> AsyncGenerator[Delta, None]:
    """Parse a provider's stream into deltas, and record its bytes."""
    reader = wire_format(wire).reader()
    for delta in reader.feed(opening):
        yield delta
    async for chunk in chunks:
        builder.add_provider_bytes(chunk)
        if builder.provider_size > MAX_TRANSLATED_BYTES:
            raise builder.too_long(MAX_TRANSLATED_BYTES)
        for delta in reader.feed(chunk):
            if isinstance(delta, End | Failed):
                await linger(chunks)
            yield delta
    for delta in reader.close():
        yield delta
