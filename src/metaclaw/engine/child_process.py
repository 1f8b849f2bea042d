"""The engine process and the trainer process as the program sees them: started, sent messages, ended."""

import asyncio
import contextlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Final, TypeAlias

from metaclaw.engine import frames
from metaclaw.engine.pipe import Unpacker
from metaclaw.engine.training import frames as trainer_frames
from metaclaw.engine.training_pause import FlagFile, ProcessGroup

_ENGINE_READ_BYTES: Final = 1 << 16
_PATIENCE_S: Final = 2.0


class EngineProcess:
    """The process and its two pipes. It holds no other file of ours: Python's files and sockets are not inherited."""

    def __init__(self, process: asyncio.subprocess.Process, writer: asyncio.StreamWriter, reader: asyncio.StreamReader) -> None:
        self._process = process
        self._writer = writer
        self._reader = reader

    @classmethod
    async def spawn(cls, arguments: Sequence[str], threads: int) -> "EngineProcess":
        """Start the engine. A session of its own keeps a terminal's Ctrl-C away from it: it ends when its input ends."""
        return cls(*await _spawn_engine(arguments, _engine_environment(threads)))

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def send(self, frame: bytes) -> None:
        """Write one packed message; to an engine that has gone it is lost, and its end is noticed where its messages are read."""
        if not self._writer.is_closing():
            self._writer.write(frame)

    async def messages(self) -> AsyncIterator[frames.FromEngine]:
        """Everything the engine says, until it ends."""
        unpacker = Unpacker()
        while chunk := await self._reader.read(_ENGINE_READ_BYTES):
            for body in unpacker.feed(chunk):
                yield frames.from_engine.decode(body)

    async def close(self) -> int:
        """End the process, by closing its input and, if that does not help, by force; its exit status."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await self._process.wait()
        except TimeoutError:
            self._process.kill()
            return await self._process.wait()


async def _spawn_engine(
    arguments: Sequence[str], environment: Mapping[str, str]
) -> tuple[asyncio.subprocess.Process, asyncio.StreamWriter, asyncio.StreamReader]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "metaclaw.engine",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    return process, process.stdin, process.stdout


def _engine_environment(threads: int) -> dict[str, str]:
    return {
        # Waiting threads sleep instead of spinning: on a busy machine that is faster, and it leaves the cores to the proxy.
        "OMP_WAIT_POLICY": "passive",
        # A slot of the cache is used from its beginning: with huge pages its first token would take megabytes in each layer.
        "NUMPY_MADVISE_HUGEPAGE": "0",
        # The memory of weights that have gone goes back to the system at once: where torch has mimalloc, and with glibc.
        "MIMALLOC_ARENA_PURGE_MULT": "0",
        "MALLOC_MMAP_THRESHOLD_": str(2 << 20),
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
    }


log = logging.getLogger(__name__)

_TRAINER_READ_BYTES: Final = 1 << 20
_Answer: TypeAlias = trainer_frames.FromTrainer | None
_Asked: TypeAlias = "tuple[bytes, asyncio.Future[_Answer]]"


class TrainerProcess:
    """A Pausable: the process, its pipes, and a thread that waits for it, so that the event loop never does.

    It leads a process group of its own, so that a Ctrl-C does not reach it and all of it can be stopped. On Linux the group is a
    session, too: priorities are compared between sessions there, and it gives its own the lowest. Elsewhere it stays in our
    session, for then the system ends it, though it may be standing still, when we are killed.
    """

    def __init__(self, arguments: Sequence[str], threads: int, *, has_signals: bool = sys.platform != "win32") -> None:
        self._loop = asyncio.get_running_loop()
        self._flags = None if has_signals else Path(tempfile.mkdtemp(prefix="metaclaw-"))
        more = [] if self._flags is None else ["--flag", str(self._flags / "stand-still")]
        given = [*arguments, "--parent", str(os.getpid()), *more]
        self._process = _spawn_trainer(given, _trainer_environment(threads), has_signals=has_signals)
        self._walker = ProcessGroup(self._process.pid) if self._flags is None else FlagFile(self._flags / "stand-still")
        self._is_over = False
        self._inbox: SimpleQueue[_Asked | None] = SimpleQueue()
        # A daemon: a program that ends without closing us must not wait for a trainer that stands still.
        self._thread = threading.Thread(target=self._converse, name="trainer", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The process's number, which is its group's, too."""
        return self._process.pid

    def stop(self) -> None:
        """Stand still, wherever it is."""
        if not self._is_over:
            self._walker.stop()

    def go(self) -> None:
        """Go on."""
        if not self._is_over:
            self._walker.go()

    def kill(self) -> None:
        """End it by force, also while it stands still. What it was asked is answered with None."""
        if self._is_over:
            return
        if isinstance(self._walker, ProcessGroup):
            self._walker.kill()
        else:
            self._process.kill()

    async def ask(self, frame: bytes = b"") -> _Answer:
        """Send a message and wait for its answer; None if the process ended. A caller that goes away ends the process.

        The first answer, to nothing, is that it is ready.
        """
        answered: asyncio.Future[_Answer] = self._loop.create_future()
        self._inbox.put((frame, answered))
        try:
            return await answered
        except asyncio.CancelledError:
            self.kill()
            raise

    async def bury(self) -> int:
        """End it and wait until it is gone; its exit status."""
        self.kill()
        self._is_over = True  # its number may soon be another's
        self._inbox.put(None)
        return await asyncio.to_thread(self._bury)

    def _bury(self) -> int:
        status = self._process.wait()
        self._thread.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        if self._flags is not None:
            shutil.rmtree(self._flags, ignore_errors=True)
        return status

    def _converse(self) -> None:
        unpacker = Unpacker()
        while (asked := self._inbox.get()) is not None:
            frame, answered = asked
            answer = self._exchange(frame, unpacker)
            with suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(_settle, answered, answer)

    def _exchange(self, frame: bytes, unpacker: Unpacker) -> _Answer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        rest = memoryview(frame)
        try:
            while rest:
                rest = rest[self._process.stdin.write(rest) :]
        except OSError:
            return None
        while chunk := self._process.stdout.read(_TRAINER_READ_BYTES):
            for body in unpacker.feed(chunk):
                answer: trainer_frames.FromTrainer = trainer_frames.from_trainer.decode(body)
                if not isinstance(answer, trainer_frames.Preparing):
                    return answer
                log.debug("trainer converting=%d%%", round(answer.share * 100))
        return None


def _settle(answered: "asyncio.Future[_Answer]", answer: _Answer) -> None:
    if not answered.done():
        answered.set_result(answer)


def _spawn_trainer(arguments: Sequence[str], environment: Mapping[str, str], *, has_signals: bool) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "metaclaw.engine.training", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env=environment,
        start_new_session=sys.platform == "linux",
        process_group=0 if has_signals and sys.platform != "linux" else None,
    )


def _trainer_environment(threads: int) -> dict[str, str]:
    return {
        # Waiting threads sleep instead of spinning, as in the serving engine.
        "OMP_WAIT_POLICY": "passive",
        # Milliseconds. What torch lets go it takes again a moment later; given back in between, a tenth of a step is page faults.
        "MIMALLOC_PURGE_DELAY": "1000",
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
    }
