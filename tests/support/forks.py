"""`metaclaw` processes forked from one that has imported the program: most of a start is imports,
and tests start hundreds.

A forked program has its learners forked likewise, and engines and trainers from a process that has
imported torch. `tests/cli` starts the program as a person does, `tests/app` the learner as the
program does, and so do the programs that `tests/engine` starts and kills with engine and trainer.
Where the environment changes the interpreter itself, nothing is forked."""

import asyncio
import atexit
import fcntl
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import IO, Final, Protocol

from metaclaw import clock
from metaclaw.engine.child_process import environment, spawn

MAIN = [sys.executable, "-m", "metaclaw"]
_INTERPRETER = ("PYTHON", "LD_")
"""How the variables begin that are read before a program's first line."""
_OUT_OF_THE_WAY: Final = 200
"""Passed handles are moved here before they get the numbers that are wanted; below the least limit
that a test sets.
"""


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


def start(
    arguments: Sequence[str], env: Mapping[str, str], output: IO[bytes], errors: IO[bytes]
) -> Process:
    """Start `metaclaw` with these arguments and this environment."""
    if _of_interpreter(env) != _of_interpreter(os.environ):
        return subprocess.Popen(
            [*MAIN, *arguments], env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=errors
        )
    return _template().fork(arguments, env, output, errors)


