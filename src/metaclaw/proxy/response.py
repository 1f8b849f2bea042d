"""Getting an answer from its source to the client: relayed as bytes, translated, or rendered from a model's deltas.

Every way returns the tail: the bytes that make the answer whole, which the caller releases once the turn is on disk.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable

from metaclaw.domain.chat import Begin, ChatRequest, Completion, Delta, End, Failed, Part
from metaclaw.domain.turn import Turn, TurnEnd
from metaclaw.errors import UpstreamError
from metaclaw.ports import Headers
from metaclaw.proxy.dispatch import Generated, Limits, Relayed, Translated, check_size, gather
from metaclaw.proxy.http.client import Client, RawHeaders
from metaclaw.proxy.turn_builder import TurnBuilder
from metaclaw.upstream import pour
from metaclaw.wires import Facts, TailHold, collect, deltas_of, parse_error, streamed_facts, wire_format

SSE_HEADERS: RawHeaders = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
BLANK_LINES = (b"\n\n", b"\r\n\r\n", b"\r\r")
_LINGER_S = 0.05
JSON_HEADERS: RawHeaders = [(b"content-type", b"application/json")]


def raw_headers(headers: Headers) -> RawHeaders:
    """A provider's header fields for the client; how long the answer is, is told anew."""
    return [
        (name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers if name.lower() != "content-length"
    ]


async def relay(builder: TurnBuilder, opened: Relayed, client: Client, limits: Limits) -> bytes:
    """Provider and client speak the same wire: its bytes are the answer."""
    raw = raw_headers(opened.headers) + builder.headers()
    builder.streamed = opened.opening is not None
    if opened.opening is not None:
        return await _relay_stream(builder, opened, opened.opening, raw, client, limits)
    return await _relay_whole(builder, opened, raw, client, limits)


async def _relay_stream(
    builder: TurnBuilder, opened: Relayed, opening: bytes, headers: RawHeaders, client: Client, limits: Limits
) -> bytes:
    hold, footer = TailHold(builder.incoming.wire), builder.footer
    builder.status = opened.status
    client.start(opened.status, headers)
    is_whole = False

    def take(chunk: bytes) -> bool:
        builder.say(chunk)
        check_size(builder, limits)
        return pass_on(chunk)

    def pass_on(chunk: bytes) -> bool:
        nonlocal is_whole
        if footer is not None:
            chunk = footer.feed(chunk)
            builder.show(chunk)
        released = hold.feed(chunk)
        is_whole = hold.terminal and hold.held().endswith(BLANK_LINES)
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
        builder.show(rest)
        if released := hold.feed(rest):
            client.send(released)
        if not footer.is_added:
            builder.show_as_said()
    settle_relayed(builder, terminal=hold.terminal)
    return hold.held()


async def linger(chunks: AsyncIterator[bytes]) -> None:
    """The answer is whole. Give its connection a moment to end properly and be used again; what else comes is of no interest."""
    try:
        async with asyncio.timeout(_LINGER_S):
            async for _ in chunks:
                pass
    except (TimeoutError, UpstreamError):
        return


def settle_relayed(builder: TurnBuilder, *, terminal: bool, facts: Facts | None = None) -> None:
    """Write down what a stream said of itself. Raises UpstreamError for one that broke off."""
    facts = facts or streamed_facts(builder.incoming.wire, builder.said)
    builder.finish, builder.usage, builder.answer_id = facts.finish, facts.usage, facts.id
    builder.model = facts.model or builder.model
    if facts.error is not None:
        builder.fail(builder.status, facts.error)
    elif terminal or facts.finish is not None:
        builder.end = TurnEnd.COMPLETED
    else:
        raise UpstreamError(f"provider {builder.provider} ended its stream before the answer was whole")


async def _relay_whole(builder: TurnBuilder, opened: Relayed, headers: RawHeaders, client: Client, limits: Limits) -> bytes:
    builder.status = opened.status
    facts = opened.facts
    if facts is None:
        message, _ = parse_error(opened.status, await gather(builder, opened.reply, limits))
        builder.fail(opened.status, message)
    else:
        builder.finish, builder.usage, builder.answer_id = facts.finish, facts.usage, facts.id
        builder.model = facts.model or builder.model
        builder.end = TurnEnd.COMPLETED
    client.defer(opened.status, headers)
    body = builder.said
    if builder.footer is None or facts is None:
        return body
    body = builder.footer.whole(body)
    if builder.footer.is_added:
        builder.show(body)
    return body


async def translate(builder: TurnBuilder, opened: Translated, client: Client, limits: Limits) -> bytes:
    """Provider and client speak different wires: every delta is said again in the client's words."""
    wire, reply, request = builder.incoming.wire, opened.reply, opened.request
    if opened.completion is not None:
        return await _render(builder, each(deltas_of(opened.completion)), request, client)
    if opened.opening is not None:
        chunks = reply.chunks()
        tail = await _render(builder, provider_deltas(builder, opened.opening, chunks, limits), request, client)
        await linger(chunks)
        return tail
    message, code = parse_error(reply.status, await gather(builder, reply, limits))
    body = wire_format(wire).error_body(reply.status, message, code, None)
    builder.fail(reply.status, message)
    builder.show(body)
    client.defer(reply.status, JSON_HEADERS + _kept(reply.headers) + builder.headers())
    return body


async def generate(builder: TurnBuilder, opened: Generated, client: Client) -> bytes:
    """A model that answers in deltas: what it said is recorded in the wire the client saw."""
    return await _render(builder, opened.deltas, opened.request, client)


async def _render(builder: TurnBuilder, deltas: AsyncIterator[Delta], request: ChatRequest, client: Client) -> bytes:
    """Say an answer in the client's wire, as a stream or whole as it asked."""
    if request.stream:
        return await _stream(builder, deltas, request, client)
    gathered = [delta async for delta in deltas]
    for delta in gathered:
        if isinstance(delta, Failed):
            raise UpstreamError(delta.message, code=delta.code)
    return _whole(builder, collect(gathered), request, client)


async def _stream(builder: TurnBuilder, deltas: AsyncIterator[Delta], request: ChatRequest, client: Client) -> bytes:
    """Render deltas as the client's events; the terminal ones are the tail."""
    writer = wire_format(builder.incoming.wire).writer(request)
    tail = b""
    builder.status = 200
    async for delta in deltas:
        data = writer.write(delta)
        if builder.footer is not None:
            data = builder.footer.feed(data)
        builder.show(data)
        match delta:
            case Begin():
                builder.answer_id, builder.model = delta.id, delta.model or builder.model
            case End():
                builder.finish, builder.usage, builder.tokens = delta.finish, delta.usage, delta.tokens
                builder.end = TurnEnd.COMPLETED
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
        raise UpstreamError(f"provider {builder.provider} ended its stream before the answer was whole")
    if not client.started:
        client.defer(200, SSE_HEADERS + builder.headers())
    return tail


def _whole(builder: TurnBuilder, completion: Completion, request: ChatRequest, client: Client) -> bytes:
    body = wire_format(builder.incoming.wire).render_answer(completion, request)
    if builder.footer is not None:
        body = builder.footer.whole(body)
    builder.show(body)
    builder.status = 200
    builder.answer_id, builder.model = completion.id, completion.model or builder.model
    builder.finish, builder.usage, builder.tokens = completion.finish, completion.usage, completion.tokens
    builder.end = TurnEnd.COMPLETED
    client.defer(200, JSON_HEADERS + builder.headers())
    return body


async def each(deltas: Iterable[Delta]) -> AsyncIterator[Delta]:
    """These deltas, as if they came one by one."""
    for delta in deltas:
        yield delta


async def provider_deltas(
    builder: TurnBuilder, opening: bytes, chunks: AsyncIterator[bytes], limits: Limits
) -> AsyncIterator[Delta]:
    """The deltas of a provider's stream; its bytes are written into the builder."""
    reader = wire_format(builder.provider_wire).reader()
    for delta in reader.feed(opening):
        yield delta
    async for chunk in chunks:
        builder.say(chunk)
        check_size(builder, limits)
        for delta in reader.feed(chunk):
            yield delta
    for delta in reader.close():
        yield delta


def said_parts(turn: Turn) -> tuple[Part, ...]:
    """What a completed answer said, as its client saw it; nothing where that cannot be read."""
    wire, shown = wire_format(turn.wire), turn.exchange.shown
    try:
        if not turn.stream:
            return wire.parse_answer(shown).parts
        reader = wire.reader()
        return collect([*reader.feed(shown), *reader.close()]).parts
    except UpstreamError:
        return ()


def _kept(headers: Headers) -> RawHeaders:
    return [
        (name.lower().encode("latin-1"), value.encode("latin-1", "replace"))
        for name, value in headers
        if name.lower() == "retry-after"
    ]
