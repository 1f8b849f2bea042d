"""`metaclaw doctor`: each thing that can be wrong is found, and says what to do."""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from metaclaw.cli import main
from metaclaw.cli.checks import (
    DoctorFinding,
    FindingState,
    check_clock,
    check_home,
    check_port,
    check_providers,
    check_skills,
    examine,
    reach,
)
from metaclaw.config import ProviderConfig, Secret, build, ensure_api_key, load
from metaclaw.instance import acquire
from metaclaw.skills import rule_examples
from tests.cli.program import metaclaw


@contextmanager
def provider(
    status: int, *, silent: bool = False
) -> Iterator[tuple[str, list[tuple[str, dict[str, str]]]]]:
    """A provider that answers every GET with one status (or never); yields its address and what it
    was asked.
    """
    asked: list[tuple[str, dict[str, str]]] = []
    over = threading.Event()

    class Script(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            if silent:
                over.wait(10)
                return
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Script) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            over.set()
            server.shutdown()
            thread.join()


def test_an_openai_provider_is_asked_for_its_models_with_its_key() -> None:
    with provider(200) as (url, asked):
        answer = reach(
            ProviderConfig(name="a", kind="openai", base_url=f"{url}/v1", api_key=Secret("k-1")), 5
        )
    assert answer.state is FindingState.OK
    path, headers = asked[0]
    assert (path, headers["authorization"]) == ("/v1/models", "Bearer k-1")


def test_an_anthropic_provider_is_asked_in_its_own_way() -> None:
    with provider(200) as (url, asked):
        assert (
            reach(
                ProviderConfig(name="a", kind="anthropic", base_url=url, api_key=Secret("k-1")), 5
            ).state
            is FindingState.OK
        )
    path, headers = asked[0]
    assert (path, headers["x-api-key"], headers["anthropic-version"]) == (
        "/v1/models",
        "k-1",
        "2023-06-01",
    )


@pytest.mark.parametrize(
    ("status", "key", "good", "words"),
    [
        (401, "k", False, "refuses the key"),
        (401, "passthrough", True, "the callers' own credentials"),
        (404, "k", False, "answers 404"),
        (500, "k", False, "answers 500"),
    ],
)
def test_what_a_provider_answers_is_told_in_words(
    status: int, key: str, good: bool, words: str
) -> None:
    with provider(status) as (url, _):
        answer = reach(
            ProviderConfig(name="a", kind="openai", base_url=f"{url}/v1", api_key=Secret(key)), 5
        )
    assert (answer.state, answer.remedy is None) == (
        FindingState.OK if good else FindingState.WARN,
        good,
    )
    assert words in answer.what


def test_a_provider_that_is_not_there_or_never_answers_fails_in_time() -> None:
    gone = reach(ProviderConfig(name="a", kind="openai", base_url="http://127.0.0.1:1/v1"), 5)
    assert gone.state is FindingState.FAIL
    assert "does not answer" in gone.what
    began = time.monotonic()
    with provider(200, silent=True) as (url, _):
        slow = reach(ProviderConfig(name="a", kind="openai", base_url=url), 0.2)
    assert slow.state is FindingState.FAIL
    assert time.monotonic() - began < 60  # it would be silent for ever


def test_a_provider_whose_key_cannot_be_had_is_not_asked() -> None:
    with provider(200) as (url, asked):
        answer = reach(
            ProviderConfig(name="a", kind="openai", base_url=url, api_key=Secret("env:NOT_THERE")),
            5,
        )
    assert asked == []
    assert "NOT_THERE" in (answer.remedy or "")


def test_a_provider_that_speaks_no_http_is_no_crash() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def babble() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"SSH-2.0-not-http\r\n\r\n")

        thread = threading.Thread(target=babble)
        thread.start()
        answer = reach(
            ProviderConfig(
                name="a", kind="openai", base_url=f"http://127.0.0.1:{server.getsockname()[1]}"
            ),
            5,
        )
        thread.join()
    assert answer.state is FindingState.FAIL


def states(findings: Iterator[DoctorFinding]) -> list[tuple[str, str]]:
    return [(finding.name, finding.state.value) for finding in findings]


