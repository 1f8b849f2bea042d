"""One run of the trainer process, seen from the program: started, asked one thing at a time, stopped and let go on, ended."""

import asyncio
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Final, TypeAlias

from metaclaw.engine.pipe import Unpacker
from metaclaw.engine.training import frames
from metaclaw.engine.turnstile import FlagFile, ProcessGroup

log = logging.getLogger(__name__)

_READ_BYTES: Final = 1 << 20
_Answer: TypeAlias = frames.FromTrainer | None
_Asked: TypeAlias = "tuple[bytes, asyncio.Future[_Answer]]"


class TrainerChild:
    """A Walker: the process, its pipes, and a thread that waits for it, so that the event loop never does.

    It leads a process group of its own, so that a Ctrl-C does not reach it and all of it can be stopped. On Linux the group is a
    session, too: priorities are compared between sessions there, and it gives its own the lowest. Elsewhere it stays in our
    session, for then the system ends it, though it may be standing still, when we are killed.
    """

    def __init__(self, arguments: Sequence[str], threads: int, *, has_signals: bool = sys.platform != "win32") -> None:
        self._loop = asyncio.get_running_loop()
        self._flags = None if has_signals else Path(tempfile.mkdtemp(prefix="metaclaw-"))
        more = [] if self._flags is None else ["--flag", str(self._flags / "stand-still")]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "metaclaw.engine.training", *arguments, "--parent", str(os.getpid()), *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=_environment(threads),
            start_new_session=sys.platform == "linux",
            process_group=0 if has_signals and sys.platform != "linux" else None,
        )
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
            with suppress(RuntimeError):  # the loop has closed: nobody waits any more
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
        while chunk := self._process.stdout.read(_READ_BYTES):
            for body in unpacker.feed(chunk):
                answer: frames.FromTrainer = frames.from_trainer.decode(body)
                if not isinstance(answer, frames.Preparing):
                    return answer
                log.debug("trainer converting=%d%%", round(answer.share * 100))
        return None


def _settle(answered: "asyncio.Future[_Answer]", answer: _Answer) -> None:
    if not answered.done():
        answered.set_result(answer)


def _environment(threads: int) -> dict[str, str]:
    return {
        # Waiting threads sleep instead of spinning, as in the serving engine.
        "OMP_WAIT_POLICY": "passive",
        # Milliseconds. What torch lets go it takes again a moment later; given back in between, a tenth of a step is page faults.
        "MIMALLOC_PURGE_DELAY": "1000",
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
    }
