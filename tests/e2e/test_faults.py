"""The proxy on a machine that fails: no space on the disk, no files, no memory, a broken disk.

Only the listener and the request path may end the proxy. In each test open connections are answered
throughout, and new ones soon after relief."""

import errno
import http.client
import json
import resource
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

import pytest

from metaclaw.instance import find
from tests.support import forks
from tests.support.faults import FailingCalls, SmallDisk, limit_files, limit_memory
from tests.support.ports import free_port
from tests.support.program import NOT_LEARNING, PATIENCE_S, Program, providers_toml
from tests.support.provider import Provider

KiB = 1024
_AT_ONCE_S = 10.0


class OpenConnection:
    """One connection to the program, over which all requests go."""

    def __init__(self, program: Program) -> None:
        address = program.url.removeprefix("http://")
        self._connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
        self._auth = program.auth
        self._connection.connect()

    def get(self, path: str) -> Any:
        return self._send("GET", path, None)

    def post(self, path: str) -> Any:
        return self._send("POST", path, {})

    def post_at_last(self, path: str) -> Any:
        """Post again and again until it is accepted."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self.post(path)
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def ask(self, word: str = "hello", model: str = "echo") -> str:
        """The id of a turn that was answered."""
        self._send(
            "POST",
            "/v1/chat/completions",
            {"model": model, "messages": [{"role": "user", "content": word}]},
        )
        return str(self._turn)

    def wait_for(self, path: str, wanted: Callable[[Any], bool]) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while not wanted(value := self.get(path)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} did not become as wanted: {value}")
            time.sleep(0.05)
        return value

    def _send(self, method: str, path: str, body: Any) -> Any:
        sock = self._connection.sock
        self._connection.request(
            method, path, None if body is None else json.dumps(body), self._auth
        )
        response = self._connection.getresponse()
        text = response.read()
        if response.status == 503 and response.getheader("connection") == "close":
            raise ConnectionRefusedError(text)  # there are too many connections
        assert self._connection.sock is sock, "the connection was closed"
        assert response.status == 200, text
        self._turn = response.headers["x-metaclaw-turn"]
        return json.loads(text)

    def close(self) -> None:
        self._connection.close()


def answer_at_once(program: Program) -> None:
    """Be answered over a new connection: within a second, and later where other programs have the
    cores.
    """
    deadline = time.monotonic() + _AT_ONCE_S
    while True:
        try:
            connection = OpenConnection(program)
            connection.ask()
            return connection.close()
        except ConnectionError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def is_healthy(status: Any) -> bool:
    return not status["degraded"] and all(
        state in ("running", "done") for state in status["loops"].values()
    )


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    made = SmallDisk(tmp_path / "disk")
    yield made
    made.close()


@pytest.fixture
def parts() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def program_on(disk: SmallDisk, provider: Provider, parts: ExitStack) -> Program:
    program = Program(
        disk.folder / "home", providers_toml(provider.url), env={**NOT_LEARNING, **disk.env}
    )
    parts.callback(program.kill)
    return program


def begin(program: Program, parts: ExitStack) -> OpenConnection:
    """Start a program that may not be able to write where it serves; return when it answers."""
    port = free_port()
    with suppress(TimeoutError):
        program.start("--port", str(port), wait_s=0)
    program.url = f"http://127.0.0.1:{port}"
    wait_until(lambda: is_open("127.0.0.1", port))
    return connect(program, parts)


def connect(program: Program, parts: ExitStack) -> OpenConnection:
    connection = OpenConnection(program)
    parts.callback(connection.close)
    return connection


@pytest.mark.parametrize("free_bytes", [0, 16 * KiB, 64 * KiB])
def test_a_start_on_a_full_disk_serves_and_records_once_there_is_space(
    disk: SmallDisk, provider: Provider, parts: ExitStack, free_bytes: int
) -> None:
    program = program_on(disk, provider, parts).start()
    connection = connect(program, parts)
    session = connection.get(f"/api/turns/{connection.ask()}")["session"]
    assert program.command("rules", "add", "Answer in rhymes.").returncode == 0
    assert program.stop() == 0
    disk.fill(free_bytes)
    program.start()
    connection = connect(program, parts)
    turns = {connection.ask(f"word {number}") for number in range(20)}
    assert all(b"Answer in rhymes." in sent.body for sent in provider.requests[-20:]), (
        "the rule was missing"
    )
    status = connection.wait_for("/api/status", lambda facts: facts["degraded"])
    assert "the disk is full" in status["store"]["reason"]
    found = find(program.home)
    assert found is not None
    assert program.process is not None
    assert (found.pid, found.url) == (program.process.pid, program.url)
    disk.relieve()
    connection.wait_for("/api/status", is_healthy)
    answer_at_once(program)
    for turn in turns:
        assert connection.get(f"/api/turns/{turn}")["id"] == turn
    # Sessions of the last run are taken up beside serving, a moment after the store is well.
    assert connection.post_at_last(f"/api/sessions/{session}/end")["ended"], (
        "the session of the last run was not taken up"
    )
    disk.fill()
    assert program.stop() == 0


def test_a_first_start_on_a_full_disk_serves_if_the_key_is_known(
    disk: SmallDisk, provider: Provider, parts: ExitStack
) -> None:
    program = program_on(disk, provider, parts)
    disk.fill()
    connection = begin(program, parts)
    connection.ask()
    assert program.process is not None
    found = find(program.home)
    assert found is not None
    assert found.pid == program.process.pid
    disk.relieve()
    connection.wait_for("/api/status", is_healthy)
    shown, stopped = program.command("status"), program.command("stop")
    assert (shown.returncode, stopped.returncode) == (0, 0), shown.stderr + stopped.stderr
    assert program.process.wait(PATIENCE_S) == 0


def test_a_new_home_on_a_full_disk_is_refused_in_one_sentence(
    disk: SmallDisk, parts: ExitStack, tmp_path: Path
) -> None:
    disk.fill()
    env = {**Program(tmp_path / "other").env, **disk.env, "METACLAW_HOME": str(disk.folder / "new")}
    refused = forks.run(["start", "--port", "0"], env, PATIENCE_S)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "No space left on device" in refused.stderr


class OwnProcess(Program):
    """A program with modules that are not imported before it starts, and with limits from its
    beginning.
    """

    def __init__(
        self, home: Path, config: str, *, open_files: int | None = None, **how: Any
    ) -> None:
        super().__init__(home, config, **how)
        self._open_files = open_files

    def _launch(self, arguments: Sequence[str], log: IO[bytes]) -> forks.Process:
        def limit() -> None:
            if self._open_files is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (self._open_files, self._open_files))

        command = [*forks.MAIN, *arguments]
        return subprocess.Popen(
            command,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=limit,
        )


@pytest.mark.parametrize("most", [64, pytest.param(256, marks=pytest.mark.nightly)])
def test_more_connections_than_files_in_the_first_seconds_do_not_end_the_proxy(
    provider: Provider, parts: ExitStack, tmp_path: Path, most: int
) -> None:
    program = OwnProcess(
        tmp_path / "home", providers_toml(provider.url), open_files=most, env=NOT_LEARNING
    )
    parts.callback(program.kill)
    connection = begin(program, parts)
    flood: list[socket.socket] = []
    host, _, port = program.url.removeprefix("http://").partition(":")
    for _ in range(2 * most):
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex((host, int(port)))
        flood.append(parts.enter_context(one))
    for number in range(20):
        assert connection.get("/api/status")["version"]
        connection.ask(f"during {number}")
    wait_until(lambda: program.log.read_text().count("connections_refused") == 1)
    refused = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
    refused.connect()
    answer = http.client.HTTPResponse(refused.sock)
    answer.begin()
    assert (answer.status, answer.getheader("retry-after"), answer.getheader("connection")) == (
        503,
        "1",
        "close",
    )
    assert b"too many connections" in answer.read()
    refused.close()
    while flood:
        flood.pop().close()
    answer_at_once(program)
    connection.wait_for("/api/status", is_healthy)
    assert "MetaClaw" in page(program)
    assert program.stop() == 0


def page(program: Program) -> str:
    connection = http.client.HTTPConnection(program.url.removeprefix("http://"), timeout=PATIENCE_S)
    connection.request("GET", "/ui", headers={**program.auth, "accept": "text/html"})
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def is_open(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), 1):
        return True
    return False


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Machine:
    """A machine whose calls fail in one way, and the program on it."""

    def __init__(self, folder: Path, provider: Provider) -> None:
        self._calls = FailingCalls(folder / "home", folder / "control")
        # The second provider is at a name, not at a number.
        head, *others = providers_toml(provider.url).split("[[providers]]")[1:]
        config = "[[providers]]".join(
            ["", head, *(other.replace("127.0.0.1", "localhost") for other in others)]
        )
        self.program = OwnProcess(folder / "home", config, env=self._calls.env)

    @property
    def _pid(self) -> int:
        assert self.program.process is not None
        return self.program.process.pid

    def no_space(self) -> None:
        self._calls.set(files=errno.ENOSPC)

    def broken_disk(self) -> None:
        self._calls.set(files=errno.EIO)

    def no_processes(self) -> None:
        self._calls.set(processes=errno.ENOMEM)

    def no_files(self) -> None:
        limit_files(self._pid, 3)

    def no_memory(self) -> None:
        limit_memory(self._pid, 0)

    def relieve(self) -> None:
        self._calls.set()
        limit_files(self._pid, None)
        limit_memory(self._pid, None)


Fault = Callable[[Machine], None]


@pytest.fixture(scope="module")
def machine(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    made = Machine(tmp_path_factory.mktemp("machine"), provider)
    made.program.start()
    page(made.program)  # the modules of pages are imported when the first is asked for
    yield made
    assert made.program.stop() == 0, made.program.log.read_text()[-4000:]


@pytest.mark.parametrize(
    "fault",
    # Files first: they are missed by a program that does not have all it needs open yet.
    [Machine.no_files, Machine.no_space, Machine.broken_disk, Machine.no_processes],
)
def test_a_fault_while_it_serves_is_shown_and_over_after_relief(
    machine: Machine, parts: ExitStack, fault: Fault
) -> None:
    connection = connect(machine.program, parts)
    connection.ask()
    fault(machine)
    try:
        check_fault_is_shown(connection)
    finally:
        machine.relieve()
    check_works(machine.program, connection)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Machine.no_space, marks=pytest.mark.nightly),
        Machine.broken_disk,
        Machine.no_processes,
    ],
)
def test_a_fault_at_the_start_is_shown_and_over_after_relief(
    provider: Provider, parts: ExitStack, tmp_path: Path, fault: Fault
) -> None:
    used = Program(tmp_path / "home", providers_toml(provider.url)).start()
    assert used.stop() == 0
    machine = Machine(tmp_path, provider)
    program = machine.program
    parts.callback(program.kill)
    fault(machine)
    connection = begin(program, parts)
    check_fault_is_shown(connection)
    machine.relieve()
    check_works(program, connection)
    fault(machine)
    assert program.stop() == 0


def test_a_machine_without_free_memory_is_served(machine: Machine, parts: ExitStack) -> None:
    connection = connect(machine.program, parts)
    machine.no_memory()
    try:
        check_answers(connection)
    finally:
        machine.relieve()
    check_works(machine.program, connection)


def test_a_provider_is_looked_up_by_name_although_no_thread_can_be_started(
    machine: Machine, parts: ExitStack
) -> None:
    connection = connect(machine.program, parts)
    machine.no_processes()
    try:
        connection.ask("by name", "chat-model")
    finally:
        machine.relieve()
    check_works(machine.program, connection)


def check_answers(connection: OpenConnection) -> None:
    for number in range(10):
        connection.ask(f"during {number}")


def check_fault_is_shown(connection: OpenConnection) -> None:
    check_answers(connection)
    connection.wait_for("/api/status", lambda facts: not is_healthy(facts))


def check_works(program: Program, connection: OpenConnection) -> None:
    answer_at_once(program)
    connection.wait_for("/api/status", is_healthy)
    turn = connection.ask("after")
    assert connection.get(f"/api/turns/{turn}")["id"] == turn
    assert "MetaClaw" in page(program)
