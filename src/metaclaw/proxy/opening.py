"""Finding who answers: candidates in order, each asked in a wire it speaks, until one gives something to relay."""

from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TypeAlias

import msgspec
from typing_extensions import TypeIs

from metaclaw.domain.chat import Begin, ChatRequest, Completion, Delta, End, Finish, TextDelta, Usage, Wire
from metaclaw.domain.policy import BASE_POLICY
from metaclaw.domain.turn import apply_splices
from metaclaw.errors import UpstreamError
from metaclaw.ports import Call, Headers, HttpProvider, ModelProvider, Reply
from metaclaw.proxy.body import parse_object
from metaclaw.proxy.draft import Draft, content_type
from metaclaw.proxy.inspection import Limits, is_stream, read_completion, read_facts, read_opening
from metaclaw.proxy.renaming import replace_model
from metaclaw.upstream import (
    Destination,
    PolicySlot,
    ProviderCandidate,
    ProviderHealth,
    candidates,
    has_credentials,
    moves_on,
    open_first,
    reply_headers,
)
from metaclaw.wires import Facts, encode_json, plain, wire_format

Provider: TypeAlias = HttpProvider | ModelProvider

_PATHS = {Wire.CHAT: "/chat/completions", Wire.RESPONSES: "/responses", Wire.MESSAGES: "/messages"}
FAREWELL = "session-end"
"""The kind of turn by which a client only says that it is done; no provider hears of it."""

_KEY_REFUSED = (401, 402, 403)
# In which wire a provider is asked that does not speak the client's own.
_PREFERRED = (Wire.CHAT, Wire.MESSAGES, Wire.RESPONSES)


class Relayed(msgspec.Struct, frozen=True, gc=False):
    """The provider answers in the client's own wire; `headers` are those the client may see.

    Of a stream, `opening` has been read; of a whole answer everything has, and `facts` are what it says. A refusal has neither.
    """

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


@dataclass(frozen=True, slots=True)
class Translated:
    """The provider answers in another wire than the client's: asked with `body`, in `wire`.

    Of a stream, `opening` has been read; a whole answer is `completion`. A refusal has neither.
    """

    reply: Reply
    request: ChatRequest
    wire: Wire
    body: bytes
    opening: bytes | None = None
    completion: Completion | None = None

    @property
    def status(self) -> int:
        return self.reply.status

    async def aclose(self) -> None:
        await self.reply.aclose()


@dataclass(frozen=True, slots=True)
class Generated:
    """A model answers in deltas."""

    deltas: AsyncGenerator[Delta, None]
    request: ChatRequest
    status: int = 200

    async def aclose(self) -> None:
        await self.deltas.aclose()


Opened: TypeAlias = Relayed | Translated | Generated


def is_http(provider: Provider) -> TypeIs[HttpProvider]:
    """Whether a provider is reached by HTTP rather than asked directly."""
    return hasattr(provider, "wires")


class Providers:
    """The configured providers, and what routing knows of them."""

    def __init__(
        self, providers: Sequence[Provider], passthrough: frozenset[str] = frozenset(), policy: PolicySlot | None = None
    ) -> None:
        self.all = tuple(providers)
        self._policy = policy
        self._named = {provider.name: provider for provider in providers}
        self._passthrough = passthrough
        destinations = tuple(self._destination(provider) for provider in providers)
        # Clients name few models; the bound is against those who name a new one every time.
        self.candidates = lru_cache(256)(partial(candidates, destinations))
        """Who may answer a request of this wire for this model, in the order they are tried."""

    def _destination(self, provider: Provider) -> Destination:
        if self._policy is not None and self._policy.leads and provider.name == self._policy.provider:
            return Destination(provider.name, provider.models, leads=True)
        # A model in this process takes any name: whoever has no other provider wants an answer, not a spelling lesson.
        if not is_http(provider):
            return Destination(provider.name, own=provider.models)
        return Destination(provider.name, provider.models, provider.wires, provider.name in self._passthrough)

    def may_have(self, provider: HttpProvider, caller: Mapping[str, str]) -> bool:
        """Whether this caller may ask the provider: one that is given the caller's own credentials needs some for its vendor."""
        vendor = Wire.MESSAGES if "anthropic-version" in caller else Wire.CHAT
        return provider.name not in self._passthrough or (vendor in provider.wires and has_credentials(caller))

    def for_caller(self, wire: Wire, model: str, caller: Mapping[str, str]) -> tuple[ProviderCandidate, ...]:
        """The candidates for this caller: without credentials of its own, no passthrough provider is a fallback."""
        chosen = self.candidates(wire, model)
        if not self._passthrough or has_credentials(caller):
            return chosen
        return tuple(one for place, one in enumerate(chosen) if not place or one.name not in self._passthrough)

    def is_own_key(self, name: str) -> bool:
        """Whether the provider is asked with a key of ours."""
        return name not in self._passthrough

    def has_versions(self, name: str) -> bool:
        """Whether this provider answers with the weights that a request was stamped with."""
        return self._policy is not None and self._policy.provider == name

    def policy_answers(self, wire: Wire, model: str) -> bool:
        """Whether the policy's weights are the first that are asked."""
        chosen = self.candidates(wire, model)
        return bool(chosen) and self.has_versions(chosen[0].name)

    def is_embedded(self, wire: Wire, model: str) -> bool:
        """Whether the embedded model is the first that is asked."""
        chosen = self.candidates(wire, model)
        return bool(chosen) and not is_http(self._named[chosen[0].name])

    def model_for(self, candidate: ProviderCandidate, version: int) -> str:
        """The model to ask a provider for: where each version is a model of its own, the one of this version."""
        policy = self._policy
        if policy is None or policy.model_of is None or policy.provider != candidate.name or version == BASE_POLICY:
            return candidate.model
        return policy.model_of(version)

    def named(self, name: str) -> Provider:
        """The provider of this name."""
        return self._named[name]


