"""Dispatch: ask the candidate providers in order, each in a wire it speaks, until one of them
answers.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TypeAlias, TypeVar

import msgspec
from typing_extensions import TypeIs

from metaclaw.domain.chat import (
    Begin,
    ChatRequest,
    Completion,
    Delta,
    End,
    Finish,
    TextDelta,
    Usage,
    Wire,
)
from metaclaw.domain.policy import BASE_POLICY
from metaclaw.domain.turn import apply_splices
from metaclaw.errors import UpstreamError, WireError
from metaclaw.ports import Call, Headers, HttpProvider, ModelProvider, Purpose, Reply
from metaclaw.proxy.enforcement.enforcer import restore_body, restore_fields
from metaclaw.proxy.http.body import JsonDocument, UnsafeBytesError, parse_object
from metaclaw.proxy.response import (
    GeneratedAnswer,
    OpenedAnswer,
    RelayedAnswer,
    Translation,
    TurnBuilder,
    each,
    provider_deltas,
)
from metaclaw.proxy.skill_tool import NO_TOOLS, tool_items
from metaclaw.upstream import (
    AssumedWires,
    Destination,
    PolicySlot,
    ProviderCandidate,
    ProviderHealth,
    candidates,
    gather_body,
    has_credentials,
    is_missing_route,
    may_lack_route,
    moves_on,
    open_first,
    reply_headers,
)
from metaclaw.wires import (
    Facts,
    begins_answer,
    deltas_of,
    encode_json,
    plain,
    reported_error,
    signed_wire,
    whole_facts,
    wire_format,
    wire_formats,
)

Provider: TypeAlias = HttpProvider | ModelProvider
_T = TypeVar("_T")
log = logging.getLogger(__name__)


SESSION_END = "session-end"
"""The reason code of a request that only ends a session; no provider is asked."""

_KEY_REFUSED = (401, 402, 403)
_TOOL_REFUSED = (400, 404, 422)


def is_http(provider: Provider) -> TypeIs[HttpProvider]:
    """Whether a provider is reached by HTTP; the others run in this process."""
    return hasattr(provider, "wires")


class Providers:
    """The configured providers and their routing."""

    def __init__(
        self,
        providers: Sequence[Provider],
        passthrough: frozenset[str] = frozenset(),
        policy: PolicySlot | None = None,
        assumed_wires: frozenset[str] = frozenset(),
    ) -> None:
        self.all = tuple(providers)
        self.wires = AssumedWires(assumed_wires)
        self._policy = policy or PolicySlot("")
        self._named = {provider.name: provider for provider in providers}
        self._passthrough = passthrough
        self._without_tools: set[str] = set()
        destinations = tuple(self._destination(provider) for provider in providers)
        # Most clients name few models; the bound protects against clients that name a new one every
        # time.
        self.candidates = lru_cache(256)(partial(candidates, destinations))
        """The providers that may answer a request of this wire for this model, in the order they
        are tried.
        """
        self.is_embedded = lru_cache(256)(self._is_embedded)
        """Whether the first candidate is the embedded model."""

    def _destination(self, provider: Provider) -> Destination:
        if self._policy.leads and self.has_versions(provider.name):
            return Destination(provider.name, provider.models, leads=True)
        # A model in this process answers under any name: if there is no other provider, that is
        # better than an error.
        if not is_http(provider):
            return Destination(provider.name, own=provider.models)
        return Destination(
            provider.name, provider.models, provider.wires, provider.name in self._passthrough
        )

    def may_have(self, provider: HttpProvider, caller: Mapping[str, str]) -> bool:
        """Whether this caller may ask the provider. A passthrough provider needs credentials of the
        caller for its vendor.
        """
        return provider.name not in self._passthrough or (
            signed_wire(caller) in provider.wires and has_credentials(caller)
        )

    def for_caller(
        self, wire: Wire, model: str, caller: Mapping[str, str]
    ) -> tuple[ProviderCandidate, ...]:
        """The candidates for this caller. OtherRequests providers are fallbacks only for callers
        with credentials of their own.
        """
        chosen = self.candidates(wire, model)
        if not self._passthrough or has_credentials(caller):
            return chosen
        return chosen[:1] + tuple(
            candidate for candidate in chosen[1:] if candidate.name not in self._passthrough
        )

    def is_own_key(self, name: str) -> bool:
        """Whether the provider is asked with a configured key instead of the caller's."""
        return name not in self._passthrough

    def has_versions(self, name: str) -> bool:
        """Whether this provider answers with the weights that a request was stamped with."""
        return self._policy.provider == name

    def policy_answers(self, wire: Wire, model: str) -> bool:
        """Whether the first candidate answers with the policy's weights."""
        return any(self.has_versions(one.name) for one in self.candidates(wire, model)[:1])

    def _is_embedded(self, wire: Wire, model: str) -> bool:
        return not all(is_http(self._named[one.name]) for one in self.candidates(wire, model)[:1])

    def takes_tools(self, wire: Wire, model: str) -> bool:
        """Whether the first candidate has not refused tools of ours."""
        return all(one.name not in self._without_tools for one in self.candidates(wire, model)[:1])

    def refuse_tools(self, name: str) -> None:
        """Remember that this provider refuses tools of ours."""
        self._without_tools.add(name)

    def model_for(self, candidate: ProviderCandidate, version: int) -> str:
        """The model name to send to a provider. Some providers serve each policy version under its
        own name.
        """
        name_of = self._policy.model_of
        if name_of is None or version == BASE_POLICY or not self.has_versions(candidate.name):
            return candidate.model
        return name_of(version)

    def named(self, name: str) -> Provider:
        return self._named[name]


