"""Commands that talk to a running proxy, against a scripted one that holds this home's lock."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from metaclaw.cli import main
from metaclaw.config import ensure_api_key
from metaclaw.instance import acquire

STATUS: dict[str, object] = {
    "version": "0.1.0",
    "mode": "skills_only",
    "uptime_s": 7500.2,
    "counts": {"candidates": {"waiting": 2}},
    "questions": [],
    "degraded": True,
    "problems": [
        {
            "about": "store",
            "what": "Turns are not being recorded",
            "why": "disk is full \x1b[31m",
            "do": "Run metaclaw doctor.",
            "at": None,
        }
    ],
    "summary": [
        {"label": "recorded", "text": "1 turn in 2 sessions", "is_brief": True},
        {"label": "store", "text": "sqlite, degraded", "is_brief": False},
    ],
}


WAITING: dict[str, object] = {
    "candidates": [
        {
            "id": "c_1",
            "question": "You said: “Be brief.” — keep it as a rule?",
            "reason": "a second reading disagrees: it was a joke",
        }
    ]
}


@contextmanager
def scripted(home: Path, *, key: str | None = None) -> Iterator[list[str]]:
    """A proxy of this home that answers by script; yields the requests it got."""
    wanted = f"Bearer {key or ensure_api_key(home).resolve()}"
    seen: list[str] = []

    class Script(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = {"/api/status": STATUS, "/api/candidates?standing=waiting&limit=5": WAITING}
            nothing: dict[str, object] = {"error": {"message": "nothing here"}}
            self._answer(200 if self.path in known else 404, known.get(self.path, nothing))

        def do_POST(self) -> None:
            if self.path == "/api/sessions/s_1/end":
                self._answer(200, {"session": "s_1", "ended": True})
            else:
                self._answer(404, {"error": {"message": "there is no running session"}})

        def _answer(self, status: int, facts: dict[str, object]) -> None:
            seen.append(f"{self.command} {self.path}")
            if self.headers["Authorization"] != wanted:
                status, facts = 401, {"error": {"message": "no"}}
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(facts).encode())

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with acquire(home) as instance, ThreadingHTTPServer(("127.0.0.1", 0), Script) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        instance.announce(f"http://127.0.0.1:{server.server_port}")
        try:
            yield seen
        finally:
            server.shutdown()
            thread.join()


def test_status_tells_a_person_how_it_is(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted(home):
        assert main(["status", "--all"]) == 0
        out = capsys.readouterr().out
        assert main(["status"]) == 0
    brief = capsys.readouterr().out.splitlines()
    assert brief[0].startswith("MetaClaw 0.1.0 serves, degraded, at http://127.0.0.1:")
    # Problems come first, then decisions that wait.
    assert brief[1:6] == [
        "! Turns are not being recorded: disk is full \\x1b[31m. Run metaclaw doctor.",
        "! You said: “Be brief.” — keep it as a rule?",
        "    Asked because: a second reading disagrees: it was a joke",
        "    metaclaw candidates approve c_1, or reject c_1",
        "! 1 further question: metaclaw candidates list --standing waiting",
    ]
    assert "skills_only, running for 2 h 5 min" in out
    assert "sqlite, degraded" in out
    assert "1 turn in 2 sessions" in "\n".join(brief)
    assert "sqlite, degraded" not in "\n".join(brief)


def test_status_as_json_has_what_the_proxy_says(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted(home):
        assert main(["status", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["running"] is True
    assert {name: facts[name] for name in STATUS} == STATUS


def test_ending_a_session_is_asked_of_the_proxy(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted(home) as seen:
        assert main(["sessions", "end", "s_1"]) == 0
        assert main(["sessions", "end", "../x"]) == 1
    assert seen == ["POST /api/sessions/s_1/end", "POST /api/sessions/..%2Fx/end"]
    captured = capsys.readouterr()
    assert captured.out == "Ended s_1.\n"
    assert "there is no running session" in captured.err


@pytest.mark.parametrize("command", [["status"], ["windows"], ["sessions", "end", "s_1"]])
def test_without_a_proxy_a_command_says_so_and_how_to_start_one(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 1
    err = capsys.readouterr().err
    assert "no proxy runs for" in err
    assert "metaclaw start" in err


def test_without_a_proxy_there_is_nothing_to_stop(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stop"]) == 1
    assert "there is nothing to stop" in capsys.readouterr().err


def test_status_as_json_without_a_proxy_is_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["running"] is False


def test_a_proxy_with_another_key_is_explained(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted(home, key="another"):
        assert main(["status"]) == 1
    assert "another key than config.toml" in capsys.readouterr().err


def test_a_proxy_that_does_not_answer_is_explained(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with acquire(home) as instance:
        assert main(["status"]) == 1
        assert "does not listen yet" in capsys.readouterr().err
        instance.announce("http://127.0.0.1:1")
        assert main(["status"]) == 1
    assert "does not answer" in capsys.readouterr().err


def test_a_second_start_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted(home):
        assert main(["start", "--detach"]) == 1
    assert "runs already at http://127.0.0.1:" in capsys.readouterr().err
