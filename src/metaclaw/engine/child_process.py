"""Start, use and end the child processes of the program: engine, embedding and trainer."""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Final, Generic, TypeAlias, TypeVar

from metaclaw.engine import frames
from metaclaw.engine.frames import Unpacker
from metaclaw.engine.training import frames as trainer_frames

log = logging.getLogger(__name__)

_READ_BYTES: Final = 1 << 16
_TRAINER_READ_BYTES: Final = 1 << 20
_PATIENCE_S: Final = 2.0
_MAX_THREADS: Final = 8
_Message = TypeVar("_Message")
_Answer: TypeAlias = trainer_frames.FromTrainer | None
_Asked: TypeAlias = "tuple[bytes, asyncio.Future[_Answer]]"


def default_threads(most: int = _MAX_THREADS) -> int:
    """The cores that this process may use, up to a limit."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return min(cores, most)


def conversion(convert: bool | Path) -> list[str]:
    """The arguments with which a process makes the model's folder first; none without `convert`."""
    if convert is False:
        return []
    return ["--convert"] if convert is True else ["--convert", str(convert)]


class ChildProcess(Generic[_Message]):
    """A process and its two pipes. It inherits no other file of this process: Python opens files
    and sockets as not inheritable.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        writer: asyncio.StreamWriter,
        reader: asyncio.StreamReader,
        decode: Callable[[bytes], _Message],
    ) -> None:
        self._process = process
        self._writer = writer
        self._reader = reader
        self._decode = decode

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, frame: bytes) -> None:
        """Write one packed message. If the process has ended, nothing happens: `messages` shows the
        end.
        """
        if not self._writer.is_closing():
            self._writer.write(frame)

    async def messages(self) -> AsyncIterator[_Message]:
        """The messages of the process, until it ends."""
        unpacker = Unpacker()
        while chunk := await self._reader.read(_READ_BYTES):
            for body in unpacker.feed(chunk):
                yield self._decode(body)

    async def close(self) -> int:
        """End the process by closing its input, or by force if it does not end; returns its exit
        status.
        """
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await self._process.wait()
        except TimeoutError:
            self._process.kill()
            return await self._process.wait()


EngineProcess: TypeAlias = ChildProcess[frames.FromEngine]
_Pipes: TypeAlias = tuple[asyncio.subprocess.Process, asyncio.StreamWriter, asyncio.StreamReader]


async def start_engine(arguments: Sequence[str], threads: int) -> EngineProcess:
    """Start the engine process."""
    return ChildProcess(
        *await spawn("metaclaw.engine", arguments, _engine_environment(threads)),
        frames.from_engine.decode,
    )


async def spawn(module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> _Pipes:
    """Start a module as a process in a new session, which a terminal's Ctrl-C does not reach. It
    ends when its input ends.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", module, *arguments),
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
        # Waiting threads sleep instead of spinning: on a busy machine that is faster, and it leaves
        # the cores to the proxy.
        "OMP_WAIT_POLICY": "passive",
        # With huge pages the first token of a slot of the cache would take megabytes in each layer.
        "NUMPY_MADVISE_HUGEPAGE": "0",
        # The memory of freed weights goes back to the system at once, both with mimalloc (in some
        # builds of torch) and with glibc.
        "MIMALLOC_ARENA_PURGE_MULT": "0",
        "MALLOC_MMAP_THRESHOLD_": str(2 << 20),
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
    }


class TrainerProcess:
    """The trainer process, its pipes, and a thread that waits for its answers.

    It has its own process group, so that a Ctrl-C does not reach it and the whole group can be
    stopped. On Linux it also has its own session, because Linux compares priorities between
    sessions, and the trainer gives its session the lowest. Elsewhere it stays in our session, so
    that the system ends it when we are killed, even if it is stopped."""

    def __init__(self, arguments: Sequence[str], threads: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = _spawn_trainer(
            [*arguments, "--parent", str(os.getpid())], _trainer_environment(threads)
        )
        self._is_over = False
        self._inbox: SimpleQueue[_Asked | None] = SimpleQueue()
        # A daemon: a program that ends without `reap` must not wait for a stopped trainer.
        self._thread = threading.Thread(target=self._converse, name="trainer", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The id of the process and of its group."""
        return self._process.pid

    def stop(self) -> None:
        """Stop the process at once, whatever it is doing."""
        self._send_signal(signal.SIGSTOP)

    def go(self) -> None:
        """Let the process continue."""
        self._send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process by force, also while it is stopped. A waiting request is answered with
        None.
        """
        self._send_signal(signal.SIGKILL)

    def _send_signal(self, number: signal.Signals) -> None:
        if not self._is_over:
            # The group may be gone, or only its unreaped leader may be left (on macOS: not
            # permitted).
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    async def ask(self, frame: bytes = b"") -> _Answer:
        """Send a message and wait for its answer; None if the process ended. A cancelled caller
        ends the process.

        An empty message, sent first, is answered when the process is ready.
        """
        answered: asyncio.Future[_Answer] = self._loop.create_future()
        self._inbox.put((frame, answered))
        try:
            return await answered
        except asyncio.CancelledError:
            self.kill()
            raise

    async def reap(self) -> int:
        """End the process and wait until it is gone; its exit status."""
        self.kill()
        self._is_over = True  # process ids are reused
        self._inbox.put(None)
        return await asyncio.to_thread(self._wait)

    def _wait(self) -> int:
        status = self._process.wait()
        self._thread.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        return status

    def _converse(self) -> None:
        unpacker = Unpacker()
        while (item := self._inbox.get()) is not None:
            frame, answered = item
            answer = self._exchange(frame, unpacker)
            with contextlib.suppress(RuntimeError):  # the loop has closed
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


def _spawn_trainer(
    arguments: Sequence[str], environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "metaclaw.engine.training", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env=environment,
        start_new_session=sys.platform == "linux",
        process_group=0 if sys.platform != "linux" else None,
    )


def _trainer_environment(threads: int) -> dict[str, str]:
    return {
        # Waiting threads sleep instead of spinning, as in the serving engine.
        "OMP_WAIT_POLICY": "passive",
        # Milliseconds. Torch soon reuses the memory it frees; returning it at once costs a tenth of
        # a step in page faults.
        "MIMALLOC_PURGE_DELAY": "1000",
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
    }
