"""`metaclaw` processes forked from one that has imported the program: most of a start is imports, and tests start hundreds.

`tests/cli` starts the program as a person does. Where the environment changes the interpreter itself, nothing is forked.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Protocol

MAIN = [sys.executable, "-m", "metaclaw"]
_INTERPRETER = ("PYTHON", "LD_")
"""How the variables begin that are read before a program's first line."""


class Process(Protocol):
    """What tests use of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


def start(arguments: Sequence[str], env: Mapping[str, str], output: IO[bytes], errors: IO[bytes]) -> Process:
    """Start `metaclaw` with these arguments and this environment."""
    if _of_interpreter(env) != _of_interpreter(os.environ):
        return subprocess.Popen([*MAIN, *arguments], env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)
    return _template().fork(arguments, env, output, errors)


def run(arguments: Sequence[str], env: Mapping[str, str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run `metaclaw` to its end, with what it printed."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = start(arguments, env, output, errors)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        printed = []
        for file in (output, errors):
            file.seek(0)
            printed.append(file.read().decode())
        return subprocess.CompletedProcess([*MAIN, *arguments], code, *printed)


def _of_interpreter(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_INTERPRETER)}


class ForkedProcess:
    """A grandchild of this process. Its parent, the template, says its id and how it ended."""

    def __init__(self, told: socket.socket) -> None:
        self._told = told.makefile("r")
        told.close()
        self._waiting = select.poll()
        self._waiting.register(self._told, select.POLLIN)
        self.returncode: int | None = None
        self.pid = self._read()

    def _read(self) -> int:
        if not (line := self._told.readline()):
            self._told.close()
            raise RuntimeError("the process that programs are forked from has died")
        return int(line)

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        if (code := self._ended(None if deadline is None else max(0, deadline - time.monotonic()))) is None:
            raise subprocess.TimeoutExpired("metaclaw", timeout or 0)
        return code

    def _ended(self, within_s: float | None) -> int | None:
        if self.returncode is None and self._waiting.poll(None if within_s is None else within_s * 1000):
            self.returncode = self._read()
            self._told.close()
        return self.returncode

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __del__(self) -> None:
        self._told.close()


class _Template:
    """The process that programs are forked from. It ends with this one."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno())]
            # A session of its own: Ctrl-C is for the tests, which end what they have started.
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)

    def fork(self, arguments: Sequence[str], env: Mapping[str, str], output: IO[bytes], errors: IO[bytes]) -> ForkedProcess:
        ours, theirs = socket.socketpair()
        with theirs:
            handles = [output.fileno(), errors.fileno(), theirs.fileno()]
            wanted = {"arguments": list(arguments), "env": dict(env), "folder": str(Path.cwd())}
            with tempfile.TemporaryFile() as request:  # larger than a message may be
                request.write(json.dumps(wanted).encode())
                request.flush()
                socket.send_fds(self._requests, [b"fork"], [request.fileno(), *handles])
        return ForkedProcess(ours)


@cache
def _template() -> _Template:
    return _Template()


def _serve(requests: socket.socket) -> None:
    """Fork a program for each request and tell how each ended; return in the forked process."""
    running: dict[int, int] = {}
    ended, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([requests.fileno(), ended], [], [])
        if ended in ready:
            os.read(ended, 1000)
            _tell_ends(running)
        if requests.fileno() in ready:
            message, handles, _, _ = socket.recv_fds(requests, 16, 4)
            if not message:
                sys.exit()
            request, output, errors, told = handles
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                requests.close()
                for handle in (ended, woken, told, *running.values()):
                    os.close(handle)
                _become(request, output, errors)
                return
            running[pid] = told
            os.write(told, f"{pid}\n".encode())
            for handle in (request, output, errors):
                os.close(handle)


def _tell_ends(running: dict[int, int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        told = running.pop(pid)
        with suppress(BrokenPipeError):  # its test has gone
            os.write(told, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os.close(told)


def _become(request: int, output: int, errors: int) -> None:
    """Take on the arguments, the environment and the standard streams of the wanted program."""
    with open(request, "rb") as file:
        file.seek(0)
        wanted = json.loads(file.read())
    os.dup2(output, 1)
    os.dup2(errors, 2)
    for handle in (output, errors):
        os.close(handle)
    os.chdir(wanted["folder"])
    os.environ.clear()
    os.environ.update(wanted["env"])
    time.tzset()
    sys.argv = ["metaclaw", *wanted["arguments"]]


def _main() -> int:
    from metaclaw.cli import main

    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    _serve(socket.socket(fileno=int(sys.argv[1])))
    return main()


if __name__ == "__main__":
    sys.exit(_main())