class Opener:
    """Asks one provider after the other, in the wire each of them speaks."""

    def __init__(self, providers: Providers, health: ProviderHealth | None = None, limits: Limits | None = None) -> None:
        self._providers = providers
        self._limits = limits or Limits()
        self.health = health or ProviderHealth()

    async def open(self, draft: Draft) -> Opened:
        """The first answer worth relaying; the draft learns who gives it and what was sent."""
        if draft.origin.kind_reason == FAREWELL:
            draft.provider = "metaclaw"
            return Generated(_farewell(draft.incoming.model), _understood(draft))
        incoming = draft.incoming
        chosen = self._providers.for_caller(incoming.wire, incoming.model, incoming.headers)
        candidate, opened = await open_first(chosen, partial(self._ask, draft), self.health)
        draft.provider, draft.model = candidate.name, candidate.model
        if moves_on(opened.status):
            draft.unsay()  # those asked after it gave less
        elif opened.status in _KEY_REFUSED and self._providers.is_own_key(candidate.name):
            self.health.failed(candidate.name, f"it refused our key with status {opened.status}")
        if draft.stamp.policy_version != BASE_POLICY and not self._providers.has_versions(candidate.name):
            # Somebody else stepped in, with weights of their own.
            draft.stamp = replace(draft.stamp, policy_version=BASE_POLICY)
        match opened:
            case Relayed():
                draft.translated = opened.body
            case Translated():
                draft.provider_wire, draft.translated = opened.wire, opened.body
            case Generated():
                pass
        return opened

    def _ask(self, draft: Draft, candidate: ProviderCandidate) -> Awaitable[Opened]:
        provider = self._providers.named(candidate.name)
        draft.ask(provider.name)
        if not is_http(provider):
            return self._generate(draft, provider)
        model = self._providers.model_for(candidate, draft.stamp.policy_version)
        if draft.incoming.wire in provider.wires:
            return self._relay(draft, provider, model)
        return self._translate(draft, provider, model)

    async def _relay(self, draft: Draft, provider: HttpProvider, model: str) -> Relayed:
        incoming = draft.incoming
        body, renamed = apply_splices(incoming.body, draft.splices), None
        if model != incoming.model:
            body = renamed = replace_model(body, model)
        call = Call("POST", incoming.path, incoming.query, incoming.forward, body, session=draft.origin.session)
        reply = await provider.call(call, incoming.headers)
        headers = reply_headers(reply.headers)
        if reply.status >= 400:
            return Relayed(reply, headers, renamed)
        try:
            if is_stream(content_type(reply.headers), asked=incoming.stream):
                return Relayed(reply, headers, renamed, await read_opening(draft, reply))
            return Relayed(reply, headers, renamed, facts=await read_facts(draft, reply, self._limits))
        except BaseException as error:
            await reply.aclose()
            if isinstance(error, UpstreamError):
                raise _naming(provider, error) from error
            raise

    async def _translate(self, draft: Draft, provider: HttpProvider, model: str) -> Translated:
        incoming = draft.incoming
        wire = next(wire for wire in _PREFERRED if wire in provider.wires)
        request = replace(_understood(draft), model=model)
        body = encode_json(wire_format(wire).render_request(request))
        call = Call("POST", _PATHS[wire], "", _foreign(incoming.forward), body, session=draft.origin.session)
        reply = await provider.call(call, incoming.headers)
        if reply.status >= 400:
            return Translated(reply, request, wire, body)
        try:
            if is_stream(content_type(reply.headers), asked=request.stream):
                return Translated(reply, request, wire, body, await read_opening(draft, reply))
            completion = await read_completion(draft, reply, wire, self._limits)
            return Translated(reply, request, wire, body, completion=completion)
        except BaseException as error:
            await reply.aclose()
            if isinstance(error, UpstreamError):
                raise _naming(provider, error) from error
            raise

    async def _generate(self, draft: Draft, provider: ModelProvider) -> Generated:
        request = _understood(draft)
        version = draft.stamp.policy_version if self._providers.has_versions(provider.name) else BASE_POLICY
        deltas = provider.generate(plain(request), version)
        # The first delta shows that the model can answer at all; until then another provider may.
        try:
            first = await anext(deltas)
        except StopAsyncIteration as error:
            raise UpstreamError(f"provider {provider.name} gave no answer") from error
        return Generated(_chain(first, deltas), request)


def _naming(provider: HttpProvider, error: UpstreamError) -> UpstreamError:
    """The same error with the provider's name in it."""
    words = str(error)
    if not words.startswith("provider "):
        words = f"provider {provider.name} gave no answer: {words}"
    return UpstreamError(words, status=error.status, retryable=error.retryable, code=error.code)


def _understood(draft: Draft) -> ChatRequest:
    incoming = draft.incoming
    return wire_format(incoming.wire).parse_request(parse_object(apply_splices(incoming.body, draft.splices)))


async def _farewell(model: str) -> AsyncGenerator[Delta, None]:
    yield Begin("session-end", model)
    yield TextDelta("The session has ended.")
    yield End(Finish.STOP, Usage(0, 0))


async def _chain(first: Delta, rest: AsyncGenerator[Delta, None]) -> AsyncGenerator[Delta, None]:
    async with aclosing(rest) as deltas:
        yield first
        async for delta in deltas:
            yield delta


def _foreign(headers: Headers) -> Headers:
    """A client's header fields for a provider of another vendor: those that belong to its own wire stay behind."""
    return [(name, value) for name, value in headers if not name.startswith(("anthropic-", "openai-", "x-stainless-"))]
