"""`metaclaw` processes forked from one that has imported the program: most of a start is imports, and tests start hundreds.

A forked program has its learners forked likewise. `tests/cli` starts the program as a person does, `tests/app` the learner as the
program does. Where the environment changes the interpreter itself, nothing is forked.
"""

import fcntl
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
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import IO, Final, Protocol

MAIN = [sys.executable, "-m", "metaclaw"]
_INTERPRETER = ("PYTHON", "LD_")
"""How the variables begin that are read before a program's first line."""
_OUT_OF_THE_WAY: Final = 500
"""Passed handles are moved here before they get the numbers that are wanted."""


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


def learner_of(program: int) -> int:
    """The number of a forked program's learner. Raises ValueError where there is none."""
    (found,) = (int(file.parent.name) for file in Path("/proc").glob("[0-9]*/comm") if _read(file) == _name_of_learner(program))
    return found


def _name_of_learner(program: int) -> str:
    return f"learner {program}"  # at most 15 characters


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""  # the process has ended meanwhile


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


class ForkedLearner(ForkedProcess):
    """A learner, with the pipes by which its program speaks with it."""

    def __init__(self, told: socket.socket, stdin: int, stdout: int) -> None:
        super().__init__(told)
        self.stdin, self.stdout = open(stdin, "wb", buffering=0), open(stdout, "rb", buffering=0)  # noqa: SIM115


class _Template:
    """The process that programs are forked from. It ends with this one."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno())]
            # A session of its own: Ctrl-C is for the tests, which end what they have started.
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)

    def fork(self, arguments: Sequence[str], env: Mapping[str, str], output: IO[bytes], errors: IO[bytes]) -> ForkedProcess:
        return ForkedProcess(_request(self._requests, "metaclaw", arguments, env, {1: output.fileno(), 2: errors.fileno()}))


def _request(
    requests: socket.socket, name: str, arguments: Sequence[str], env: Mapping[str, str], handles: Mapping[int, int]
) -> socket.socket:
    """Ask the template for a process with these handles, by their numbers in it. Return where it tells of its id and its end."""
    ours, theirs = socket.socketpair()
    with theirs:
        given = {"name": name, "arguments": list(arguments), "env": dict(env), "folder": str(Path.cwd())}
        wanted = {**given, "handles": list(handles), "asker": os.getpid()}
        with tempfile.TemporaryFile() as request:  # larger than a message may be
            request.write(json.dumps(wanted).encode())
            request.flush()
            socket.send_fds(requests, [b"fork"], [request.fileno(), theirs.fileno(), *handles.values()])
    return ours


def _spawn_learner(requests: socket.socket, crash_record: int) -> ForkedLearner:
    """Stand in for the program's own way to start a learner."""
    (its_in, ours_in), (ours_out, its_out) = os.pipe(), os.pipe()
    handles = {0: its_in, 1: its_out, 2: 2, crash_record: crash_record}
    try:
        told = _request(requests, "learner", [str(crash_record)], os.environ, handles)
    finally:
        os.close(its_in)
        os.close(its_out)
    return ForkedLearner(told, ours_in, ours_out)


@cache
def _template() -> _Template:
    return _Template()


def _serve(requests: socket.socket) -> str:
    """Fork a program or a learner for each request and tell how each ended; in the forked process, return which of them it is."""
    running: dict[int, int] = {}
    ended, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    of_programs, for_programs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    while True:
        ready, _, _ = select.select([requests.fileno(), of_programs.fileno(), ended], [], [])
        if ended in ready:
            os.read(ended, 1000)
            _tell_ends(running)
        for asker in (requests, of_programs):
            if asker.fileno() not in ready:
                continue
            message, (request, told, *handles), _, _ = _receive(asker)
            if not message:
                sys.exit()
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for handle in (requests.detach(), of_programs.detach(), ended, woken, told, *running.values()):
                    os.close(handle)
                return _become(request, handles, for_programs)
            running[pid] = told
            os.write(told, f"{pid}\n".encode())
            for handle in (request, *handles):
                os.close(handle)


def _receive(asker: socket.socket) -> tuple[bytes, list[int], int, object]:
    message, handles, flags, address = socket.recv_fds(asker, 16, 6)
    return message, handles if message else [-1, -1], flags, address


def _tell_ends(running: dict[int, int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        told = running.pop(pid)
        with suppress(BrokenPipeError):  # its test has gone
            os.write(told, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os.close(told)


def _become(request: int, handles: Sequence[int], for_programs: socket.socket) -> str:
    """Take on the arguments, the environment and the handles that are wanted."""
    with open(request, "rb") as file:
        file.seek(0)
        wanted = json.loads(file.read())
    name: str = wanted["name"]
    if name == "metaclaw":
        import metaclaw.app.learner_process

        metaclaw.app.learner_process._spawn = partial(_spawn_learner, for_programs)  # type: ignore[assignment]
    else:
        os.close(for_programs.detach())
        Path("/proc/self/comm").write_text(_name_of_learner(wanted["asker"]))
    os.setsid()
    moved = [fcntl.fcntl(handle, fcntl.F_DUPFD, _OUT_OF_THE_WAY) for handle in handles]
    for handle in handles:
        os.close(handle)
    for handle, number in zip(moved, wanted["handles"], strict=True):
        os.dup2(handle, number)
        os.close(handle)
    os.chdir(wanted["folder"])
    os.environ.clear()
    os.environ.update(wanted["env"])
    time.tzset()
    sys.argv = [name, *wanted["arguments"]]
    return name


_IMPORTED_AT_START: Final = ("metaclaw.cli.root", "metaclaw.cli.lifecycle", "anyio._backends._asyncio", "jinja2", "uvloop")
"""What a program that starts would otherwise import itself."""


def _main() -> int:
    import metaclaw.app.learner
    from metaclaw.cli import main

    for module in _IMPORTED_AT_START:
        import_module(module)

    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    if _serve(socket.socket(fileno=int(sys.argv[1]))) == "metaclaw":
        return main()
    metaclaw.app.learner.main()
    return 0


if __name__ == "__main__":
    sys.exit(_main())
