"""Getting an answer from its source to the client: relayed as bytes, translated, or rendered from a model's deltas.

Every way returns the tail: the bytes that make the answer whole, which the caller releases once the turn is on disk.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from metaclaw.domain.chat import Begin, ChatRequest, Completion, Delta, End, Failed, Json, Part
from metaclaw.domain.turn import Turn, TurnEnd
from metaclaw.errors import UpstreamError, WireError
from metaclaw.ports import Headers, Reply
from metaclaw.proxy.body import parse_object
from metaclaw.proxy.client import Client, RawHeaders
from metaclaw.proxy.draft import Draft, content_type
from metaclaw.upstream import pour
from metaclaw.wires import TailHold, collect, deltas_of, streamed_facts, whole_facts, wire_format

_SSE_HEADERS: RawHeaders = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_BLANK_LINES = (b"\n\n", b"\r\n\r\n", b"\r\r")
_LINGER_S = 0.05
_JSON_HEADERS: RawHeaders = [(b"content-type", b"application/json")]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one answer may be."""

    max_answer_bytes: int = 64 * 1024 * 1024


async def relay(draft: Draft, reply: Reply, headers: Headers, client: Client, limits: Limits) -> bytes:
    """Provider and client speak the same wire: its bytes are the answer."""
    raw = [
        (name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers if name.lower() != "content-length"
    ]
    raw += draft.headers()
    draft.streamed = reply.status < 400 and _is_stream(content_type(reply.headers), asked=draft.incoming.stream)
    if draft.streamed:
        return await _relay_stream(draft, reply, raw, client, limits)
    return await _relay_whole(draft, reply, raw, client, limits)


def _is_stream(kind: str, *, asked: bool) -> bool:
    """Whether an answer of this media type is a stream: some servers stream unasked, others forget to say that they do."""
    return kind == "text/event-stream" or (asked and kind != "application/json")


async def _relay_stream(draft: Draft, reply: Reply, headers: RawHeaders, client: Client, limits: Limits) -> bytes:
    hold = TailHold(draft.incoming.wire)
    draft.status = reply.status
    client.start(reply.status, headers)
    is_whole = False

    def take(chunk: bytes) -> bool:
        nonlocal is_whole
        draft.say(chunk)
        _check_size(draft, limits)
        released = hold.feed(chunk)
        is_whole = hold.terminal and hold.held().endswith(_BLANK_LINES)
        if not released:
            return not is_whole
        draft.relayed_bytes += len(released)
        return client.send(released) and not is_whole

    chunks = reply.chunks()
    while await pour(chunks, take):
        await client.drain()
        if is_whole:
            await _linger(chunks)
            break
    _settle_relayed(draft, terminal=hold.terminal)
    return hold.held()


async def _linger(chunks: AsyncIterator[bytes]) -> None:
    """The answer is whole. Give its connection a moment to end properly and be used again; what else comes is of no interest."""
    try:
        async with asyncio.timeout(_LINGER_S):
            async for _ in chunks:
                pass
    except (TimeoutError, UpstreamError):
        return


def _settle_relayed(draft: Draft, *, terminal: bool) -> None:
    facts = streamed_facts(draft.incoming.wire, draft.said)
    draft.finish, draft.usage, draft.answer_id = facts.finish, facts.usage, facts.id
    draft.model = facts.model or draft.model
    if facts.error is not None:
        draft.fail(draft.status, facts.error)
    elif terminal or facts.finish is not None:
        draft.end = TurnEnd.COMPLETED
    else:
        raise UpstreamError(f"provider {draft.provider} ended its stream before the answer was whole")


async def _relay_whole(draft: Draft, reply: Reply, headers: RawHeaders, client: Client, limits: Limits) -> bytes:
    body = await _gather(draft, reply, limits)
    draft.status = reply.status
    if reply.status >= 400:
        message, _ = wire_format(draft.incoming.wire).parse_error(reply.status, body)
        draft.fail(reply.status, message)
    else:
        facts = whole_facts(draft.incoming.wire, _json(draft, body))
        draft.finish, draft.usage, draft.answer_id = facts.finish, facts.usage, facts.id
        draft.model = facts.model or draft.model
        draft.end = TurnEnd.COMPLETED
        if facts.error is not None:
            draft.fail(reply.status, facts.error)
    client.defer(reply.status, headers)
    return body


async def translate(draft: Draft, reply: Reply, request: ChatRequest, client: Client, limits: Limits) -> bytes:
    """Provider and client speak different wires: every delta is said again in the client's words."""
    wire = draft.incoming.wire
    if reply.status >= 400:
        message, code = wire_format(draft.provider_wire).parse_error(reply.status, await _gather(draft, reply, limits))
        body = wire_format(wire).error_body(reply.status, message, code, None)
        draft.fail(reply.status, message)
        draft.show(body)
        client.defer(reply.status, _JSON_HEADERS + _kept(reply.headers) + draft.headers())
        return body
    kind = content_type(reply.headers)
    if _is_stream(kind, asked=request.stream):
        chunks = reply.chunks()
        tail = await _render(draft, _deltas(draft, chunks, limits), request, client)
        await _linger(chunks)
        return tail
    completion = wire_format(draft.provider_wire).parse_answer(await _gather(draft, reply, limits))
    return await _render(draft, _each(deltas_of(completion)), request, client)


async def generate(draft: Draft, deltas: AsyncIterator[Delta], request: ChatRequest, client: Client) -> bytes:
    """A model that answers in deltas: what it said is recorded in the wire the client saw."""
    return await _render(draft, deltas, request, client)


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
            client.start(200, _SSE_HEADERS + draft.headers())
        await client.write(data)
    if not tail:
        raise UpstreamError(f"provider {draft.provider} ended its stream before the answer was whole")
    if not client.started:
        client.defer(200, _SSE_HEADERS + draft.headers())
    return tail


def _whole(draft: Draft, completion: Completion, request: ChatRequest, client: Client) -> bytes:
    body = wire_format(draft.incoming.wire).render_answer(completion, request)
    draft.show(body)
    draft.status = 200
    draft.answer_id, draft.model = completion.id, completion.model or draft.model
    draft.finish, draft.usage, draft.tokens = completion.finish, completion.usage, completion.tokens
    draft.end = TurnEnd.COMPLETED
    client.defer(200, _JSON_HEADERS + draft.headers())
    return body


async def _each(deltas: Iterable[Delta]) -> AsyncIterator[Delta]:
    for delta in deltas:
        yield delta


async def _deltas(draft: Draft, chunks: AsyncIterator[bytes], limits: Limits) -> AsyncIterator[Delta]:
    reader = wire_format(draft.provider_wire).reader()
    async for chunk in chunks:
        draft.say(chunk)
        _check_size(draft, limits)
        for delta in reader.feed(chunk):
            yield delta
    for delta in reader.close():
        yield delta


async def _gather(draft: Draft, reply: Reply, limits: Limits) -> bytes:
    async for chunk in reply.chunks():
        draft.say(chunk)
        _check_size(draft, limits)
    return draft.said


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


def _check_size(draft: Draft, limits: Limits) -> None:
    if draft.said_bytes > limits.max_answer_bytes:
        raise UpstreamError(
            f"provider {draft.provider} sent more than {limits.max_answer_bytes} bytes in one answer; it was cut off"
        )


def _json(draft: Draft, body: bytes) -> dict[str, Json]:
    try:
        return parse_object(body)
    except WireError as error:
        raise UpstreamError(f"provider {draft.provider} gave something that is no answer: {error}") from error


def _kept(headers: Headers) -> RawHeaders:
    return [
        (name.lower().encode("latin-1"), value.encode("latin-1", "replace"))
        for name, value in headers
        if name.lower() == "retry-after"
    ]
