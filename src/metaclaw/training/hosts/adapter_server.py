"""Servers that load LoRA adapters while they run, and draw tokens from them: vLLM and others like it.

Each version is loaded under its own name (`policy-000012`), which is never used for other weights.
The server reads the adapters' folders itself."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from metaclaw.domain.chat import Json
from metaclaw.domain.policy import BASE_POLICY, Weights
from metaclaw.domain.training import Rollout
from metaclaw.engine import is_complete_adapter
from metaclaw.errors import BackendDownError, TrainingError, UpstreamError, WeightsLostError
from metaclaw.ports import Call, HttpProvider, ModelProvider, PolicyHost, Reply
from metaclaw.training.backends.service import DrawnSequence, SampleRequest, as_rollout
from metaclaw.training.hosts.token_model import LOST, TokenModel, TokenPiece, check_weights
from metaclaw.upstream import MALFORMED, gather_body
from metaclaw.wires import EventParser

if TYPE_CHECKING:
    from metaclaw.engine import Vocabulary

log = logging.getLogger(__name__)

PREFIX = "policy-"
_HEADERS: Final = (("content-type", "application/json"), ("accept", "*/*"))
_CHANGE_S: Final = 120.0
_SAMPLE_S: Final = 1800.0
_CONTEXT_TOKENS: Final = 8192
_NOT_FOUND: Final = 404
_DONE: Final = "[DONE]"
_FINISHED: Final = ("stop", "length")


@dataclass(frozen=True, slots=True)
class ServerReply:
    """Status and text of an HTTP response."""

    status: int
    text: str


class AdapterRoutes(Protocol):
    """The routes of one kind of server. A request is a path and a JSON body."""

    def load(self, name: str, folder: str) -> tuple[str, Json]:
        """The request that loads an adapter."""

    def unload(self, name: str) -> tuple[str, Json]:
        """The request that unloads an adapter."""

    def complaint(self, reply: ServerReply) -> str | None:
        """Why the request failed, or None."""

    def is_taken(self, complaint: str) -> bool:
        """Whether it failed because an adapter of this name is loaded."""

    def is_gone(self, complaint: str) -> bool:
        """Whether it failed because no adapter of this name is loaded."""


class TokenRoutes(AdapterRoutes, Protocol):
    """The same for a server that takes prompts in tokens and returns the tokens it draws, with
    their log-probabilities at temperature 1.
    """

    def draw(self, request: SampleRequest, name: str | None, *, streams: bool) -> tuple[str, Json]:
        """The request that draws from an adapter, or from the untrained model."""

    def read(self, text: str, seen: int) -> list[TokenPiece]:
        """The tokens in a response, or in an event of a stream of which `seen` tokens have come.
        Raises ValueError.
        """


@dataclass(frozen=True, slots=True)
class HostSettings:
    """The server that answers with trained weights. `provider` is its root address, `model` its name
    for the untrained model. `in_use` returns the versions that serve, which must stay loaded;
    `vocabulary` reads the model's tokens from disk, once."""

    provider: HttpProvider
    model: str
    in_use: Callable[[], frozenset[int]]
    vocabulary: Callable[[], "Vocabulary"]


@dataclass(frozen=True, slots=True)
class ModelHost:
    """What loads versions, and how they are asked: by `serves`, or else by requests that are
    relayed to the provider with the model that `model_of` names. `draws` is the server that can
    draw rollouts for training."""

    host: PolicyHost
    model_of: Callable[[int], str] | None = None
    serves: ModelProvider | None = None
    draws: "TokenServer | None" = None


