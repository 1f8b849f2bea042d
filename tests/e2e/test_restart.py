"""A restart while clients connect: none is refused, and running answers are finished."""

import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from metaclaw.instance import find
from tests.cli.program import program as command
from tests.support.program import KEY, NOT_LEARNING, PATIENCE_S, Program, providers_toml
from tests.support.provider import Provider


@pytest.fixture
def program(provider: Provider, home: Path) -> Iterator[Program]:
    running = Program(home, providers_toml(provider.url), env=NOT_LEARNING).start()
    yield running
    if find(home) is not None:
        assert command("--home", str(home), "stop", env=running.env).code == 0


def ask(program: Program, text: str, client: httpx.Client | None = None) -> httpx.Response:
    body = {"model": "openai/echo", "messages": [{"role": "user", "content": text}]}
    post = httpx.post if client is None else client.post
    return post(
        f"{program.url}/v1/chat/completions",
        json=body,
        headers={"authorization": f"Bearer {KEY}"},
        timeout=PATIENCE_S,
    )


@contextmanager
def asking(program: Program) -> Iterator[Counter[str]]:
    """Four clients that ask until the block ends, two of which connect anew for each request; what
    came of them."""
    came, stopped = Counter[str](), threading.Event()

    def go_on(client: httpx.Client | None) -> None:
        while not stopped.is_set():
            try:
                came[str(ask(program, "hello", client).status_code)] += 1
            except httpx.HTTPError as error:
                came[repr(error)] += 1

    with httpx.Client() as first, httpx.Client() as second, ThreadPoolExecutor(4) as threads:
        for client in (None, None, first, second):
            threads.submit(go_on, client)
        try:
            yield came
        finally:
            stopped.set()


def restart(program: Program) -> int:
    done = command("--home", str(program.home), "restart", "--json", env=program.env)
    assert done.code == 0, done.err + program.log.read_text()[-2000:]
    assert done.facts["url"] == program.url
    pid: int = done.facts["pid"]
    return pid


def test_no_connection_is_refused_while_one_process_follows_another(
    program: Program, provider: Provider
) -> None:
    pids = {find_pid(program)}
    with asking(program) as came:
        for _ in range(2):
            time.sleep(0.2)
            pids.add(restart(program))
        time.sleep(0.2)
    assert len(pids) == 3
    assert came.keys() == {"200"}, came
    assert came["200"] > 50


def find_pid(program: Program) -> int:
    running = find(program.home)
    assert running is not None
    return running.pid


def test_a_running_answer_is_finished_by_the_process_that_began_it(
    program: Program, provider: Provider
) -> None:
    provider.requests.clear()
    provider.chunk_delay_s = 0.5
    try:
        with ThreadPoolExecutor(2) as threads:
            body = {
                "model": "openai/echo",
                "stream": True,
                "messages": [{"role": "user", "content": "one two three four five six seven"}],
            }
            slow = threads.submit(
                httpx.post,
                f"{program.url}/v1/chat/completions",
                json=body,
                headers={"authorization": f"Bearer {KEY}"},
                timeout=PATIENCE_S,
            )
            while not provider.requests:
                time.sleep(0.02)
            restarted = threads.submit(restart, program)
            assert "seven" in slow.result().text
            assert slow.result().text.rstrip().endswith("[DONE]")
            assert restarted.result() == find_pid(program)
    finally:
        provider.chunk_delay_s = 0.0
    assert ask(program, "hello").status_code == 200
    answered = program.wait_for("/api/status", lambda now: now["counts"]["turns"] == 2)
    assert answered["degraded"] is False


def test_a_proxy_that_cannot_start_leaves_the_one_that_runs(program: Program) -> None:
    pid = find_pid(program)
    settings = {**program.env, "METACLAW__PROXY__TLS_CERT": "/nowhere/cert.pem"}
    refused = command("--home", str(program.home), "restart", env=settings)
    assert refused.code != 0
    assert "/nowhere/cert.pem cannot be read" in refused.err
    assert ask(program, "hello").status_code == 200
    assert find_pid(program) == pid


def test_systemd_keeps_the_socket_of_a_service_that_it_restarts(
    program: Program, provider: Provider, tmp_path: Path
) -> None:
    program.stop()
    place = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(place)
        systemd.settimeout(PATIENCE_S)
        program.env["NOTIFY_SOCKET"] = place
        program.start()
        assert systemd.recv(100) == b"FDSTOREREMOVE=1\nFDNAME=proxy"
        stored, handles, _, _ = socket.recv_fds(systemd, 100, 1)
        assert stored == b"FDSTORE=1\nFDNAME=proxy"
    del program.env["NOTIFY_SOCKET"]
    kept = socket.socket(fileno=handles[0])
    program.stop()
    handle, port = kept.fileno(), kept.getsockname()[1]
    start = f"exec {sys.executable} -m metaclaw.cli start --port {port}"
    with kept, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(ask, program, "hello")
        service = subprocess.Popen(
            ["bash", "-c", f"exec 3<&{handle}; LISTEN_FDS=1 LISTEN_PID=$$ {start}"],
            env=program.env,
            pass_fds=(handle,),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert waiting.result().status_code == 200
        finally:
            service.terminate()
            assert service.wait(PATIENCE_S) == 0
