"""Embedding models behind a provider's `/v1/embeddings`."""

import asyncio
from array import array
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Final

import anyio.to_thread
import msgspec

from metaclaw.domain.chat import Wire
from metaclaw.errors import UpstreamError, WireError
from metaclaw.ports import Call, HttpProvider
from metaclaw.upstream.asking import gather_body
from metaclaw.upstream.failures import TIMEOUT
from metaclaw.wires import encode_json, wire_format

_PATH: Final = "/embeddings"
_HEADERS: Final = (("content-type", "application/json"), ("accept", "application/json"))
_HEAD_CHARS, _TAIL_CHARS = 700, 300
_MOST_DIMENSIONS: Final = 8192


class _Embedded(msgspec.Struct):
    embedding: list[float]
    index: int | None = None


class _Reply(msgspec.Struct):
    data: list[_Embedded]


class HttpEmbeddings:
    """One embedding model of a provider. `redact` replaces secrets in the texts before they are sent; it runs in a thread."""

    def __init__(
        self, provider: HttpProvider, model: str, redact: Callable[[Sequence[str]], Sequence[str]], *, timeout_s: float = 30.0
    ) -> None:
        self._provider = provider
        self._model = model
        self._redact = redact
        self._timeout_s = timeout_s
        self._who = f"provider {provider.name}"

    @property
    def name(self) -> str:
        """`provider/model`."""
        return f"{self._provider.name}/{self._model}"

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """A vector for each text, as float32 in the machine's byte order. Raises UpstreamError."""
        try:
            async with asyncio.timeout(self._timeout_s):
                redacted = await anyio.to_thread.run_sync(self._redact, texts)
                body = encode_json({"model": self._model, "input": [_ends(text) for text in redacted]})
                return self._read(await self._call(body), len(texts))
        except TimeoutError as cause:
            message = f"{self._who} gave no embeddings within {self._timeout_s:g} s"
            raise UpstreamError(message, status=504, retryable=True, code=TIMEOUT) from cause
        except WireError as error:
            raise UpstreamError(f"{self._who} cannot be asked: {error}", status=error.status, code=error.code) from error

    async def _call(self, body: bytes) -> bytes:
        reply = await self._provider.call(Call("POST", _PATH, "", _HEADERS, body), {})
        try:
            answer = await gather_body(reply, self._provider.name)
        finally:
            await reply.aclose()
        if reply.status >= 400:
            message, code = wire_format(Wire.CHAT).parse_error(reply.status, answer)
            raise UpstreamError(f"{self._who} refused ({reply.status}): {message}", status=reply.status, code=code)
        return answer

    def _read(self, answer: bytes, count: int) -> list[bytes]:
        try:
            data = msgspec.json.decode(answer, type=_Reply).data
        except (msgspec.MsgspecError, ValueError) as cause:
            raise UpstreamError(f"{self._who} sent no embeddings: {cause}") from cause
        if all(one.index is not None for one in data):
            data.sort(key=lambda one: one.index or 0)
        sizes = {len(one.embedding) for one in data}
        if len(data) != count or len(sizes) != 1 or not 0 < min(sizes) <= _MOST_DIMENSIONS:
            raise UpstreamError(f"{self._who} sent {len(data)} embeddings of {sorted(sizes)} dimensions for {count} texts")
        if not all(isfinite(sum(one.embedding)) for one in data):
            raise UpstreamError(f"{self._who} sent an embedding that is not finite")
        return [array("f", one.embedding).tobytes() for one in data]


def _ends(text: str) -> str:
    """The beginning and the end of a long text."""
    return text if len(text) <= _HEAD_CHARS + _TAIL_CHARS else f"{text[:_HEAD_CHARS]} {text[-_TAIL_CHARS:]}"
