"""Worker processes that run checks: started when needed, reused, and replaced when they end; at
most one of a kind per core.

The limit of a check counts its processor time, not the time for which it waits for a worker or a
processor. `wall_limit_s` ends checks that do nothing."""

import atexit
import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Generic, TypeVar

from metaclaw.checks import program_server
from metaclaw.domain.chat import Json

MATCHER: Final = Path(__file__).with_name("matcher.py")
PROGRAM_SERVER: Final = Path(program_server.__file__)
_MAX_OUTPUT_BYTES: Final = 64 * 1024
_MEMORY_MIB: Final = 512
_GRACE_S: Final = 5.0
WORKERS: Final = os.cpu_count() or 1
_spent = threading.local()


def work_clock() -> float:
    """The processor time of this thread and of what workers did for it, in seconds."""
    return time.thread_time() + getattr(_spent, "work_s", 0.0)


def _spend(work_s: float) -> None:
    _spent.work_s = getattr(_spent, "work_s", 0.0) + work_s


def wall_limit_s(limit_s: float) -> float:
    """How long a check with this limit of processor time may take on a busy machine."""
    return 2.0 + 10.0 * limit_s


class WorkerError(Exception):
    """A worker process ended, or gave no answer in time."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The result of a program: its exit status (negative for a signal; None if it took too long),
    and what it printed.
    """

    status: int | None
    output: str
    errors: str


class Matcher:
    """The process that searches patterns and validates JSON."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-I", str(MATCHER), str(_MEMORY_MIB)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            start_new_session=True,
        )
        self.pid = self._child.pid

    def ask(self, task: dict[str, Json], limit_s: float) -> Json:
        """Return the result of a task; None if it takes too long. Raises TimeoutError if the
        process is stuck, ValueError if the check is invalid, WorkerError if the process ended.
        Blocks."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            self._child.stdin.write(json.dumps({**task, "limit_s": limit_s}).encode() + b"\n")
            self._child.stdin.flush()
            line = _read_line(self._child.stdout.fileno(), time.monotonic() + wall_limit_s(limit_s))
        except OSError as error:
            raise WorkerError(str(error)) from error
        if line is None:
            raise TimeoutError
        reply = json.loads(line)
        _spend(reply["work_s"])
        if "error" in reply:
            raise ValueError(reply["error"])
        found: Json = reply["found"]
        return found

    def close(self) -> None:
        """End it."""
        # What could not be sent is still to be written when its input is closed.
        with contextlib.suppress(OSError), self._child:
            self._child.kill()


class ProgramServer:
    """The process that runs programs, each in a separate fork."""

    def __init__(self, script: Path = PROGRAM_SERVER) -> None:
        self._control, theirs = socket.socketpair()
        folder = tempfile.mkdtemp(prefix="metaclaw-check-")
        with theirs:
            try:
                self._child = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(script)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd=folder,
                    env={},
                    start_new_session=True,
                )
            except OSError:
                self._control.close()
                Path(folder).rmdir()
                raise
        self._folder = Path(folder)

    def run(self, source: str, answer: dict[str, Json], limit_s: float) -> ProgramResult:
        """Run a program. Raises WorkerError if the server ended. Blocks."""
        content = json.dumps({"source": source, "answer": answer}).encode()
        with _memory_file(content) as task, _memory_file() as output, _memory_file() as errors:
            try:
                wall_s = wall_limit_s(limit_s)
                request = program_server.REQUEST.pack(limit_s, wall_s, _MEMORY_MIB)
                socket.send_fds(
                    self._control, [request], [file.fileno() for file in (task, output, errors)]
                )
                self._control.settimeout(wall_s + _GRACE_S)
                reply = self._control.recv(program_server.REPLY.size)
            except OSError as error:
                raise WorkerError(str(error)) from error
            if len(reply) < program_server.REPLY.size:
                raise WorkerError("it ended")
            status, work_s = program_server.REPLY.unpack(reply)
            _spend(work_s)
            return ProgramResult(
                None if status == program_server.TIMED_OUT else status, _read(output), _read(errors)
            )

    def close(self) -> None:
        """End the server and a run that is under way."""
        self._control.close()
        self._child.kill()
        self._child.wait()
        with contextlib.suppress(OSError):  # the server removes the folder when it starts
            self._folder.rmdir()


T = TypeVar("T")
W = TypeVar("W", bound=Matcher | ProgramServer)


class Pool(Generic[W]):
    """Workers of one kind. The worker used last is used again first, so that no more are started
    than needed.
    """

    def __init__(self, start: Callable[[], W], most: int | None = None) -> None:
        self._start = start
        self._most = most or WORKERS
        self._reset()

    def _reset(self) -> None:
        self._idle: list[W] = []
        self._places = threading.BoundedSemaphore(self._most)
        self._pid = os.getpid()

    def run(self, task: Callable[[W], T]) -> T:
        """The result of a task, tried again if its worker has ended, for example because it was
        killed for its memory.
        """
        for _ in range(WORKERS):
            with contextlib.suppress(WorkerError):
                return self._run(task)
        return self._run(task)

    def _run(self, task: Callable[[W], T]) -> T:
        if self._pid != os.getpid():
            self._reset()  # a forked process must not use the workers of its parent
        with self._places:
            try:
                worker = self._idle.pop()
            except IndexError:
                worker = self._start()
            try:
                result = task(worker)
            except ValueError:
                self._idle.append(worker)
                raise
            except BaseException:
                worker.close()  # its answer may still come
                raise
            self._idle.append(worker)
            return result

    def close(self) -> None:
        """End the workers that are idle."""
        while self._idle:
            self._idle.pop().close()


_matchers: Final = Pool(Matcher)
_programs: Final = Pool(ProgramServer)


def ask_matcher(task: dict[str, Json], limit_s: float) -> Json:
    """Return the result of a matcher, or None if it takes too long. Raises ValueError if the check
    is invalid, OSError if no process can be started, WorkerError if each process ends at once.
    Blocks."""
    try:
        return _matchers.run(lambda matcher: matcher.ask(task, limit_s))
    except TimeoutError:
        return None


def run_program(source: str, answer: dict[str, Json], limit_s: float) -> ProgramResult:
    """Run a program in a separate fork. Raises OSError if no process can be started, WorkerError if
    each ends at once.
    """
    return _programs.run(lambda server: server.run(source, answer, limit_s))


@atexit.register
def close_workers() -> None:
    """End all idle workers."""
    _matchers.close()
    _programs.close()


def _memory_file(content: bytes = b"") -> BinaryIO:
    file = os.fdopen(os.memfd_create("check", os.MFD_CLOEXEC), "w+b")
    file.write(content)
    file.seek(0)
    return file


def _read(file: BinaryIO) -> str:
    file.seek(0)
    return file.read(_MAX_OUTPUT_BYTES).decode("utf-8", "replace")


def _read_line(file: int, deadline: float) -> bytes | None:
    """A line, or None if none comes in time. Raises WorkerError at the end of the file."""
    poll, read = select.poll(), b""
    poll.register(file, select.POLLIN)
    while not read.endswith(b"\n"):
        if not poll.poll(max(0.0, 1_000.0 * (deadline - time.monotonic()))):
            return None
        piece = os.read(file, 1 << 16)
        if not piece:
            raise WorkerError("it ended")
        read += piece
    return read
