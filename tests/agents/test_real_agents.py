"""The real programs, headless, through the running proxy to a scripted provider: `make test-agents`
installs and runs them.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaclaw.agents import find_agent
from tests.support.program import KEY, NOT_LEARNING, Program, gemini_toml, providers_toml
from tests.support.provider import Provider

COMMANDS = os.environ.get("METACLAW_TEST_AGENTS", "")
"""The folder of the agents' commands, as scripts/agents-env prints it."""
NAMES = ["claude-code", "codex", "opencode", "qwen-code", "gemini", "hermes", "aider", "openclaw"]
pytestmark = pytest.mark.of_target("test-agents", bool(COMMANDS))


@pytest.fixture
def provider() -> Iterator[Provider]:
    running = Provider().start()
    yield running
    running.stop()


@pytest.fixture
def running(provider: Provider, tmp_path: Path) -> Iterator[Program]:
    user = tmp_path / "user"
    user.mkdir()
    env = {**NOT_LEARNING, "HOME": str(user), "PATH": f"{COMMANDS}{os.pathsep}{os.environ['PATH']}"}
    program = Program(tmp_path / "home", providers_toml(provider.url), env=env)
    # The user's own variables would outrank what is tested.
    for name in [
        name
        for name in program.env
        if name.startswith(
            ("ANTHROPIC_", "OPENAI_", "GEMINI_", "GOOGLE_", "CLAUDE_", "CODEX_", "XDG_")
        )
    ]:
        program.env.pop(name)
    yield program.start()
    program.stop()


def agents(program: Program, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "metaclaw", "agents", *arguments]
    return subprocess.run(
        command, env=program.env, capture_output=True, text=True, timeout=600, check=False
    )


LOGINS = {
    "claude-code": (
        "anthropic",
        {"CLAUDE_CODE_OAUTH_TOKEN": "sk-ant-oat01-mine"},
        "Bearer sk-ant-oat01-mine",
    ),
    "codex": ("openai", {"CODEX_API_KEY": "sk-mine"}, "Bearer sk-mine"),
}


@pytest.mark.parametrize("name", LOGINS)
def test_with_a_subscription_the_provider_gets_the_persons_own_login(
    name: str, running: Program, provider: Provider
) -> None:
    if not (Path(COMMANDS) / find_agent(name).program).exists():
        pytest.skip(f"{name} is not installed in {COMMANDS}")
    kind, login, sent = LOGINS[name]
    running.stop()
    place = f"{provider.url}/v1" if kind == "openai" else provider.url
    config = (
        f'[[providers]]\nname = "own"\nkind = "{kind}"\nbase_url = "{place}"\napi_key ='
        ' "passthrough"\n'
    )
    (running.home / "config.toml").write_text(f'[proxy]\nport = 0\napi_key = "{KEY}"\n{config}')
    running.env |= login
    running.start()
    assert agents(running, "connect", name, "--yes", "--subscription").returncode == 0
    tried = agents(running, "test", name, "--json", "--timeout", "300")
    assert json.loads(tried.stdout or "{}").get("ok"), (tried.stdout, tried.stderr)
    asked = [seen for seen in provider.requests if b"which model are you" in seen.body]
    assert asked
    assert all(seen.header("authorization") == sent for seen in asked)
    assert not any(KEY in f"{seen.path}{seen.headers}" for seen in provider.requests)