class Opener:
    """Asks one provider after another, each in a wire it speaks."""

    def __init__(self, providers: Providers, health: ProviderHealth) -> None:
        self._providers = providers
        self.health = health

    async def open(self, builder: TurnBuilder) -> OpenedAnswer:
        """Return the first answer to relay. The builder records the provider and what was sent to
        it.
        """
        if builder.origin.kind_reason == SESSION_END:
            builder.provider = "metaclaw"
            return GeneratedAnswer(_session_end(builder.incoming.model), _understood(builder))
        incoming = builder.incoming
        chosen = self._providers.for_caller(incoming.wire, incoming.model, incoming.headers)
        ask = self._ask_with_tools if builder.skill_tools.names else self._ask
        candidate, opened = await open_first(chosen, partial(ask, builder), self.health)
        builder.provider, builder.model = candidate.name, candidate.model
        status = opened.status
        if moves_on(status):
            # it holds bytes of a provider that was asked later and failed
            builder.drop_provider_bytes()
        elif status in _KEY_REFUSED and self._providers.is_own_key(candidate.name):
            self.health.failed(candidate.name, f"it refused our key with status {status}")
        if builder.stamp.policy_version != BASE_POLICY and not self._providers.has_versions(
            candidate.name
        ):
            # A fallback answered, with other weights.
            builder.stamp = replace(builder.stamp, policy_version=BASE_POLICY)
        match opened:
            case RelayedAnswer():
                builder.translated = opened.body
            case Translation() | GeneratedAnswer(translation=Translation()):
                sent = opened if isinstance(opened, Translation) else opened.translation
                assert sent is not None
                builder.provider_wire, builder.translated = sent.wire, sent.body
            case GeneratedAnswer():
                pass
        return opened

    async def _ask_with_tools(
        self, builder: TurnBuilder, candidate: ProviderCandidate
    ) -> OpenedAnswer:
        """Ask a provider. If it seems to refuse a tool of ours, ask it once more without."""
        opened = await self._ask(builder, candidate)
        tools = builder.skill_tools
        if isinstance(opened, GeneratedAnswer) or opened.status not in _TOOL_REFUSED:
            return opened
        body = await gather_body(opened.reply, candidate.name)
        read = ReadReply(opened.status, opened.reply.headers, body)
        refused = msgspec.structs.replace(opened, reply=read)
        if not any(word in body.lower() for word in (b"tool", b"function")):
            return refused
        items = tool_items(builder.incoming.wire, tools.names)
        splices = builder.splices
        builder.splices = tuple(one for one in splices if not one.inserted.endswith(items))
        builder.skill_tools = NO_TOOLS
        again = await self._ask(builder, candidate)
        if again.status < 400:
            log.warning("skill_tool_refused provider=%s status=%d", candidate.name, read.status)
            self._providers.refuse_tools(candidate.name)
            return again
        builder.splices, builder.skill_tools = splices, tools
        await again.aclose()
        builder.drop_provider_bytes()
        return refused

    def _ask(self, builder: TurnBuilder, candidate: ProviderCandidate) -> Awaitable[OpenedAnswer]:
        provider = self._providers.named(candidate.name)
        builder.begin_attempt(provider.name)
        if not is_http(provider):
            return self._generate(builder, provider, _understood(builder))
        model = self._providers.model_for(candidate, builder.stamp.policy_version)
        wire = builder.incoming.wire
        if wire not in self._providers.wires.of(provider):
            return self._translate(builder, provider, model)
        if self._providers.wires.is_doubtful(provider, wire):
            return self._relay_or_translate(builder, provider, model)
        return self._relay(builder, provider, model)

    async def _relay_or_translate(
        self, builder: TurnBuilder, provider: HttpProvider, model: str
    ) -> OpenedAnswer:
        """Relay to a provider that is only assumed to serve this wire. If it has no such path, ask
        it in another wire.
        """
        wires, wire = self._providers.wires, builder.incoming.wire
        relayed = await self._relay(builder, provider, model)
        if relayed.status < 400:
            wires.confirm(provider, wire)
        if not may_lack_route(relayed.status) or provider.wires == {wire}:
            return relayed
        body = await gather_body(relayed.reply, provider.name)
        reply = ReadReply(relayed.reply.status, relayed.reply.headers, body)
        refused = RelayedAnswer(reply, relayed.headers, relayed.body)
        if not is_missing_route(reply.status, reply.body):
            return refused
        try:
            translated = await self._translate(builder, provider, model, provider.wires - {wire})
        except WireError as error:
            raise WireError(
                f"{error}; {wires.remedy(provider, wire)}", status=error.status, code=error.code
            ) from error
        if may_lack_route(translated.status):
            await translated.aclose()
            builder.drop_provider_bytes()
            return refused
        if translated.status < 400:
            wires.drop(provider, wire)
        return translated

    async def _relay(
        self, builder: TurnBuilder, provider: HttpProvider, model: str
    ) -> RelayedAnswer:
        body, renamed = apply_splices(builder.incoming.body, builder.splices), None
        if (
            builder.true_answers
            and (restored := restore_body(builder.incoming.wire, body, builder.true_answers))
            is not None
        ):
            body = renamed = restored
        if model != builder.incoming.model:
            body = renamed = replace_model(body, model)
        return await self._relayed(builder, provider, body, renamed)

    async def _relayed(
        self,
        builder: TurnBuilder,
        provider: HttpProvider,
        body: bytes,
        renamed: bytes | None,
        purpose: Purpose | None = None,
    ) -> RelayedAnswer:
        incoming = builder.incoming
        call = Call(
            "POST",
            incoming.path,
            incoming.query,
            incoming.forward,
            body,
            purpose,
            builder.origin.session,
        )
        reply = await provider.call(call, incoming.headers)
        headers = reply_headers(reply.headers)
        if reply.status >= 400:
            return RelayedAnswer(reply, headers, renamed)
        if is_stream(reply.headers, asked=incoming.stream):
            return RelayedAnswer(
                reply, headers, renamed, await _read(provider, reply, read_opening(builder, reply))
            )
        facts, excess = await _read(provider, reply, read_facts(builder, reply))
        return RelayedAnswer(reply, headers, renamed, excess, facts)

    async def _translate(
        self,
        builder: TurnBuilder,
        provider: HttpProvider,
        model: str,
        wires: frozenset[Wire] | None = None,
    ) -> Translation | GeneratedAnswer:
        spoken = self._providers.wires.of(provider) if wires is None else wires
        wire = next(format_.wire for format_ in wire_formats() if format_.wire in spoken)
        request = replace(_understood(builder), model=model)
        fields = wire_format(wire).render_request(request)
        if builder.true_answers:
            fields = restore_fields(wire, fields, builder.true_answers) or fields
        return await self._translated(builder, provider, request, wire, encode_json(fields))

    async def _translated(
        self,
        builder: TurnBuilder,
        provider: HttpProvider,
        request: ChatRequest,
        wire: Wire,
        body: bytes,
        purpose: Purpose | None = None,
    ) -> Translation | GeneratedAnswer:
        incoming = builder.incoming
        # Leave out header fields of the client's wire.
        headers = [
            field
            for field in incoming.forward
            if not field[0].startswith(("anthropic-", "openai-", "x-stainless-", "x-goog-"))
        ]
        call = Call(
            "POST", wire_format(wire).path, "", headers, body, purpose, builder.origin.session
        )
        reply = await provider.call(call, incoming.headers)
        is_streamed = is_stream(reply.headers, asked=request.stream)
        translation = Translation(reply, wire, body, is_streamed)
        if reply.status >= 400:
            return translation
        if is_streamed:
            opening = await _read(provider, reply, read_opening(builder, reply))
            deltas = provider_deltas(builder, wire, opening, reply.chunks())
        else:
            completion = await _read(provider, reply, read_completion(builder, reply, wire))
            deltas = each(deltas_of(completion))
        return GeneratedAnswer(deltas, request, translation)

    async def again(self, builder: TurnBuilder, body: bytes) -> OpenedAnswer:
        """Ask the same provider again, with this body in its wire. Raises UpstreamError if it
        refuses.
        """
        provider, wire = self._providers.named(builder.provider), builder.provider_wire
        opened: OpenedAnswer
        if not is_http(provider):
            request = wire_format(wire).parse_request(parse_object(body))
            opened = await self._generate(builder, provider, request)
        elif wire is builder.incoming.wire:
            opened = await self._relayed(builder, provider, body, body, Purpose.ENFORCE)
        else:
            opened = await self._translated(
                builder, provider, _understood(builder), wire, body, Purpose.ENFORCE
            )
        if opened.status >= 400:
            await opened.aclose()
            raise UpstreamError(f"provider {builder.provider} answered with status {opened.status}")
        return opened

    async def _generate(
        self, builder: TurnBuilder, provider: ModelProvider, request: ChatRequest
    ) -> GeneratedAnswer:
        version = (
            builder.stamp.policy_version
            if self._providers.has_versions(provider.name)
            else BASE_POLICY
        )
        deltas = provider.generate(plain(request), version)
        # Wait for the first delta: a model that cannot answer fails here, and the next provider is
        # asked.
        try:
            first = await anext(deltas)
        except StopAsyncIteration as error:
            raise UpstreamError(f"provider {provider.name} gave no answer") from error
        return GeneratedAnswer(_chain(first, deltas), request)


