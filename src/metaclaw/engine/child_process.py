"""Start, use and end the child processes of the program: engine, embedding and trainer."""

import asyncio
import contextlib
import os
import pickle
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

from metaclaw.engine import frames
from metaclaw.engine.frames import Unpacker
from metaclaw.engine.training.calls import FromTrainer

_READ_BYTES: Final = 1 << 20
_PATIENCE_S: Final = 2.0
_MAX_THREADS: Final = 8
_Message = TypeVar("_Message")


def default_threads(most: int = _MAX_THREADS) -> int:
    """The cores that this process may use, up to a limit."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return min(cores, most)


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
        self._messages = self.messages()

    @property
    def pid(self) -> int:
        """The id of the process, and of its group."""
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

    async def next_message(self) -> _Message | None:
        """The next message; None if the process has ended."""
        return await anext(self._messages, None)

    def stop(self) -> None:
        """Stop the whole process group at once, whatever it is doing."""
        self._signal(signal.SIGSTOP)

    def go(self) -> None:
        """Let the process group continue."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process group by force, also while it is stopped."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            # The group may be gone, or only its unreaped leader may be left (on macOS: not
            # permitted).
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

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
            self.kill()
            return await self._process.wait()


EngineProcess: TypeAlias = ChildProcess[frames.FromEngine]
TrainerProcess: TypeAlias = ChildProcess[FromTrainer]
_Pipes: TypeAlias = tuple[asyncio.subprocess.Process, asyncio.StreamWriter, asyncio.StreamReader]


async def start_engine(options: frames.EngineOptions) -> EngineProcess:
    """Start the engine process."""
    more = {
        # With huge pages the first token of a slot of the cache would take megabytes in each layer.
        "NUMPY_MADVISE_HUGEPAGE": "0",
        # The memory of freed weights goes back to the system at once, both with mimalloc (in some
        # builds of torch) and with glibc.
        "MIMALLOC_ARENA_PURGE_MULT": "0",
        "MALLOC_MMAP_THRESHOLD_": str(2 << 20),
    }
    variables = environment(options.threads, more)
    pipes = await spawn("metaclaw.engine", [options.as_argument()], variables)
    return ChildProcess(*pipes, frames.from_engine.decode)


async def start_trainer(options: frames.TrainerOptions) -> TrainerProcess:
    """Start the trainer process."""
    # Milliseconds. Torch soon reuses the memory it frees; returning it at once costs a tenth of a
    # step in page faults.
    more = {"MIMALLOC_PURGE_DELAY": "1000"}
    variables = environment(options.threads, more)
    pipes = await spawn("metaclaw.engine.training", [options.as_argument()], variables)
    return ChildProcess(*pipes, pickle.loads)


async def spawn(module: str, arguments: Sequence[str], variables: Mapping[str, str]) -> _Pipes:
    """Start a module as a process in a group of its own, which a terminal's Ctrl-C does not reach,
    and which can be stopped as a whole. It ends when its input ends.

    On Linux it also has its own session, because Linux compares priorities between sessions, and
    the trainer gives its session the lowest. Elsewhere it stays in our session, so that the system
    ends it when we are killed, even if it is stopped."""
    is_linux = sys.platform == "linux"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", module, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=variables,
        start_new_session=is_linux,
        preexec_fn=None if is_linux else os.setpgrp,  # uvloop has no process_group
    )
    assert process.stdin is not None
    assert process.stdout is not None
    return process, process.stdin, process.stdout


def environment(threads: int, more: Mapping[str, str]) -> dict[str, str]:
    """The variables of a process that computes; those of `more` unless they are set."""
    return {
        # Waiting threads sleep instead of spinning: on a busy machine that is faster, and it leaves
        # the cores to the proxy.
        "OMP_WAIT_POLICY": "passive",
        **more,
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
    }
