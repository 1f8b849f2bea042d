"""The stand-in held against what was recorded of the real program: the same paths, headers and
bodies, all but the words.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.tests.research.arc_stand_in import ASKS
from bench.tests.research.arc_stand_in_client import Ask, Client, ask_judges, end_session
from bench.tests.research.arc_stand_in_config import Config, load

KINDS = (
    "stage_call_with_skill_overlay",
    "stage_call_json_mode",
    "lesson_to_skill",
    "prm_judge",
    "session_end",
)
SAID = {"choices": [{"message": {"content": "Score: 1"}}]}


@contextmanager
def listening(heard: dict[str, Any]) -> Iterator[str]:
    """A server that says the same to everybody, and keeps what it heard by what the request is
    about.
    """

    class Listener(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            heard[_kind_of(body)] = self.path, [name for name, _ in self.headers.items()], body
            said = json.dumps(SAID).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Listener)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _kind_of(body: dict[str, Any]) -> str:
    if body["model"] == "session-end":
        return "session_end"
    system = body["messages"][0]["content"]
    if "skill designer" in system:
        return "lesson_to_skill"
    if "quality reviewer" in system:
        return "prm_judge"
    return "stage_call_json_mode" if "response_format" in body else "stage_call_with_skill_overlay"


def config_for(folder: Path, url: str) -> Config:
    bridge = {
        "enabled": True,
        "proxy_url": url,
        "prm": {"enabled": True, "api_base": f"{url}/v1", "api_key": "k", "votes": 1},
    }
    required: dict[str, object] = {
        "project": {"name": "x"},
        "research": {"topic": "x"},
        "runtime": {"timezone": "UTC"},
        "notifications": {"channel": "console"},
        "knowledge_base": {"root": "kb"},
        "llm": {"base_url": f"{url}/v1", "api_key_env": "NONE", "api_key": "k"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump({**required, "metaclaw_bridge": bridge}))
    return load(folder / "config.yaml")


def test_its_requests_have_the_shape_of_the_recorded_ones(tmp_path: Path, shared: Path) -> None:
    captured = {
        kind: next(iter((shared / "captures").glob(f"autoresearchclaw-*__{kind}.json")), None)
        for kind in KINDS
    }
    if None in captured.values():
        pytest.skip(f"not all captures of AutoResearchClaw are in {shared / 'captures'}")
    heard: dict[str, Any] = {}
    with listening(heard) as url:
        config = config_for(tmp_path, url)
        client = Client.of(config, tmp_path, captures=None)
        assert client is not None
        client.chat(ASKS[1][0], "system", "context", "\n## Learned Skills from Prior Runs\n")
        client.chat(ASKS[3][0], "system", "context", "")
        client.chat(
            Ask("x", json_mode=True, max_tokens=3000), "You are a skill designer", "context", ""
        )
        ask_judges(config.prm, 5, captures=None)
        end_session(config, "rc-1", tmp_path)
    assert set(heard) == set(KINDS)
    for kind, path in captured.items():
        assert path is not None
        real = json.loads(path.read_text())
        asked, headers, body = heard[kind]
        assert (asked, sorted(headers)) == (
            real["path"],
            sorted(name for name, _ in real["headers"]),
        ), kind
        assert list(body) == list(real["body"]), kind
        assert [one["role"] for one in body["messages"]] == [
            one["role"] for one in real["body"]["messages"]
        ], kind
        told = {
            name: value for name, value in real["body"].items() if name not in ("model", "messages")
        }
        assert {name: body[name] for name in told} == told, kind


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"llm": {"base_url": " ", "api_key_env": "X"}}, "llm.base_url"),
        ({"knowledge_base": {}}, "knowledge_base.root"),
        ({"project": {"name": "x", "mode": "auto"}}, "project.mode"),
        ({"experiment": {"mode": "laboratory"}}, "experiment.mode"),
    ],
)
def test_its_loader_refuses_what_the_real_one_refuses(
    tmp_path: Path, change: dict[str, object], fault: str
) -> None:
    config_for(tmp_path, "http://127.0.0.1:9")
    tree = yaml.safe_load((tmp_path / "config.yaml").read_text())
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**tree, **change}))
    with pytest.raises(ValueError, match=fault):
        load(tmp_path / "config.yaml")
