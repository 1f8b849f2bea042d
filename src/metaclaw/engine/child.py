"""One run of the engine process, seen from the program: started, spoken to, and gone when either side ends."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Final

from metaclaw.engine import frames
from metaclaw.engine.pipe import Unpacker

_READ_BYTES: Final = 1 << 16
_PATIENCE_S: Final = 2.0


class Child:
    """The process and its two pipes. It holds no other file of ours: Python's files and sockets are not inherited."""

    def __init__(self, process: asyncio.subprocess.Process, writer: asyncio.StreamWriter, reader: asyncio.StreamReader) -> None:
        self._process = process
        self._writer = writer
        self._reader = reader

    @classmethod
    async def spawn(cls, arguments: Sequence[str], threads: int) -> "Child":
        """Start the engine. A session of its own keeps a terminal's Ctrl-C away from it: it ends when its input ends."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "metaclaw.engine",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=_environment(threads),
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        return cls(process, process.stdin, process.stdout)

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
        while chunk := await self._reader.read(_READ_BYTES):
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


def _environment(threads: int) -> dict[str, str]:
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