def test_a_home_that_others_can_read_is_found(home: Path) -> None:
    assert states(check_home(home)) == [("home", "warn")]
    ensure_api_key(home)
    assert states(check_home(home)) == [("disk", "ok")]
    home.chmod(0o755)
    (home / "config.toml").chmod(0o644)
    found = list(check_home(home))
    assert [finding.remedy for finding in found[:2]] == [
        f"chmod 700 {home}",
        f"chmod 600 {home / 'config.toml'}",
    ]


def test_a_port_that_somebody_else_has_is_found(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        config = load(home, {}, [f"proxy.port={server.getsockname()[1]}"])
        assert check_port(home, config).state is FindingState.FAIL
        with acquire(home):
            assert check_port(home, config).state is FindingState.OK
    assert check_port(home, load(home, {}, ["proxy.port=0"])).state is FindingState.OK


def test_every_provider_is_looked_at(home: Path) -> None:
    with provider(200) as (good, _), provider(401) as (bad, _):
        tree = {
            "providers": [
                {"name": "good", "kind": "openai", "base_url": good},
                {"name": "bad", "kind": "openai", "base_url": bad},
                {"name": "gone", "kind": "anthropic", "base_url": "http://127.0.0.1:1"},
            ]
        }
        found = states(check_providers(build(tree, home), 5))
    assert found == [("provider good", "ok"), ("provider bad", "warn"), ("provider gone", "fail")]


def test_a_clock_that_went_back_is_found(home: Path) -> None:
    home.mkdir()
    (home / "ledger.db").write_text("")
    assert states(check_clock(home)) == [("clock", "ok")]
    tomorrow = time.time() + 86_400
    os.utime(home / "ledger.db", (tomorrow, tomorrow))
    assert states(check_clock(home)) == [("clock", "warn")]


def test_a_wrong_configuration_ends_the_examination(home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text("[proxy]\nprot = 1\n")
    (home / "config.toml").chmod(0o600)
    found = [finding for finding in examine(home, 1) if finding.state is FindingState.FAIL]
    assert [(finding.name, finding.remedy) for finding in found] == [
        ("config", "did you mean port?")
    ]


def test_the_whole_examination_tells_what_fails(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_api_key(home)
    (home / "skills" / "broken").mkdir(parents=True)
    (home / "skills" / "broken" / "SKILL.md").write_text("no front matter")
    with provider(200) as (url, _):
        monkeypatch.setenv(
            "METACLAW__PROVIDERS", f'[{{name = "main", kind = "openai", base_url = "{url}/v1"}}]'
        )
        monkeypatch.setenv("METACLAW__PROXY__PORT", "0")
        assert main(["doctor", "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["healthy"] is True
        found = [(check["name"], check["state"]) for check in facts["checks"]]
        assert found == [
            ("disk", "ok"),
            ("config", "ok"),
            ("key", "ok"),
            ("port", "ok"),
            ("store", "ok"),
            ("skills", "ok"),
            ("skills", "warn"),
            ("retrieval", "ok"),
            ("provider main", "ok"),
            ("clock", "ok"),
        ]
    (home / "ledger.db").write_text(
        "this is no database, and long enough to be looked at as one" * 20
    )
    assert main(["doctor", "--timeout", "1"]) == 1
    out = capsys.readouterr().out
    assert "fail  store" in out
    assert "fail  provider main" in out
    assert "1 to look at, 2 failed" in out


def test_a_check_that_accepts_a_trivial_answer_is_warned_of(tmp_path: Path) -> None:
    for name, check in (("digit", r"pattern: \d"), ("date", r"pattern: ^\d{4}-\d\d-\d\d$")):
        (tmp_path / "skills" / name).mkdir(parents=True)
        (tmp_path / "skills" / name / "SKILL.md").write_text(
            f"---\nname: {name}\ndescription: When a date is written\ncheck: '{check}'\n---\nWrite"
            " it so.\n"
        )
    (warning,) = [one for one in check_skills(load(tmp_path)) if one.state is FindingState.WARN]
    assert warning.what.startswith("the check of digit accepts '7' to any request")


def test_a_rule_of_the_library_is_nothing_to_complain_of(home: Path) -> None:
    for name in rule_examples():
        assert metaclaw("rules", "add", "--example", name).code == 0
    assert [one.what for one in check_skills(load(home)) if one.state is FindingState.WARN] == []