def run(
    arguments: Sequence[str], env: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
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
    (found,) = (
        int(file.parent.name)
        for file in Path("/proc").glob("[0-9]*/comm")
        if _read(file) == _name_of_learner(program)
    )
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
        if (
            code := self._ended(None if deadline is None else max(0, deadline - time.monotonic()))
        ) is None:
            raise subprocess.TimeoutExpired("metaclaw", timeout or 0)
        return code

    def _ended(self, within_s: float | None) -> int | None:
        if self.returncode is None and self._waiting.poll(
            None if within_s is None else within_s * 1000
        ):
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


class ForkedChild(ForkedProcess):
    """A child process of the program, with the pipes by which the program speaks with it."""

    def __init__(self, told: socket.socket, stdin: int, stdout: int) -> None:
        super().__init__(told)
        self.stdin, self.stdout = open(stdin, "wb", buffering=0), open(stdout, "rb", buffering=0)  # noqa: SIM115


class ForkedEngine(ForkedChild):
    """An engine as an asynchronous program sees it."""

    async def ended(self) -> int:
        """Its exit status, when it has ended."""
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        if self.returncode is None:
            loop.add_reader(self._told.fileno(), over.set)
            try:
                await over.wait()
            finally:
                loop.remove_reader(self._told.fileno())
        return self.wait()


class _Awaitable:
    """What the program uses of `asyncio.subprocess.Process`."""

    def __init__(self, process: ForkedEngine) -> None:
        self._process = process
        self.pid = process.pid
        self.kill = process.kill
        self.wait = process.ended

    @property
    def returncode(self) -> int | None:
        return self._process.poll()


class _Template:
    """The process that programs are forked from. It ends with this one."""

    def __init__(self) -> None:
        self.requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno())]
            # Libraries read an engine's settings when they are loaded. A session of its own: Ctrl-C
            # is for the tests, which end what they have started.
            self._process = subprocess.Popen(
                command,
                env=environment(1, {}),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(self._end)

    def _end(self) -> None:
        self.requests.close()
        self._process.wait()

    def fork(
        self, arguments: Sequence[str], env: Mapping[str, str], output: IO[bytes], errors: IO[bytes]
    ) -> ForkedProcess:
        return ForkedProcess(
            _request(
                self.requests, "metaclaw", arguments, env, {1: output.fileno(), 2: errors.fileno()}
            )
        )


def _request(
    requests: socket.socket,
    name: str,
    arguments: Sequence[str],
    env: Mapping[str, str],
    handles: Mapping[int, int],
) -> socket.socket:
    """Ask the template for a process with these handles, by their numbers in it. Return where it
    tells of its id and its end.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        given = {"arguments": list(arguments), "env": dict(env), "folder": str(Path.cwd())}
        wanted = {**given, "handles": list(handles), "asker": os.getpid()}
        asker = os.pidfd_open(os.getpid())
        with tempfile.TemporaryFile() as request:  # larger than a message may be
            request.write(json.dumps(wanted).encode())
            request.flush()
            socket.send_fds(
                requests,
                [name.encode()],
                [request.fileno(), theirs.fileno(), asker, *handles.values()],
            )
        os.close(asker)
    return ours


def _request_with_pipes(
    requests: socket.socket, name: str, arguments: Sequence[str], env: Mapping[str, str], *more: int
) -> tuple[socket.socket, int, int]:
    """The same for a process that is spoken with: also the handles for what it reads and what it
    writes.
    """
    (its_in, ours_in), (ours_out, its_out) = os.pipe(), os.pipe()
    try:
        told = _request(
            requests,
            name,
            arguments,
            env,
            {0: its_in, 1: its_out, 2: 2, **{handle: handle for handle in more}},
        )
    finally:
        os.close(its_in)
        os.close(its_out)
    return told, ours_in, ours_out


def _spawn_learner(requests: socket.socket, crash_record: int) -> ForkedChild:
    """Stand in for the program's own way to start a learner."""
    return ForkedChild(
        *_request_with_pipes(requests, "learner", [str(crash_record)], os.environ, crash_record)
    )


async def _spawn_engine(
    requests: Callable[[], socket.socket],
    module: str,
    arguments: Sequence[str],
    env: Mapping[str, str],
) -> tuple[_Awaitable, asyncio.StreamWriter, asyncio.StreamReader]:
    """Stand in for the program's own way to start an engine or a trainer; other modules are started
    as the program does.
    """
    kinds = {"metaclaw.engine": "engine", "metaclaw.engine.training": "trainer"}
    if module not in kinds:
        return await spawn(module, arguments, env)  # type: ignore[return-value]
    told, stdin, stdout = _request_with_pipes(requests(), kinds[module], arguments, env)
    # In a thread, for the first one waits until torch is imported.
    starting = asyncio.ensure_future(asyncio.to_thread(ForkedEngine, told, stdin, stdout))
    try:
        process = await asyncio.shield(starting)
    except asyncio.CancelledError:
        process = await starting
        process.stdin.close()
        process.stdout.close()
        raise
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
    writing = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    transport, _ = await loop.connect_write_pipe(lambda: writing, process.stdin)
    return _Awaitable(process), asyncio.StreamWriter(transport, writing, None, loop), reader


def fork_engines() -> None:
    """Have this process fork its engines and trainers, too."""
    _fork_engines(lambda: _template().requests)


def _fork_engines(requests: Callable[[], socket.socket]) -> None:
    import metaclaw.engine.child_process

    metaclaw.engine.child_process.spawn = partial(_spawn_engine, requests)  # type: ignore[assignment]


@cache
def _template() -> _Template:
    return _Template()


class _Forker:
    """The template's own side: forks a process for each request and tells how each ended.

    Those that need torch are forked from a fork that has imported it, so that no others carry it.
    """

    def __init__(self, requests: socket.socket, *, has_torch: bool = False) -> None:
        self._has_torch = has_torch
        self._requests = requests
        self._of_programs, self._for_programs = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_SEQPACKET
        )
        self._running: dict[int, int] = {}
        self._askers: dict[int, int] = {}
        self._ended, self._woken = os.pipe()
        self._with_torch: socket.socket | None = None
        os.set_blocking(self._woken, False)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> str:
        """Serve until nobody can ask any more; in a forked process, return what it is to be."""
        while True:
            sources = [
                self._requests.fileno(),
                self._of_programs.fileno(),
                self._ended,
                *self._askers,
            ]
            ready, _, _ = select.select(sources, [], [])
            if self._ended in ready:
                os.read(self._ended, 1000)
                self._tell_ends()
            for asker in self._askers.keys() & set(ready):
                os.kill(self._askers.pop(asker), signal.SIGKILL)
                os.close(asker)
            for source in (self._requests, self._of_programs):
                if source.fileno() in ready and (name := self._take(source)):
                    return name

    def _take(self, source: socket.socket) -> str:
        """Do what is asked; the name of what is asked for, in the process that is to be it."""
        message, handles, _, _ = socket.recv_fds(source, 16, 8)
        if not message:
            sys.exit()
        name = message.decode()
        if name in _WITH_TORCH and not self._has_torch:
            if self._with_torch is None:
                self._with_torch, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                if os.fork() == 0:
                    self._with_torch.close()
                    self._close(handles)
                    _import_torch()
                    return _Forker(theirs, has_torch=True).serve()
                theirs.close()
            socket.send_fds(self._with_torch, [message], handles)
            for handle in handles:
                os.close(handle)
            return ""
        request, told, asker, *its_own = handles
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.write(told, f"{os.getpid()}\n".encode())  # now, for it can be told by its group
            self._close([told, asker])
            return _become(name, request, its_own, self._for_programs)
        self._running[pid] = told
        if name == "trainer":
            self._askers[asker] = pid  # it may be standing still when its program is killed
            its_own.append(request)
        else:
            its_own += [request, asker]
        for handle in its_own:
            os.close(handle)
        return ""

    def _close(self, more: Sequence[int]) -> None:
        """Let go, in a forked process, of what is the template's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        sockets = [
            self._requests,
            self._of_programs,
            *([self._with_torch] if self._with_torch else []),
        ]
        for handle in (
            *(one.detach() for one in sockets),
            self._ended,
            self._woken,
            *self._running.values(),
            *self._askers,
            *more,
        ):
            if handle >= 0:
                os.close(handle)

    def _tell_ends(self) -> None:
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            for asker in [asker for asker, its in self._askers.items() if its == pid]:
                del self._askers[asker]
                os.close(asker)
            if (told := self._running.pop(pid, None)) is not None:
                with suppress(BrokenPipeError):  # its test has gone
                    os.write(told, f"{os.waitstatus_to_exitcode(status)}\n".encode())
                os.close(told)


_WITH_TORCH: Final = ("engine", "trainer")


def _import_torch() -> None:
    """Import what engines and trainers do."""
    for module in (
        "metaclaw.engine.serve",
        "metaclaw.engine.training.process",
        "metaclaw.engine.training.learner",
    ):
        import_module(module)
    gc.collect()
    gc.freeze()


def _become(name: str, request: int, handles: Sequence[int], for_programs: socket.socket) -> str:
    """Take on the arguments, the environment and the handles that are wanted."""
    with open(request, "rb") as file:
        file.seek(0)
        wanted = json.loads(file.read())
    arguments: list[str] = wanted["arguments"]
    if name == "metaclaw":
        import metaclaw.app.learner_process

        metaclaw.app.learner_process._spawn = partial(_spawn_learner, for_programs)  # type: ignore[assignment]
    if name in _WITH_TORCH:
        os.close(for_programs.detach())
    else:
        _fork_engines(lambda: for_programs)
    if name == "learner":
        Path("/proc/self/comm").write_text(_name_of_learner(wanted["asker"]))
    if name == "trainer":
        options = json.loads(arguments[0])
        options["parent"] = os.getppid()  # the template sees to its end
        # Behind everybody else, it would wait until the other tests have ended.
        options["nice"] = 0
        arguments[0] = json.dumps(options)
    moved = [fcntl.fcntl(handle, fcntl.F_DUPFD, _OUT_OF_THE_WAY) for handle in handles]
    for handle in handles:
        os.close(handle)
    for handle, number in zip(moved, wanted["handles"], strict=True):
        os.dup2(handle, number)
        os.close(handle)
    os.chdir(wanted["folder"])
    os.environ.clear()
    os.environ.update(wanted["env"])
    clock._file.cache_clear()
    time.tzset()
    sys.argv = [name, *arguments]
    return name


_LIBRARIES: Final = ("anyio._backends._asyncio", "encodings.idna", "jinja2", "uvloop")
"""Those that a program which starts would otherwise import itself."""
_PACKAGES: Final = ("agents", "api", "app", "cli", "learn", "proxy", "skills", "store", "training")
"""All modules of these: every program and command that is forked uses some of them."""


def _import_program() -> None:
    own = (
        module.name
        for package in _PACKAGES
        for module in walk_packages(
            import_module(f"metaclaw.{package}").__path__, f"metaclaw.{package}."
        )
        if not module.name.endswith(".__main__")
    )
    for module in (*_LIBRARIES, "metaclaw.engine.client", *own):
        import_module(module)


def _main() -> int:
    from metaclaw.api.web import pages
    from metaclaw.cli import main

    _import_program()
    pages._compile()  # two thirds of what a started program computes
    # What is imported stays: the forked share it untouched.
    gc.collect()
    gc.freeze()
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    name = _Forker(socket.socket(fileno=int(sys.argv[1]))).serve()
    if name == "metaclaw":
        return main()
    if name == "learner":
        import_module("metaclaw.app.learner").main()
    else:
        import_module(
            "metaclaw.engine.__main__" if name == "engine" else "metaclaw.engine.training.__main__"
        ).main()
    return 0


if __name__ == "__main__":
    sys.exit(_main())
