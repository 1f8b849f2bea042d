"""Several processes on one port: `metaclaw start --workers N`."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.program import PATIENCE_S, Program
from tests.support.teacher import Teacher

_CONFIG = """
[[providers]]
name = "world"
kind = "openai"
base_url = "{url}/v1"
api_key = "sk-world"
wires = ["chat"]

[learning]
daily_tokens = 100_000_000
"""


@pytest.fixture(scope="module")
def teacher() -> Iterator[Teacher]:
    provider = Teacher(listed=("worker",))
    provider.start()
    yield provider
    provider.stop()


@pytest.fixture
def program(teacher: Teacher, tmp_path: Path) -> Iterator[Program]:
    found = Program(tmp_path / "home", _CONFIG.format(url=teacher.url))
    yield found
    found.kill()


def say(program: Program, text: str) -> httpx.Response:
    """Over a connection of its own, which any worker may take."""
    body = {"model": "worker", "messages": [{"role": "user", "content": text}]}
    return httpx.post(
        f"{program.url}/v1/chat/completions", json=body, headers=program.auth, timeout=PATIENCE_S
    )


def workers(program: Program) -> dict[int, bool]:
    """The process ids, and whether each leads."""
    told = program.get("/api/status")["workers"]["processes"]
    return {one["pid"]: one["leads"] for one in told}


def until(wanted: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError):  # a worker that was killed had the connection
            if found := wanted():
                return found
        time.sleep(0.05)
    raise TimeoutError("it did not happen")


def is_running(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_workers_serve_learn_once_and_are_replaced(program: Program) -> None:
    program.start("--workers", "3")
    until(lambda: sum(workers(program).values()) == 1)
    with ThreadPoolExecutor(8) as pool:
        texts = [f"From now on, always end with w{number}mark." for number in range(8)]
        answers = list(pool.map(lambda text: say(program, text), texts))
    assert [answer.status_code for answer in answers] == [200] * 8
    wanted = [f"w{number}mark" for number in range(8)]

    def texts_in_force() -> list[str]:
        return [rule["text"] for rule in program.get("/api/rules")["rules"]]

    def counted() -> list[int]:
        found = texts_in_force()
        return [sum(word in text for text in found) for word in wanted]

    # Each connection may reach another worker, and each follows by itself.
    until(lambda: all(counted() == [1] * 8 for _ in range(9)))

    before = workers(program)
    leader = next(pid for pid, leads in before.items() if leads)
    os.kill(leader, signal.SIGKILL)
    until(lambda: leader not in (now := workers(program)) and sum(now.values()) == 1)
    assert len(workers(program)) == 3
    assert program.get("/api/status")["workers"]["restarted"] == 1
    assert say(program, "From now on, always end with lastmark.").status_code == 200
    until(lambda: any("lastmark" in text for text in texts_in_force()))
    shown = program.command("status")
    assert "(learns)" in shown.stdout, shown.stdout + shown.stderr
    assert "1 ended and were started again" in shown.stdout

    assert "3 serve; 1 died before" in program.command("doctor").stdout

    link = program.command("page", "--json")
    url = httpx.Response(200, text=link.stdout).json()["url"]
    assert [httpx.get(url).status_code for _ in range(6)] == [200, *[401] * 5], "once"

    pids = list(workers(program))
    stopped = program.command("stop")
    assert stopped.returncode == 0, stopped.stderr
    assert not any(map(is_running, pids))


def test_workers_share_the_limit_of_a_key(program: Program) -> None:
    program.start("--workers", "3")
    said = {"name": "ada", "limits": "requests=30/month"}
    made = httpx.post(f"{program.url}/api/keys", json=said, headers=program.auth)
    headers = {"authorization": f"Bearer {made.raise_for_status().json()['key']}"}
    url = f"{program.url}/v1/chat/completions"
    body = {"model": "worker", "messages": [{"role": "user", "content": "Hello"}]}

    def ask(_: object) -> int:
        return httpx.post(url, json=body, headers=headers, timeout=PATIENCE_S).status_code

    def me() -> httpx.Response:
        return httpx.get(f"{program.url}/api/me", headers=headers, timeout=PATIENCE_S)

    until(lambda: all(me().status_code == 200 for _ in range(12)))  # each has heard of the key
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(90)))
    answered = found.count(200)
    assert (set(found), answered <= 30) == ({200, 429}, True)
    while answered < 30:  # what a worker took and did not need is given back
        until(lambda: ask(0) == 200)
        answered += 1
    assert [ask(0) for _ in range(9)] == [429] * 9
    until(lambda: me().json()["used"] == {"requests=30/month": 30})


def test_workers_end_with_the_first_process_however_it_ends(program: Program) -> None:
    program.start("--workers", "2")
    pids = list(until(lambda: workers(program)))
    program.kill()
    until(lambda: not any(map(is_running, pids)))


def test_a_model_of_our_own_has_one_process(tmp_path: Path) -> None:
    program = Program(tmp_path / "home")
    refused = program.command("start", "--workers", "2")
    assert refused.returncode == 2
    assert "proxy.workers needs providers over HTTP" in refused.stderr
