"""The whole program, started and stopped for real, with a scripted provider behind it. Commands
that only ask run in process.
"""

import http.client
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from metaclaw.cli.client import ApiClient
from metaclaw.instance import find
from tests.cli.program import Done, metaclaw, program

ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m-1",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}


@dataclass
class Scripted:
    """A provider that answers chats, held back until `go` is set."""

    url: str = ""
    asked: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    go: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def provider() -> Iterator[Scripted]:
    script = Scripted()
    script.go.set()

    class Chat(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            script.asked.release()
            script.go.wait(60)
            body = json.dumps(ANSWER).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Chat) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        script.url = f"http://127.0.0.1:{server.server_port}/v1"
        try:
            yield script
        finally:
            script.go.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def settings(home: Path, provider: Scripted) -> Iterator[Path]:
    """A home that is configured for the scripted provider; whatever still runs in it at the end is
    killed.
    """
    done = metaclaw(
        "config",
        "set",
        "providers.main.kind=openai",
        f"providers.main.base_url={provider.url}",
        "proxy.port=0",
    )
    assert done.code == 0, done.err
    yield home
    running = find(home)
    if running is not None:
        os.kill(running.pid, signal.SIGKILL)


HELLO: dict[str, object] = {"model": "m-1", "messages": [{"role": "user", "content": "Hi"}]}