async def _read(provider: HttpProvider, reply: Reply, reading: Awaitable[_T]) -> _T:
    """Await the reading of a reply. An error closes the reply; an UpstreamError is raised with the
    provider's name in it.
    """
    try:
        return await reading
    except BaseException as error:
        await reply.aclose()
        if not isinstance(error, UpstreamError):
            raise
        words = str(error)
        if not words.startswith("provider "):
            words = f"provider {provider.name} gave no answer: {words}"
        raise UpstreamError(
            words, status=error.status, retryable=error.retryable, code=error.code
        ) from error


def _understood(builder: TurnBuilder) -> ChatRequest:
    incoming = builder.incoming
    body = apply_splices(incoming.body, builder.splices)
    if builder.true_answers:
        body = restore_body(incoming.wire, body, builder.true_answers) or body
    return wire_format(incoming.wire).parse_request(parse_object(body))


async def _session_end(model: str) -> AsyncGenerator[Delta, None]:
    yield Begin("session-end", model)
    yield TextDelta("The session has ended.")
    yield End(Finish.STOP, Usage(0, 0))


async def _chain(first: Delta, rest: AsyncGenerator[Delta, None]) -> AsyncGenerator[Delta, None]:
    async with aclosing(rest) as deltas:
        yield first
        async for delta in deltas:
            yield delta


