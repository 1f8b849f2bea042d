"""`metaclaw agents` and `metaclaw setup` as a person uses them."""

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaclaw.agents import Trial, find_agent
from metaclaw.cli.agents import trial_lines
from tests.cli.program import Done, metaclaw
from tests.support.program import KEY, NOT_LEARNING, Program, providers_toml
from tests.support.provider import Provider

CONFIG = """
[proxy]
api_key = "mc-test-key"

[[providers]]
name = "openai"
kind = "openai"
api_key = "env:OPENAI_API_KEY"
models = ["gpt-5.1"]
"""
PASSTHROUGH = '[[providers]]\nname = "anthropic"\nkind = "anthropic"\napi_key = "passthrough"\n'


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, with a home of MetaClaw in it."""
    for name in (
        "CLAUDE_CONFIG_DIR",
        "CODEX_HOME",
        "XDG_CONFIG_HOME",
        "HERMES_HOME",
        "OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("METACLAW_HOME", str(tmp_path / "mc"))
    (tmp_path / "mc").mkdir(mode=0o700)
    (tmp_path / "mc" / "config.toml").write_text(CONFIG)
    return tmp_path


def test_connect_shows_the_difference_and_asks_first(user: Path) -> None:
    file = user / ".codex" / "config.toml"
    file.parent.mkdir()
    file.write_text('model = "gpt-5.5"  # mine\napproval_policy = "never"\n')
    refused = metaclaw("agents", "connect", "codex", given="n\n")
    assert refused.code == 1
    assert '+model_provider = "metaclaw"' in refused.out
    assert file.read_text() == 'model = "gpt-5.5"  # mine\napproval_policy = "never"\n'
    assert metaclaw("agents", "connect", "codex", given="y\n").code == 0
    assert 'model = "gpt-5.5"  # mine\napproval_policy = "never"\n' in file.read_text()
    assert KEY in file.read_text()
    assert KEY not in refused.out


def test_connect_says_how_to_try_the_agent(user: Path) -> None:
    assert (
        "Try it: metaclaw agents test codex" in metaclaw("agents", "connect", "codex", "--yes").out
    )


def test_a_connected_agent_is_listed_with_its_file_and_backup(user: Path) -> None:
    file = user / ".claude" / "settings.json"
    file.parent.mkdir()
    file.write_text("{}")
    file.chmod(0o640)
    done = metaclaw("agents", "connect", "claude", "--yes", "--json")
    assert done.facts["changed"] is True
    assert Path(done.facts["backup"]).read_text() == "{}"
    assert stat.S_IMODE(Path(done.facts["backup"]).stat().st_mode) == 0o600
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    listed = {one["name"]: one for one in metaclaw("agents", "list", "--json").facts["agents"]}
    assert (listed["claude-code"]["state"], listed["claude-code"]["file"]) == (
        "connected",
        str(file),
    )


def test_claude_code_with_a_subscription_gets_our_key_in_the_address_and_no_token(
    user: Path,
) -> None:
    refused = metaclaw("agents", "connect", "claude-code", "--subscription", "--yes")
    assert refused.code == 2
    assert "providers.anthropic.api_key=passthrough" in refused.err
    (user / "mc" / "config.toml").write_text(CONFIG + PASSTHROUGH)
    assert metaclaw("agents", "connect", "claude-code", "--subscription", "--yes").code == 0
    written = (user / ".claude" / "settings.json").read_text()
    assert f'"ANTHROPIC_BASE_URL": "http://127.0.0.1:30000/k/{KEY}"' in written
    assert "TOKEN" not in written


def test_an_agent_that_must_name_a_model_says_so_where_none_is_known(user: Path) -> None:
    (user / "mc" / "config.toml").write_text(CONFIG.replace('models = ["gpt-5.1"]', ""))
    refused = metaclaw("agents", "connect", "hermes", "--yes")
    assert (refused.code, "--model NAME" in refused.err) == (2, True)
    assert not (user / ".hermes").exists()


def test_a_model_that_is_named_is_written_also_where_none_is_needed(user: Path) -> None:
    assert metaclaw("agents", "connect", "codex", "--yes").code == 0
    assert "model = " not in (user / ".codex" / "config.toml").read_text()
    assert metaclaw("agents", "connect", "codex", "--yes", "--model", "gpt-6").code == 0
    assert 'model = "gpt-6"' in (user / ".codex" / "config.toml").read_text()


def test_codex_gets_a_model_of_a_server_on_this_machine_which_does_not_know_its_own(
    user: Path,
) -> None:
    local = (
        '[[providers]]\nname = "local"\nkind = "openai"\nbase_url ='
        ' "http://127.0.0.1:1234/v1"\nmodels = ["qwen"]\n'
    )
    (user / "mc" / "config.toml").write_text(f'proxy.api_key = "{KEY}"\n{local}')
    assert metaclaw("agents", "connect", "codex", "--yes").code == 0
    assert 'model = "qwen"' in (user / ".codex" / "config.toml").read_text()


def test_env_prints_what_to_export(user: Path) -> None:
    out = metaclaw("agents", "connect", "env").out
    assert f"export OPENAI_API_KEY={KEY}\n" in out
    assert "export ANTHROPIC_BASE_URL=http://127.0.0.1:30000\n" in out


def test_an_agent_that_is_not_installed_is_told_how_to_install(
    user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(user))
    refused = metaclaw("agents", "test", "codex")
    assert (refused.code, "install it: npm install -g @openai/codex" in refused.err) == (1, True)


def test_a_configuration_that_is_a_link_stays_one(user: Path) -> None:
    real = user / "dotfiles.toml"
    real.write_text("# mine\n")
    file = user / ".codex" / "config.toml"
    file.parent.mkdir()
    file.symlink_to(real)
    assert metaclaw("agents", "connect", "codex", "--yes").code == 0
    assert file.is_symlink()
    assert "metaclaw" in real.read_text()
    assert metaclaw("agents", "disconnect", "codex", "--yes").code == 0
    assert (file.is_symlink(), real.read_text()) == (True, "# mine\n")


def test_an_unknown_agent_is_refused_with_the_names_there_are(user: Path) -> None:
    refused = metaclaw("agents", "connect", "nobody")
    assert "claude-code, codex, openclaw" in refused.err


def no_sandbox_or_permission_in(done: Done) -> bool:
    assert done.code == 0, done.err
    words = ("sandbox", "approval", "permission", "bypass", "yolo", "trust")
    return not any(word in done.out.lower() for word in words)


def test_no_setting_touches_a_sandbox_or_a_permission(user: Path) -> None:
    for name in (
        "claude-code",
        "codex",
        "openclaw",
        "opencode",
        "hermes",
        "qwen-code",
    ):
        assert no_sandbox_or_permission_in(metaclaw("agents", "connect", name, "--yes"))


@pytest.fixture
def provider() -> Iterator[Provider]:
    running = Provider().start()
    yield running
    running.stop()


SCRIPTED_AGENT = """#!{python}
import json, os, pathlib, sys, urllib.request
env = json.loads((pathlib.Path(os.environ["HOME"]) / ".claude" / "settings.json").read_text())["env"]
body = {{"model": "echo", "max_tokens": 9, "messages": [{{"role": "user", "content": sys.argv[2]}}]}}
headers = {{"Authorization": "Bearer " + env["ANTHROPIC_AUTH_TOKEN"], "Content-Type": "application/json"}}
request = urllib.request.Request(env["ANTHROPIC_BASE_URL"] + "/v1/messages", json.dumps(body).encode(), headers)
print(json.load(urllib.request.urlopen(request))["content"][0]["text"])
"""


@pytest.fixture
def installed(tmp_path: Path, provider: Provider) -> Program:
    """A home with providers, and a program called `claude` that asks by what its configuration
    says.
    """
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "claude").write_text(SCRIPTED_AGENT.format(python=sys.executable))
    (commands / "claude").chmod(0o755)
    env = {
        **NOT_LEARNING,
        "HOME": str(tmp_path),
        "PATH": f"{commands}{os.pathsep}/usr/bin{os.pathsep}/bin",
    }
    return Program(
        tmp_path / "home", providers_toml(provider.url) + "\n# mine\n[judge]\nvotes = 5\n", env=env
    )


def test_setup_starts_connects_and_proves_an_agent_and_keeps_the_rest(
    installed: Program, tmp_path: Path
) -> None:
    try:
        done = installed.command("setup", "--yes")
        assert done.returncode == 0, done.stderr
        assert "Claude Code answered through the proxy (1 turn recorded)" in done.stdout
        assert "echo:" in done.stdout
        written = (installed.home / "config.toml").read_text()
        assert "votes = 5" in written
        assert "# mine" in written
        again = installed.command("setup", "--yes")
        assert again.returncode == 0, again.stderr
        assert (installed.home / "config.toml").read_text() == written
    finally:
        installed.command("stop")


def test_setup_asks_few_questions_and_enter_is_an_answer_to_each(
    installed: Program,
) -> None:
    command = [sys.executable, "-m", "metaclaw", "setup"]
    try:
        done = subprocess.run(
            command,
            env=installed.env,
            input="\n\n\n",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        questions = [
            text for text in ("Which provider", "Which agents", "Train") if text in done.stdout
        ]
        assert questions == ["Which provider", "Which agents"]
        assert "Claude Code answered through the proxy" in done.stdout
    finally:
        installed.command("stop")


def test_setup_stores_a_key_as_a_reference(installed: Program, provider: Provider) -> None:
    installed.env["OPENROUTER_API_KEY"] = "sk-or-secret"
    try:
        done = installed.command(
            "setup",
            "--yes",
            "--provider",
            "openrouter",
            "--base-url",
            f"{provider.url}/v1",
            "--model",
            "echo",
            "--agents",
            "none",
        )
        assert done.returncode == 0, done.stderr
        assert "echo answered through the proxy" in done.stdout
        written = (installed.home / "config.toml").read_text()
        assert 'api_key = "env:OPENROUTER_API_KEY"' in written
        assert "sk-or-secret" not in written + done.stdout + done.stderr
    finally:
        installed.command("stop")


def test_setup_without_the_key_says_which_variable_to_set(user: Path) -> None:
    before = (user / "mc" / "config.toml").read_text()
    refused = metaclaw("setup", "--yes", "--provider", "groq", "--agents", "none")
    assert (refused.code, "GROQ_API_KEY is not set" in refused.err) == (2, True)
    assert (user / "mc" / "config.toml").read_text() == before


def test_setup_finds_out_that_a_server_has_chat_only(
    installed: Program, provider: Provider
) -> None:
    provider.missing = ("/responses",)
    try:
        done = installed.command(
            "setup",
            "--yes",
            "--provider",
            "local",
            "--base-url",
            f"{provider.url}/v1",
            "--agents",
            "none",
            "--model",
            "echo",
        )
        assert done.returncode == 0, done.stderr
        written = (installed.home / "config.toml").read_text()
        local = written[written.index('name = "local"') :]
        assert 'wires = ["chat"]' in local
        assert "api_key" not in local
        again = installed.command("setup", "--yes", "--agents", "none")
        assert (again.returncode, (installed.home / "config.toml").read_text()) == (0, written)
    finally:
        installed.command("stop")


def test_setup_takes_the_models_that_a_server_of_ones_own_lists(
    installed: Program, provider: Provider
) -> None:
    (installed.home / "config.toml").write_text(f'[proxy]\nport = 0\napi_key = "{KEY}"\n')
    questions = f"{provider.url}/v1\nclaude\n"
    command = [sys.executable, "-m", "metaclaw", "setup"]
    try:
        done = subprocess.run(
            command,
            env=installed.env,
            input=questions,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        written = (installed.home / "config.toml").read_text()
        assert 'models = ["echo"]' in written
        assert "Claude Code answered through the proxy" in done.stdout
    finally:
        installed.command("stop")


def test_setup_asks_which_of_several_models_agents_should_use(
    installed: Program, provider: Provider, tmp_path: Path
) -> None:
    provider.listed = ("nomic-embed-text", "first", "second")
    (installed.home / "config.toml").write_text(f'[proxy]\nport = 0\napi_key = "{KEY}"\n')
    command = [sys.executable, "-m", "metaclaw", "setup"]
    try:
        given = f"{provider.url}/v1\nclaude\n3\n2\n"
        done = subprocess.run(
            command,
            env=installed.env,
            input=given,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "   1  first\n   2  second\n" in done.stdout
        assert "3 is not in the list" in done.stderr + done.stdout
        assert 'models = ["second", "first"]' in (installed.home / "config.toml").read_text()
        assert '"ANTHROPIC_MODEL": "second"' in (tmp_path / ".claude" / "settings.json").read_text()
        again = installed.command("setup", "--yes")
        assert again.returncode == 0, again.stderr
        assert '"ANTHROPIC_MODEL": "second"' in (tmp_path / ".claude" / "settings.json").read_text()
    finally:
        installed.command("stop")


def test_setup_takes_the_first_model_and_the_port_that_it_advises_to_choose(
    installed: Program, provider: Provider, tmp_path: Path
) -> None:
    provider.listed = ("first", *(f"model-{number}" for number in range(30)))
    (installed.home / "config.toml").write_text(f'[proxy]\nport = 0\napi_key = "{KEY}"\n')
    chosen = (
        "setup",
        "--yes",
        "--provider",
        "local",
        "--base-url",
        f"{provider.url}/v1",
        "--agents",
        "claude",
    )
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = str(server.getsockname()[1])
            taken = installed.command(*chosen, "--port", port)
        assert (taken.returncode, "choose another with --port" in taken.stderr) == (1, True)
        done = installed.command(*chosen, "--port", port)
        assert done.returncode == 0, done.stderr
        assert f"port = {port}" in (installed.home / "config.toml").read_text()
        written = (tmp_path / ".claude" / "settings.json").read_text()
        assert f'"ANTHROPIC_BASE_URL": "http://127.0.0.1:{port}"' in written
        assert '"ANTHROPIC_MODEL": "first"' in written
    finally:
        installed.command("stop")


def test_setup_says_why_no_model_can_be_asked(installed: Program, provider: Provider) -> None:
    provider.refused_keys = ("sk-wrong",)
    path = installed.home / "config.toml"
    head = (
        f'[proxy]\nport = 0\napi_key = "{KEY}"\n[[providers]]\nname = "mine"\nkind ='
        ' "openai"\napi_key = "sk-wrong"\n'
    )
    for address, reason in (
        (f"{provider.url}/v1", "refused the key (401): Incorrect API key"),
        ("http://127.0.0.1:9/v1", "refused"),
    ):
        path.write_text(f'{head}base_url = "{address}"\n')
        try:
            done = installed.command("setup", "--yes", "--agents", "none")
        finally:
            installed.command("stop")
        assert done.returncode == 1
        assert "No model answers: provider mine " in done.stderr
        assert reason in done.stderr


def test_setup_keeps_the_model_that_an_agent_was_connected_with(
    installed: Program, tmp_path: Path
) -> None:
    settings = tmp_path / ".claude" / "settings.json"
    try:
        assert installed.command("setup", "--yes").returncode == 0
        assert "ANTHROPIC_MODEL" not in settings.read_text()
        assert (
            installed.command(
                "agents", "connect", "claude", "--yes", "--model", "mine-1"
            ).returncode
            == 0
        )
        assert installed.command("setup", "--yes").returncode == 0
        assert '"ANTHROPIC_MODEL": "mine-1"' in settings.read_text()
        assert installed.command("setup", "--yes", "--model", "mine-2").returncode == 0
        assert '"ANTHROPIC_MODEL": "mine-2"' in settings.read_text()
    finally:
        installed.command("stop")


def test_an_address_without_a_provider_is_refused_before_any_question(user: Path) -> None:
    refused = metaclaw("setup", "--base-url", "http://127.0.0.1:8000/v1")
    assert refused.code == 2
    assert "--provider local --base-url http://127.0.0.1:8000/v1" in refused.err
    assert "Which provider" not in refused.out
    assert metaclaw("setup", "--yes", "--provider", "local").code == 2


def test_the_test_questions_of_setup_are_no_work(installed: Program) -> None:
    try:
        assert installed.command("setup", "--yes").returncode == 0
        assert (
            installed.command("setup", "--yes", "--agents", "none", "--model", "echo").returncode
            == 0
        )
        listed = json.loads(installed.command("sessions", "list", "--all", "--json").stdout)[
            "sessions"
        ]
        shown = [
            json.loads(installed.command("sessions", "show", one["id"], "--json").stdout)
            for one in listed
        ]
        turns = [turn for one in shown for turn in one["turns"]]
        assert [turn["kind"] for turn in turns] == ["side", "side"]
    finally:
        installed.command("stop")


def test_a_request_that_is_too_long_for_the_embedded_model_is_explained() -> None:
    printed = 'ERROR: {"error": {"message": "too long", "code": "context_length_exceeded"}}'
    words = trial_lines(find_agent("codex"), Trial(1, "", printed), 0)
    assert words[0].startswith("Codex gave no answer (exit code 1)")
    assert "metaclaw setup --provider NAME" in words[-1]
    assert (
        trial_lines(find_agent("codex"), Trial(1, "", "ERROR: no network"), 0)[-1]
        == "See metaclaw doctor."
    )


MCP_FILES = {
    "claude-code": (".claude.json", '{\n  "numStartups": 3,\n  "mcpServers": {}\n}\n'),
    "codex": (".codex/config.toml", '# mine\n[mcp_servers.other]\ncommand = "x"\n'),
    "opencode": (".config/opencode/opencode.json", '{\n  "theme": "dark" // mine\n}\n'),
}


@pytest.mark.parametrize("name", MCP_FILES)
def test_the_mcp_server_is_registered_and_taken_out_byte_for_byte(user: Path, name: str) -> None:
    place, original = MCP_FILES[name]
    file = user / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(original)
    refused = metaclaw("agents", "connect", name, "--mcp", given="n\n")
    assert (refused.code, file.read_text()) == (1, original)
    assert "metaclaw.cli" in refused.out
    assert str(file) in refused.out
    done = metaclaw("agents", "connect", name, "--mcp", "--yes", "--json")
    assert done.code == 0, done.err
    assert done.facts["mcp"] == str(file)
    written = file.read_text()
    command = (sys.executable, "-P", "-m", "metaclaw.cli", "--home", str(user / "mc"), "mcp")
    assert all(f'"{word}"' in written for word in command)
    # Connecting again, as after a change of the port, keeps it.
    assert metaclaw("agents", "connect", name, "--yes").code == 0
    assert file.read_text() == written
    assert metaclaw("agents", "disconnect", name, "--yes").code == 0
    assert file.read_text() == original


def test_without_mcp_nothing_of_it_is_written_and_other_agents_say_how(user: Path) -> None:
    assert metaclaw("agents", "connect", "claude-code", "--yes").code == 0
    assert not (user / ".claude.json").exists()
    assert metaclaw("agents", "disconnect", "claude-code", "--yes").code == 0
    refused = metaclaw("agents", "connect", "hermes", "--mcp", "--yes")
    assert (refused.code, "by hand: " in refused.err) == (2, True)