@pytest.mark.parametrize("name", NAMES)
def test_the_real_agent_answers_through_the_proxy_and_is_disconnected_again(
    name: str, running: Program, provider: Provider
) -> None:
    if not (Path(COMMANDS) / find_agent(name).program).exists():
        pytest.skip(f"{name} is not installed in {COMMANDS}")
    connected = agents(running, "connect", name, "--yes", "--model", "echo")
    assert connected.returncode == 0, connected.stderr
    tried = agents(running, "test", name, "--json", "--timeout", "300")
    facts = json.loads(tried.stdout or "{}")
    assert facts.get("ok"), (tried.stdout, tried.stderr)
    assert "echo:" in facts["answer"]
    assert facts["turns_recorded"] >= 1
    assert any(
        "which model are you" in seen.body.decode("utf-8", "replace") for seen in provider.requests
    )
    sessions = running.get("/api/sessions")["sessions"]
    kinds = {
        turn["kind"]
        for one in sessions
        for turn in running.get(f"/api/sessions/{one['id']}")["turns"]
    }
    assert kinds == {"side"}, "a test is no work to learn from"
    assert running.env["HOME"] not in ("", os.environ.get("HOME"))
    undone = agents(running, "disconnect", name, "--yes", "--json")
    assert undone.returncode == 0, undone.stderr
    state = json.loads(agents(running, "list", "--json").stdout)["agents"]
    assert next(one for one in state if one["name"] == name)["state"] == "not connected"


def test_gemini_speaks_its_own_wire_to_its_own_vendor_and_its_files_come_back(
    running: Program, provider: Provider
) -> None:
    if not (Path(COMMANDS) / "gemini").exists():
        pytest.skip(f"gemini is not installed in {COMMANDS}")
    config = running.home / "config.toml"
    config.write_text(config.read_text() + gemini_toml(provider.url))
    running.stop()
    running.start()
    folder = Path(running.env["HOME"]) / ".gemini"
    folder.mkdir()
    mine = {"settings.json": '{ // mine\n  "ui": {"theme": "Dracula"}\n}\n', ".env": "A=1\nB=2"}
    for name, text in mine.items():
        (folder / name).write_text(text)
    assert agents(running, "connect", "gemini", "--yes", "--model", "gemini-model").returncode == 0
    tried = agents(running, "test", "gemini", "--json", "--timeout", "300")
    assert json.loads(tried.stdout or "{}").get("ok"), (tried.stdout, tried.stderr)
    asked = [seen for seen in provider.requests if b"which model are you" in seen.body]
    assert {(seen.path, seen.query) for seen in asked} == {
        ("/v1beta/models/gemini-model:streamGenerateContent", "alt=sse")
    }
    assert {seen.header("x-goog-api-key") for seen in asked} == {"sk-gemini"}
    assert not any(KEY in f"{seen.path}{seen.headers}{seen.body!r}" for seen in provider.requests)
    assert agents(running, "disconnect", "gemini", "--yes").returncode == 0
    for name, text in mine.items():
        assert (folder / name).read_text() == text


def test_the_providers_variables_in_the_shell_do_not_reach_past_qwens_settings(
    running: Program, provider: Provider
) -> None:
    if not (Path(COMMANDS) / "qwen").exists():
        pytest.skip(f"qwen is not installed in {COMMANDS}")
    variables = {
        "OPENAI_API_KEY": "sk-of-the-provider",
        "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
        "OPENAI_MODEL": "another",
    }
    running.env |= variables
    assert agents(running, "connect", "qwen-code", "--yes", "--model", "echo").returncode == 0
    tried = agents(running, "test", "qwen-code", "--json", "--timeout", "300")
    assert json.loads(tried.stdout or "{}").get("ok"), (tried.stdout, tried.stderr)
    assert {seen.json["model"] for seen in provider.requests if seen.method == "POST"} == {"echo"}


def test_setup_connects_codex_to_a_server_that_has_chat_only(
    running: Program, provider: Provider
) -> None:
    if not (Path(COMMANDS) / "codex").exists():
        pytest.skip(f"codex is not installed in {COMMANDS}")
    provider.missing = ("/responses",)
    (running.home / "config.toml").write_text(f'[proxy]\nport = 0\napi_key = "{KEY}"\n')
    running.stop()
    asked = ["--provider", "local", "--base-url", f"{provider.url}/v1", "--agents", "codex"]
    command = [sys.executable, "-m", "metaclaw", "setup", "--yes", *asked]
    try:
        done = subprocess.run(
            command, env=running.env, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert "Codex answered through the proxy" in done.stdout
        assert 'wires = ["chat"]' in (running.home / "config.toml").read_text()
    finally:
        running.command("stop")