def is_stream(headers: Headers, *, asked: bool) -> bool:
    """Whether an answer is a stream, by its media type. Some servers stream unasked, others omit
    the media type.
    """
    kind = ""
    for name, value in headers:
        if name.lower() == "content-type":
            kind = value.partition(";")[0].strip().lower()
            break
    return kind == "text/event-stream" or (asked and kind != "application/json")


async def read_opening(builder: TurnBuilder, reply: Reply) -> bytes:
    """Read a stream until it is clear that it is an answer; return what was read."""
    seen, chunks = b"", reply.chunks()
    async for chunk in chunks:
        builder.add_provider_bytes(chunk)
        seen = seen + chunk if seen else chunk
        if begins_answer(seen):
            return seen
    begins_answer(seen, is_all=True)
    return seen


async def read_facts(builder: TurnBuilder, reply: Reply) -> tuple[Facts, bytes | None]:
    """Read a whole answer in the client's own wire into the builder. If it is too long to be held,
    nothing is known of it: then it is read up to the second value, the first chunk that does not
    fit."""
    excess = await builder.gather_or_stop(reply)
    if excess is not None:
        return Facts(), excess
    body = builder.provider_bytes
    if not body:
        raise UpstreamError("the answer is empty", code="upstream_empty")
    try:
        json = parse_object(body)
    except WireError as error:
        raise UpstreamError(str(error)) from error
    facts = whole_facts(builder.incoming.wire, json)
    if facts.error is not None:
        raise reported_error(json) if json.get("error") else UpstreamError(facts.error)
    return facts, None


async def read_completion(builder: TurnBuilder, reply: Reply, wire: Wire) -> Completion:
    """Read a whole answer in another wire than the client's into the builder."""
    body = await builder.gather(reply)
    if not body:
        raise UpstreamError("the answer is empty", code="upstream_empty")
    return wire_format(wire).parse_answer(body)


def replace_model(body: bytes, model: str) -> bytes:
    """The same body with another model name."""
    try:
        begin, end = JsonDocument(body).field("model")
    except (UnsafeBytesError, msgspec.MsgspecError) as error:
        raise WireError(
            f"the model's name cannot be found in the body: {error}", param="model"
        ) from error
    return body[:begin] + msgspec.json.encode(model) + body[end:]


@dataclass(frozen=True, slots=True)
class ReadReply:
    """A reply whose body has been read (ports.Reply)."""

    status: int
    headers: Headers
    body: bytes

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self.body

    async def aclose(self) -> None:
        """Do nothing: the body has been read."""