class AdapterServer:
    """One server, which loads and unloads adapters by name."""

    def __init__(self, provider: HttpProvider, routes: AdapterRoutes) -> None:
        self.name = provider.name
        self._provider = provider
        self._routes = routes

    async def load(self, name: str, folder: Path) -> None:
        """Load an adapter in addition to the others. Raises TrainingError."""
        asked = self._routes.load(name, str(folder.absolute()))
        complaint = await self._change(*asked)
        if complaint is not None and self._routes.is_taken(complaint):
            # The server ran before this process did, so the weights under this name may be others.
            await self.unload(name)
            complaint = await self._change(*asked)
        if complaint is not None:
            # The server reads the same folder: an incomplete adapter can never be loaded. Other
            # errors may be temporary.
            kind = TrainingError if is_complete_adapter(folder) else WeightsLostError
            raise kind(f"{name} cannot be loaded by {self.name}: {complaint}")

    async def unload(self, name: str) -> None:
        """Unload an adapter, if it is loaded; the server finishes its running answers."""
        complaint = await self._change(*self._routes.unload(name))
        if complaint is not None and not self._routes.is_gone(complaint):
            raise TrainingError(f"{name} cannot be unloaded by {self.name}: {complaint}")

    async def _change(self, path: str, body: Json) -> str | None:
        return self._routes.complaint(await self._post(path, body, _CHANGE_S))

    async def _post(self, path: str, body: Json, timeout_s: float) -> ServerReply:
        try:
            async with asyncio.timeout(timeout_s), self._open("POST", path, body) as reply:
                return ServerReply(reply.status, await self._text(reply))
        except TimeoutError as error:
            raise BackendDownError(f"{self.name} did not answer within {timeout_s:g} s") from error
        except UpstreamError as error:
            raise BackendDownError(str(error)) from error

    @asynccontextmanager
    async def _open(self, method: str, path: str, body: Json = None) -> AsyncIterator[Reply]:
        content = b"" if body is None else msgspec.json.encode(body)
        reply = await self._provider.call(Call(method, path, "", _HEADERS, content), {})
        try:
            yield reply
        finally:
            await reply.aclose()

    async def _text(self, reply: Reply) -> str:
        return (await gather_body(reply, self.name)).decode(errors="replace")


