"""A vLLM server as a served model with requests and answers in tokens: a ModelProvider and its
PolicyHost in one.

An answer relayed as text could not train, because its exact tokens are unknown. With
`return_token_ids` vLLM streams token ids and log-probabilities (at temperature 1, whatever the
sampling temperature is)."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Final

import msgspec

from metaclaw.domain.chat import Begin, ChatRequest, Delta, Json, Usage
from metaclaw.domain.ids import new_id
from metaclaw.domain.policy import BASE_POLICY, Weights
from metaclaw.engine import build_prompt, make_message
from metaclaw.errors import UpstreamError
from metaclaw.ports import Call, HttpProvider, Reply
from metaclaw.training.backends.service import SampleRequest
from metaclaw.training.hosts.lora_servers import (
    AdminClient,
    HostSettings,
    LoadingHost,
    ModelHost,
    VllmRoutes,
    version_name,
)
from metaclaw.training.hosts.token_reply import TokenReply, token_request
from metaclaw.upstream import MALFORMED
from metaclaw.wires import EventParser, wire_format

if TYPE_CHECKING:
    from metaclaw.engine import Vocabulary

log = logging.getLogger(__name__)

_HEADERS: Final = (("content-type", "application/json"), ("accept", "text/event-stream"))
_MOST_BYTES: Final = 1 << 20
_CONTEXT_TOKENS: Final = 8192
_DONE: Final = "[DONE]"
_NOT_FOUND: Final = 404


class _Logprobs(msgspec.Struct):
    token_logprobs: list[float | None]


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    error: msgspec.Raw | None = None


class _Card(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Cards(msgspec.Struct):
    data: list[_Card]


_chunks: Final = msgspec.json.Decoder(_Chunk)
_cards: Final = msgspec.json.Decoder(_Cards)


class VllmModel:
    """Versions of one model on a vLLM server. `model` is the server's name of the untrained model;
    `read` loads its vocabulary at the first request. A version that the server lost in a restart is
    no longer `loaded`.

    Temperature, top_p, top_k, seed and stops are supported; penalties are not applied.
    """

    def __init__(
        self,
        provider: HttpProvider,
        host: LoadingHost,
        model: str,
        read: Callable[[], "Vocabulary"],
        *,
        name: str = "policy",
        max_tokens: int = 1024,
    ) -> None:
        self.name = name
        self.models = (model,)
        self._provider = provider
        self._host = host
        self._read = read
        self._max_tokens = max_tokens
        self._context_tokens: int | None = None

    @property
    def loaded(self) -> frozenset[int]:
        return self._host.loaded

    async def load(self, version: int, weights: Weights) -> None:
        await self._host.load(version, weights)

    async def unload(self, version: int) -> None:
        await self._host.unload(version)

    async def generate(
        self, request: ChatRequest, version: int = BASE_POLICY
    ) -> AsyncGenerator[Delta, None]:
        """Answer with this version. Raises WireError, or UpstreamError, after which another
        provider may answer.
        """
        prompt = build_prompt(request)
        options = make_message(0, request, prompt)
        room = await self._room()
        asked = await token_request(
            request,
            prompt,
            options,
            self._vocabulary,
            context_tokens=room,
            max_tokens=self._max_tokens,
        )
        answer = TokenReply(self._vocabulary, request, prompt, asked.prompt, options.stop)
        is_whole = True
        async with self._asked(self._body(asked, version), version) as reply:
            yield Begin(
                new_id(wire_format(request.wire).id_prefix),
                self.models[0],
                Usage(len(asked.prompt), 0),
            )
            async for choice in self._choices(reply):
                for delta in answer.push(choice.token_ids or [], _numbers(choice)):
                    yield delta
                is_whole = choice.finish_reason != "length"
                if answer.is_over:
                    break
        for delta in answer.finish():
            yield delta
        yield answer.end(is_whole=is_whole)

    async def aclose(self) -> None:
        """The owner of the provider closes it."""

    @cached_property
    def _vocabulary(self) -> "Vocabulary":
        return self._read()

    async def _room(self) -> int:
        """The server's limit on the tokens of a prompt and its answer together."""
        if self._context_tokens is None:
            reply = await self._provider.call(Call("GET", "/models", "", _HEADERS, b""), {})
            try:
                cards = await self._read_cards(reply)
            finally:
                await reply.aclose()
            limits = {card.id: card.max_model_len for card in cards}
            self._context_tokens = limits.get(self.models[0]) or _CONTEXT_TOKENS
        return self._context_tokens

    async def _read_cards(self, reply: Reply) -> "list[_Card]":
        body = await _read_all(reply)
        try:
            return _cards.decode(body).data
        except msgspec.DecodeError as error:
            raise self._garbled(f"status {reply.status}, no list of models: {error}") from error

    def _body(self, asked: SampleRequest, version: int) -> dict[str, Json]:
        # The server draws special tokens like any other, so it must be told which of them end an
        # answer.
        return {
            "model": self.models[0] if version == BASE_POLICY else version_name(version),
            "prompt": list(asked.prompt),
            "max_tokens": asked.max_tokens,
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "top_k": asked.top_k,
            "seed": asked.seed,
            "stop_token_ids": list[Json](sorted(self._vocabulary.end_ids)),
            "logprobs": 1,
            "return_token_ids": True,
            "stream": True,
        }

    @asynccontextmanager
    async def _asked(self, body: dict[str, Json], version: int) -> AsyncIterator[Reply]:
        reply = await self._provider.call(
            Call("POST", "/completions", "", _HEADERS, msgspec.json.encode(body)), {}
        )
        try:
            if reply.status >= 400:
                raise await self._refusal(reply, version)
            yield reply
        finally:
            await reply.aclose()

    async def _refusal(self, reply: Reply, version: int) -> UpstreamError:
        body = await _read_all(reply)
        if reply.status == _NOT_FOUND and version != BASE_POLICY:
            log.warning("version_lost server=%s version=%d", self._provider.name, version)
            self._host.forget(version)
        message = (
            f"provider {self.name}: {self._provider.name} answered {reply.status}:"
            f" {body[:300].decode(errors='replace')}"
        )
        return UpstreamError(message, status=503, retryable=True, code="version_not_loaded")

    async def _choices(self, reply: Reply) -> AsyncIterator[_Choice]:
        parser = EventParser()
        async for piece in reply.chunks():
            for event in parser.feed(piece):
                if event.data == _DONE:
                    return
                for choice in self._chunk(event.data).choices:
                    yield choice

    def _chunk(self, data: str) -> _Chunk:
        try:
            chunk = _chunks.decode(data)
        except msgspec.DecodeError as error:
            raise self._garbled(str(error)) from error
        if chunk.error is not None:
            raise self._garbled(bytes(chunk.error).decode(errors="replace")[:300])
        return chunk

    def _garbled(self, words: str) -> UpstreamError:
        return UpstreamError(
            f"provider {self.name}: {self._provider.name} broke off: {words}", code=MALFORMED
        )


def connect(settings: HostSettings) -> ModelHost:
    """The entry point `vllm` of `metaclaw.model_hosts`."""
    admin = AdminClient(settings.base_url, settings.api_key)
    host = LoadingHost(admin, VllmRoutes(), in_use=settings.in_use)
    model = VllmModel(settings.provider, host, settings.model, settings.read_vocabulary)
    return ModelHost(model, serves=model)


async def _read_all(reply: Reply) -> bytes:
    """The body, cut after `_MOST_BYTES`."""
    body = b""
    async for piece in reply.chunks():
        body = (body + piece)[:_MOST_BYTES]
    return body


def _numbers(choice: _Choice) -> list[float]:
    """The log-probability of each token, at most zero: half precision rounds some to slightly
    more.
    """
    logprobs = [] if choice.logprobs is None else choice.logprobs.token_logprobs
    numbers = [min(logprob, 0.0) for logprob in logprobs if logprob is not None]
    if len(numbers) != len(choice.token_ids or []):
        raise UpstreamError(
            f"{len(numbers)} log-probabilities came for {len(choice.token_ids or [])} tokens",
            code=MALFORMED,
        )
    return numbers