def chat(url: str, key: str, said: dict[str, object] = HELLO) -> tuple[int, bytes]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    try:
        body = json.dumps(said)
        connection.request(
            "POST",
            "/v1/chat/completions",
            body,
            {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        )
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


@contextmanager
def foreground(*arguments: str) -> Iterator[tuple["subprocess.Popen[str]", str, str]]:
    """`metaclaw start` in the foreground, once it has said where it listens: the process, the URL
    and the key.
    """
    command = [sys.executable, "-m", "metaclaw.cli", "start", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            words = dict(
                line.split(None, 1)
                for line in (process.stdout.readline().strip() for _ in range(3))
            )
            yield process, words["URL"], metaclaw("key").out.strip()
        finally:
            process.kill()


def test_a_detached_proxy_serves_tells_and_stops(settings: Path) -> None:
    for name in ("no-sudo", "uv-not-pip"):
        assert metaclaw("rules", "add", "--example", name).code == 0
    assert metaclaw("rules", "add", "The staging server is stage-2.", "--fact").code == 0
    started = program("start", "--detach", "--json")
    assert started.code == 0, started.err
    url, key = started.facts["url"], started.facts["api_key"]
    assert started.facts["openai_base_url"] == f"{url}/v1"
    assert (started.facts["rules"], started.facts["facts"], started.facts["skills"]) == (2, 1, 0)

    status = program("status", "--json").facts
    assert (
        status["counts"]["rules"],
        status["counts"]["facts"],
        sum(status["counts"]["skills"].values()),
    ) == (2, 1, 0)
    assert (status["running"], status["url"], status["degraded"], status["mode"]) == (
        True,
        url,
        False,
        "skills_only",
    )
    assert [one["name"] for one in status["providers"]] == ["main"]
    assert metaclaw("status").out.startswith("MetaClaw ")

    assert chat(url, "wrong")[0] == 401
    code, body = chat(url, key)
    assert (code, json.loads(body)) == (200, ANSWER)
    (session,) = metaclaw("sessions", "list", "--json").facts["sessions"]
    shown = metaclaw("sessions", "show", session["id"], "--json").facts
    assert [turn["answer"] for turn in shown["turns"]] == [ANSWER]
    assert metaclaw("sessions", "end", "--all", "--yes").out == "Ended 1 session.\n"
    (ended,) = metaclaw("sessions", "list", "--json").facts["sessions"]
    assert ended["ended_at"] is not None

    again = metaclaw("start", "--detach")
    assert again.code == 1
    assert f"runs already at {url}" in again.err

    assert program("stop", "--json").facts["stopped"] is True
    assert metaclaw("status").code == 1
    assert metaclaw("stop").code == 1
    log = settings / "logs" / "metaclaw.log"
    assert log.stat().st_mode & 0o077 == 0
    assert key not in log.read_text()


def test_the_command_that_start_prints_works_as_it_stands_and_the_key_can_be_had_again(
    settings: Path,
) -> None:
    assert metaclaw("config", "set", 'providers.main.models=["m-1"]').code == 0
    started = program("start", "--detach")
    (line,) = (line for line in started.out.splitlines() if "curl " in line)
    words = shlex.split(line[line.index("curl ") :])
    key, body = program("key").out.strip(), json.loads(words[words.index("-d") + 1])
    assert "Authorization: Bearer $(metaclaw key)" in words
    assert "export OPENAI_BASE_URL=" in started.out
    assert key not in started.out
    assert "/ui/sign-in" not in started.out
    assert "metaclaw page prints a link" in started.out
    assert body["model"] == "m-1"
    assert chat(words[1].removesuffix("/v1/chat/completions"), key, body)[0] == 200
    assert program("stop").code == 0
    assert metaclaw("key").out.strip() == key


def test_where_no_model_is_known_the_printed_command_says_so(settings: Path) -> None:
    with foreground() as (process, _, _):
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(7)]
    assert '"model": "<a model of your provider>"' in lines[-1]


@pytest.mark.slow
def test_overrides_reach_a_detached_proxy_but_not_its_arguments(settings: Path) -> None:
    started = program(
        "start", "--detach", "--json", "--set", "proxy.api_key=hunter2", "--set", "log.level=debug"
    )
    assert started.code == 0, started.err
    assert chat(started.facts["url"], "hunter2")[0] == 200
    running = find(settings)
    assert running is not None
    assert b"hunter2" not in Path(f"/proc/{running.pid}/cmdline").read_bytes()
    assert "hunter2" not in (settings / "logs" / "metaclaw.log").read_text()
    refused = metaclaw("status")
    assert refused.code == 1
    assert "another key than config.toml" in refused.err
    assert program("stop").code == 0


def test_sigterm_lets_a_running_answer_finish_and_exits_with_0(
    settings: Path, provider: Scripted
) -> None:
    provider.go.clear()
    with foreground() as (process, url, key):
        answers: list[tuple[int, bytes]] = []
        caller = threading.Thread(target=lambda: answers.append(chat(url, key)))
        caller.start()
        assert provider.asked.acquire(timeout=20)
        process.send_signal(signal.SIGTERM)
        provider.go.set()
        caller.join(60)
        assert process.wait(60) == 0
    assert [status for status, _ in answers] == [200]
    assert find(settings) is None
    (session,) = metaclaw("sessions", "list", "--json").facts["sessions"]
    assert session["turn_count"] == 1


def test_restart_starts_a_proxy_and_later_finishes_its_answers_and_keeps_its_address(
    settings: Path, provider: Scripted
) -> None:
    started = program("restart", "--json").facts
    url, key, running = started["url"], metaclaw("key").out.strip(), find(settings)
    assert running is not None
    assert (started["restarted"], started["pid"], started["unit"]) == (False, running.pid, None)
    config = settings / "config.toml"
    written = config.read_text()
    for wrong in ("[proxi]\n", "[store]\nurl = 'env:NOWHERE'\n"):
        config.write_text(written + wrong)
        assert (metaclaw("restart").code, find(settings)) == (2, running)
    config.write_text(written)

    provider.go.clear()
    answers: list[tuple[int, bytes]] = []
    caller = threading.Thread(target=lambda: answers.append(chat(url, key)))
    caller.start()
    assert provider.asked.acquire(timeout=60)
    command = [sys.executable, "-m", "metaclaw.cli", "restart", "--json"]
    began = time.monotonic()
    api = ApiClient(url, key)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as restarting:
        # The process that follows serves while the answer runs.
        while api.call("GET", "/api/status")["uptime_s"] > time.monotonic() - began:
            assert restarting.poll() is None
        provider.go.set()
        facts = json.loads(restarting.communicate(timeout=60)[0])
    caller.join(60)
    assert [status for status, _ in answers] == [200]
    assert (facts["restarted"], facts["url"]) == (True, url)
    now = find(settings)
    assert now is not None
    assert now.pid == facts["pid"] != running.pid
    assert chat(url, key)[0] == 200


def test_a_proxy_of_a_terminal_is_restarted_in_the_background_with_its_options(
    settings: Path,
) -> None:
    with foreground("--set", "proxy.api_key=hunter2") as (process, url, _):
        done = program("restart")
        assert (done.code, process.wait(60)) == (0, 0), done.err
    assert f"Restarted: MetaClaw serves at {url}" in done.out
    assert "in the background. It ran in a terminal before." in done.out
    assert "hunter2" not in done.out
    assert (settings / "run" / "launch.json").stat().st_mode & 0o077 == 0
    assert chat(url, "hunter2")[0] == 200


@pytest.mark.slow
def test_after_kill_9_the_next_start_works_and_nothing_is_lost(settings: Path) -> None:
    with foreground() as (process, url, key):
        assert chat(url, key)[0] == 200
        process.kill()
        process.wait(60)
    assert metaclaw("status").code == 1
    with foreground() as (process, _, second_key):
        assert second_key == key
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert len(metaclaw("sessions", "list", "--json").facts["sessions"]) == 1


@pytest.mark.slow
def test_a_port_that_is_taken_ends_the_start_with_the_reason(settings: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        done: list[Done] = [
            program("start", "--port", port),
            program("start", "--detach", "--port", port),
        ]
    assert [one.code for one in done] == [2, 1]
    for one in done:
        assert f"127.0.0.1:{port}" in one.err
        assert "Traceback" not in one.err
    assert find(settings) is None
