"""Getting an answer from its source to the client: relayed as bytes, translated, or rendered from a model's deltas.

Every way returns the tail: the bytes that make the answer whole, which the caller releases once the turn is on disk.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable

from metaclaw.domain.chat import Begin, ChatRequest, Completion, Delta, End, Failed, Part
from metaclaw.domain.turn import Turn, TurnEnd
from metaclaw.errors import UpstreamError
from metaclaw.ports import Headers
from metaclaw.proxy.client import Client, RawHeaders
from metaclaw.proxy.draft import Draft
from metaclaw.proxy.inspection import Limits, check_size, gather
from metaclaw.proxy.opening import Generated, Relayed, Translated
from metaclaw.upstream import pour
from metaclaw.wires import Facts, TailHold, collect, deltas_of, streamed_facts, wire_format

SSE_HEADERS: RawHeaders = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
BLANK_LINES = (b"\n\n", b"\r\n\r\n", b"\r\r")
_LINGER_S = 0.05
JSON_HEADERS: RawHeaders = [(b"content-type", b"application/json")]


def raw_headers(headers: Headers) -> RawHeaders:
    """A provider's header fields for the client; how long the answer is, is told anew."""
    return [
        (name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers if name.lower() != "content-length"
    ]


async def relay(draft: Draft, opened: Relayed, client: Client, limits: Limits) -> bytes:
    """Provider and client speak the same wire: its bytes are the answer."""
    raw = raw_headers(opened.headers) + draft.headers()
    draft.streamed = opened.opening is not None
    if opened.opening is not None:
        return await _relay_stream(draft, opened, opened.opening, raw, client, limits)
    return await _relay_whole(draft, opened, raw, client, limits)


async def _relay_stream(
    draft: Draft, opened: Relayed, opening: bytes, headers: RawHeaders, client: Client, limits: Limits
) -> bytes:
    hold, footer = TailHold(draft.incoming.wire), draft.footer
    draft.status = opened.status
    client.start(opened.status, headers)
    is_whole = False

    def take(chunk: bytes) -> bool:
        draft.say(chunk)
        check_size(draft, limits)
        return pass_on(chunk)

    def pass_on(chunk: bytes) -> bool:
        nonlocal is_whole
        if footer is not None:
            chunk = footer.feed(chunk)
            draft.show(chunk)
        released = hold.feed(chunk)
        is_whole = hold.terminal and hold.held().endswith(BLANK_LINES)
        if not released:
            return not is_whole
        draft.relayed_bytes += len(released)
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
        draft.show(rest)
        if released := hold.feed(rest):
            client.send(released)
        if not footer.is_added:
            draft.show_as_said()
    settle_relayed(draft, terminal=hold.terminal)
    return hold.held()


async def linger(chunks: AsyncIterator[bytes]) -> None:
    """The answer is whole. Give its connection a moment to end properly and be used again; what else comes is of no interest."""
    try:
        async with asyncio.timeout(_LINGER_S):
            async for _ in chunks:
                pass
    except (TimeoutError, UpstreamError):
        return


def settle_relayed(draft: Draft, *, terminal: bool, facts: Facts | None = None) -> None:
    """Write down what a stream said of itself. Raises UpstreamError for one that broke off."""
    facts = facts or streamed_facts(draft.incoming.wire, draft.said)
    draft.finish, draft.usage, draft.answer_id = facts.finish, facts.usage, facts.id
    draft.model = facts.model or draft.model
    if facts.error is not None:
        draft.fail(draft.status, facts.error)
    elif terminal or facts.finish is not None:
        draft.end = TurnEnd.COMPLETED
    else:
        raise UpstreamError(f"provider {draft.provider} ended its stream before the answer was whole")


async def _relay_whole(draft: Draft, opened: Relayed, headers: RawHeaders, client: Client, limits: Limits) -> bytes:
    draft.status = opened.status
    facts = opened.facts
    if facts is None:
        message, _ = wire_format(draft.incoming.wire).parse_error(opened.status, await gather(draft, opened.reply, limits))
        draft.fail(opened.status, message)
    else:
        draft.finish, draft.usage, draft.answer_id = facts.finish, facts.usage, facts.id
        draft.model = facts.model or draft.model
        draft.end = TurnEnd.COMPLETED
    client.defer(opened.status, headers)
    body = draft.said
    if draft.footer is None or facts is None:
        return body
    body = draft.footer.whole(body)
    if draft.footer.is_added:
        draft.show(body)
    return body


async def translate(draft: Draft, opened: Translated, client: Client, limits: Limits) -> bytes:
    """Provider and client speak different wires: every delta is said again in the client's words."""
    wire, reply, request = draft.incoming.wire, opened.reply, opened.request
    if opened.completion is not None:
        return await _render(draft, each(deltas_of(opened.completion)), request, client)
    if opened.opening is not None:
        chunks = reply.chunks()
        tail = await _render(draft, provider_deltas(draft, opened.opening, chunks, limits), request, client)
        await linger(chunks)
        return tail
    message, code = wire_format(draft.provider_wire).parse_error(reply.status, await gather(draft, reply, limits))
    body = wire_format(wire).error_body(reply.status, message, code, None)
    draft.fail(reply.status, message)
    draft.show(body)
    client.defer(reply.status, JSON_HEADERS + _kept(reply.headers) + draft.headers())
    return body


async def generate(draft: Draft, opened: Generated, client: Client) -> bytes:
    """A model that answers in deltas: what it said is recorded in the wire the client saw."""
    return await _render(draft, opened.deltas, opened.request, client)


async def _render(draft: Draft, deltas: AsyncIterator[Delta], request: ChatRequest, client: Client) -> bytes:
    """Say an answer in the client's wire, as a stream or whole as it asked."""
    if request.stream:
        return await _stream(draft, deltas, request, client)
    gathered = [delta async for delta in deltas]
    for delta in gathered:
        if isinstance(delta, Failed):
            raise UpstreamError(delta.message, code=delta.code)
    return _whole(draft, collect(gathered), request, client)


async def _stream(draft: Draft, deltas: AsyncIterator[Delta], request: ChatRequest, client: Client) -> bytes:
    """Render deltas as the client's events; the terminal ones are the tail."""
    writer = wire_format(draft.incoming.wire).writer(request)
    tail = b""
    draft.status = 200
    async for delta in deltas:
        data = writer.write(delta)
        if draft.footer is not None:
            data = draft.footer.feed(data)
        draft.show(data)
        match delta:
            case Begin():
                draft.answer_id, draft.model = delta.id, delta.model or draft.model
            case End():
                draft.finish, draft.usage, draft.tokens = delta.finish, delta.usage, delta.tokens
                draft.end = TurnEnd.COMPLETED
                tail = data
                break
            case Failed():
                draft.fail(502, delta.message)
                tail = data
                break
            case _:
                pass
        if not client.started:
            client.start(200, SSE_HEADERS + draft.headers())
        if data:
            await client.write(data)
    if not tail:
        raise UpstreamError(f"provider {draft.provider} ended its stream before the answer was whole")
    if not client.started:
        client.defer(200, SSE_HEADERS + draft.headers())
    return tail


def _whole(draft: Draft, completion: Completion, request: ChatRequest, client: Client) -> bytes:
    body = wire_format(draft.incoming.wire).render_answer(completion, request)
    if draft.footer is not None:
        body = draft.footer.whole(body)
    draft.show(body)
    draft.status = 200
    draft.answer_id, draft.model = completion.id, completion.model or draft.model
    draft.finish, draft.usage, draft.tokens = completion.finish, completion.usage, completion.tokens
    draft.end = TurnEnd.COMPLETED
    client.defer(200, JSON_HEADERS + draft.headers())
    return body


async def each(deltas: Iterable[Delta]) -> AsyncIterator[Delta]:
    """These deltas, as if they came one by one."""
    for delta in deltas:
        yield delta


async def provider_deltas(draft: Draft, opening: bytes, chunks: AsyncIterator[bytes], limits: Limits) -> AsyncIterator[Delta]:
    """The deltas of a provider's stream; its bytes are written into the draft."""
    reader = wire_format(draft.provider_wire).reader()
    for delta in reader.feed(opening):
        yield delta
    async for chunk in chunks:
        draft.say(chunk)
        check_size(draft, limits)
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