class _Card(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Cards(msgspec.Struct):
    data: list[_Card]


class TokenServer(AdapterServer):
    """A server that draws tokens."""

    def __init__(self, settings: HostSettings, routes: TokenRoutes) -> None:
        super().__init__(settings.provider, routes)
        self._tokens = routes
        self._settings = settings
        self._context_tokens: int | None = None

    async def context_tokens(self) -> int:
        """The server's limit on the tokens of a prompt and its answer together. Raises
        UpstreamError.
        """
        if self._context_tokens is None:
            async with self._open("GET", "/v1/models") as reply:
                text = await self._text(reply)
            try:
                cards = msgspec.json.decode(text, type=_Cards).data
            except msgspec.DecodeError as error:
                raise self._garbled(f"status {reply.status}, no list of models: {error}") from error
            limits = {card.id: card.max_model_len for card in cards}
            self._context_tokens = limits.get(self._settings.model) or _CONTEXT_TOKENS
        return self._context_tokens

    async def rollouts(self, name: str | None, request: SampleRequest) -> list[Rollout]:
        """Draw `request.count` answers from an adapter, or from the untrained model. Raises
        TrainingError.
        """
        vocabulary = await asyncio.to_thread(self._settings.vocabulary)
        path, body = self._tokens.draw(request, name, streams=False)
        reply = await self._post(path, body, _SAMPLE_S)
        try:
            pieces = self._tokens.read(reply.text, 0) if reply.status < 400 else []
        except ValueError as error:
            raise TrainingError(f"{self.name} sent no tokens: {error}") from error
        drawn = {piece.index: piece for piece in pieces if piece.finish in _FINISHED}
        if drawn.keys() != set(range(request.count)):
            raise TrainingError(
                f"{self.name} finished {len(drawn)} answers where {request.count} were asked for"
                f" (status {reply.status}): {reply.text[:300]}"
            )
        return [
            as_rollout(
                DrawnSequence(piece.tokens, piece.logprobs, piece.is_whole),
                vocabulary.decode,
                vocabulary.end_ids,
            )
            for _, piece in sorted(drawn.items())
        ]

    async def stream(
        self, name: str | None, request: SampleRequest
    ) -> AsyncGenerator[TokenPiece, None]:
        """Draw one answer, as it comes. Raises UpstreamError."""
        path, body = self._tokens.draw(request, name, streams=True)
        async with self._open("POST", path, body) as reply:
            if reply.status >= 400:
                raise await self._refusal(reply)
            parser, seen = EventParser(), 0
            async for chunk in reply.chunks():
                for event in parser.feed(chunk):
                    if event.data == _DONE:
                        return
                    for piece in self._read(event.data, seen):
                        seen += len(piece.tokens)
                        yield piece

    def _read(self, text: str, seen: int) -> list[TokenPiece]:
        try:
            return self._tokens.read(text, seen)
        except ValueError as error:
            raise self._garbled(str(error)) from error

    async def _refusal(self, reply: Reply) -> UpstreamError:
        message = f"{self.name} answered {reply.status}: {(await self._text(reply))[:300]}"
        code = LOST if reply.status == _NOT_FOUND else MALFORMED
        return UpstreamError(message, status=503, retryable=True, code=code)

    def _garbled(self, words: str) -> UpstreamError:
        return UpstreamError(f"{self.name} broke off: {words}", code=MALFORMED)


class AdapterHost:
    """A PolicyHost. After each load, older versions are unloaded, except the newest `keeps` and
    those `in_use`.
    """

    def __init__(
        self,
        server: AdapterServer,
        *,
        keeps: int = 2,
        in_use: Callable[[], frozenset[int]] = frozenset,
    ) -> None:
        self._server = server
        self._keeps = keeps
        self._in_use = in_use
        self._loaded: dict[int, Weights] = {}
        self._lost: dict[int, Weights] = {}
        self._one_at_a_time = asyncio.Lock()

    @property
    def loaded(self) -> frozenset[int]:
        """The versions that can be asked for."""
        return frozenset(self._loaded)

    async def load(self, version: int, weights: Weights) -> None:
        """Load a version in addition to the others. Raises TrainingError and changes nothing if it
        cannot be loaded.
        """
        async with self._one_at_a_time:
            if check_weights(self._loaded, version, weights):
                return
            if "://" in weights.adapter:
                raise TrainingError(
                    f"{weights.adapter} is not a folder with an adapter, so no other server can"
                    " load it"
                )
            await self._server.load(version_name(version), Path(weights.adapter))
            self._loaded[version] = weights
            log.info("version loaded server=%s version=%d", self._server.name, version)
            await self._tidy()

    async def unload(self, version: int) -> None:
        """Unload a version, if it is loaded; the server finishes its running answers."""
        async with self._one_at_a_time:
            if version in self._loaded:
                await self._server.unload(version_name(version))
                del self._loaded[version]
                log.info("version unloaded server=%s version=%d", self._server.name, version)

    def forget(self, version: int) -> None:
        """Note that the server no longer has this version, because it was restarted."""
        if (weights := self._loaded.pop(version, None)) is not None:
            self._lost[version] = weights

    async def reload(self, version: int) -> None:
        """Load a version that was forgotten, unless that was just done. Raises TrainingError."""
        async with self._one_at_a_time:
            if (weights := self._lost.pop(version, None)) is not None:
                await self._server.load(version_name(version), Path(weights.adapter))
                self._loaded[version] = weights

    async def _tidy(self) -> None:
        staying = {*sorted(self._loaded)[-self._keeps :], *self._in_use()}
        for version in sorted(self._loaded.keys() - staying):
            try:
                await self._server.unload(version_name(version))
                del self._loaded[version]
            except TrainingError as error:
                # The new version is loaded. Unloading the old one is tried again after the next
                # load.
                log.warning("version stays loaded server=%s error=%s", self._server.name, error)


@dataclass(frozen=True, slots=True)
class VersionTokens:
    """Answers of versions on a server (TokenSource). A version that the server lost in a restart is
    loaded again; if that fails, it is no longer `loaded`.
    """

    server: TokenServer
    host: AdapterHost

    async def context_tokens(self) -> int:
        return await self.server.context_tokens()

    async def stream(
        self, version: int, request: SampleRequest
    ) -> AsyncGenerator[TokenPiece, None]:
        name = None if version == BASE_POLICY else version_name(version)
        for may_reload in (True, False):
            try:
                async with aclosing(self.server.stream(name, request)) as pieces:
                    async for piece in pieces:
                        yield piece
                return
            except UpstreamError as error:
                if error.code != LOST:
                    raise
                log.warning("version_lost server=%s version=%d", self.server.name, version)
                self.host.forget(version)
                if not may_reload:
                    raise
                try:
                    await self.host.reload(version)
                except TrainingError:
                    raise error from None


def token_host(settings: HostSettings, routes: TokenRoutes) -> ModelHost:
    """A host that answers, and draws for training, in exact tokens."""
    server = TokenServer(settings, routes)
    host = AdapterHost(server, in_use=settings.in_use)
    model = TokenModel(VersionTokens(server, host), settings.vocabulary, settings.model)
    return ModelHost(host, serves=model, draws=server)


def version_name(version: int) -> str:
    """`policy-000012`."""
    return f"{PREFIX}{version:06d}"
