"""Vectors from a provider's embedding model: the library's in the background, a request's at once; after a failure, a pause."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, Protocol

from metaclaw.errors import UpstreamError

log = logging.getLogger(__name__)

# Reading the vectors of a batch keeps the serving process busy for some milliseconds.
_BATCH: Final = 16
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 300.0
_MOST_REASON_CHARS: Final = 200
# What servers answer to more texts at once than they take.
_TOO_MANY: Final = frozenset({400, 413, 422})


class Embeddings(Protocol):
    """An embedding model."""

    @property
    def name(self) -> str: ...
    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """A vector for each text, as float32. Raises UpstreamError."""


class VectorFetcher:
    """Fetches vectors. After a failure nothing is sent for a while, first a second, later up to five minutes."""

    def __init__(
        self, embeddings: Embeddings, is_needed: Callable[[str], bool], deliver: Callable[[list[str], list[bytes]], None]
    ) -> None:
        """`is_needed` tells whether a text is still in the library; `deliver` takes the vectors of the library's texts."""
        self._embeddings = embeddings
        self._is_needed = is_needed
        self._deliver = deliver
        self._missing: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._most = _BATCH
        self._dimensions = 0
        self._pause_s = 0.0
        self._resumes_at = 0.0
        self.trouble: str | None = None
        """Why the last call failed; None where it did not."""

    @property
    def is_paused(self) -> bool:
        """Whether nothing is sent now, because the provider failed a moment ago."""
        return asyncio.get_running_loop().time() < self._resumes_at

    def want(self, texts: Sequence[str]) -> None:
        """Fetch these in the background."""
        self._missing.update(dict.fromkeys(texts))
        if self._missing and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._fetch_all(), name="embeddings of the library")

    def reset(self) -> None:
        """Want nothing any more."""
        self._missing.clear()

    async def fetch(self, text: str) -> bytes | None:
        """The vector of a request; None where the provider fails, or did so a moment ago."""
        if self.is_paused:
            return None
        try:
            [vector] = await self._embed([text])
        except UpstreamError as error:
            self._failed(error)
            return None
        return vector

    async def aclose(self) -> None:
        """Stop fetching."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _fetch_all(self) -> None:
        while self._missing:
            if self.is_paused:
                await asyncio.sleep(self._resumes_at - asyncio.get_running_loop().time())
            batch = self._next()
            if not batch:
                return
            try:
                vectors = await self._embed(batch)
            except UpstreamError as error:
                if error.status in _TOO_MANY and len(batch) > 1:
                    self._most = len(batch) // 2
                    continue
                self._most = _BATCH
                self._failed(error)
                continue
            for text in batch:
                self._missing.pop(text, None)
            self._deliver(batch, vectors)

    def _next(self) -> list[str]:
        """The next texts that are still in the library."""
        while batch := list(islice(self._missing, self._most)):
            gone = [text for text in batch if not self._is_needed(text)]
            if not gone:
                break
            for text in gone:
                del self._missing[text]
        return batch

    async def _embed(self, texts: Sequence[str]) -> list[bytes]:
        vectors = await self._embeddings.embed(texts)
        before, self._dimensions = self._dimensions, len(vectors[0])
        if before not in (0, self._dimensions):
            # An error at first: a server that answers so and so must not have the whole library fetched again and again.
            raise UpstreamError(f"{self._embeddings.name} sent vectors of another length than before")
        if self.trouble is not None:
            log.info("embeddings_recovered model=%s", self._embeddings.name)
        self.trouble, self._pause_s, self._resumes_at = None, 0.0, 0.0
        return vectors

    def _failed(self, error: UpstreamError) -> None:
        if self.is_paused:
            return  # of calls that fail together, one counts
        if self.trouble is None:
            log.warning("embeddings_failed model=%s reason=%.200s", self._embeddings.name, error)
        self.trouble = str(error)[:_MOST_REASON_CHARS]
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S) if self._pause_s else _FIRST_PAUSE_S
        self._resumes_at = asyncio.get_running_loop().time() + self._pause_s
