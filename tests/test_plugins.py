"""Plugins: the examples of docs/plugins.md in the running program, and what is said of plugins that
are not installed or do not work.
"""

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import httpx
import pytest

from metaclaw.domain.policy import Weights
from metaclaw.engine.vocabulary import Vocabulary
from metaclaw.hooks import MODEL_HOSTS, call_plugin
from metaclaw.training import HostSettings, ModelHost
from metaclaw.upstream import HttpEndpoint
from tests.cli.program import Done, program
from tests.support import tiny
from tests.support.lora_server import Body, FakeServer
from tests.support.program import NOT_LEARNING, Program, providers_toml
from tests.support.provider import Provider

PAGE = Path(__file__).resolve().parents[1] / "docs" / "plugins.md"
BLOCKS = dict(re.findall(r"```\w+\n# (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL))
# Tinker's SDK as far as sampling goes: it always says the same.
TINKER = """
from concurrent.futures import Future
from types import SimpleNamespace as Thing

class TinkerError(Exception): ...

class ServiceClient:
    def __init__(self, base_url, api_key): ...
    def create_sampling_client(self, base_model): return self
    def close(self, status): ...
    def sample(self, prompt, count, params):
        tokens, done = TOKENS, Future()
        one = Thing(tokens=tokens, logprobs=[-0.1] * len(tokens), stop_reason="stop")
        done.set_result(Thing(sequences=[one]))
        return done

types = Thing(ModelInput=Thing(from_ints=list), SamplingParams=dict)
"""
POLICY = """
[policy]
backend = "{backend}"
base_url = "{url}"
base_model = "tiny"
tokenizer = "{tokenizer}"
"""
CORE_ONLY = """
import importlib.metadata as metadata
found = metadata.entry_points
metadata.entry_points = lambda **wanted: [one for one in found(**wanted) if one.dist.name == "metaclaw-proxy"]
"""


def install(folder: Path, group: str, **entries: str) -> None:
    """A distribution with these entry points, of modules in the folder."""
    name = f"plugin_{group.replace('.', '_')}"
    dist = folder / f"{name}-1.0.dist-info"
    dist.mkdir()
    (dist / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "".join(f"{key} = {value}\n" for key, value in entries.items())
    (dist / "entry_points.txt").write_text(f"[{group}]\n{lines}")


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A folder on the path of Python with the plugins of the page installed in it."""
    folder = tmp_path / "installed"
    folder.mkdir()
    for group, entries in tomllib.loads(BLOCKS["pyproject.toml"])["project"][
        "entry-points"
    ].items():
        install(folder, group, **entries)
    for name, text in BLOCKS.items():
        if name.endswith(".py"):
            assert text.count("\n") <= 40
            (folder / name).write_text(text)
    return folder


@pytest.fixture
def provider() -> Iterator[Provider]:
    running = Provider().start()
    yield running
    running.stop()


def beside(folder: Path, home: Path, *command: str) -> Done:
    """Run the program with what is in the folder."""
    env = {**os.environ, "METACLAW_HOME": str(home), "PYTHONPATH": str(folder), "HOME": str(home)}
    return program(*command, env=env)


def configured(home: Path, text: str) -> None:
    home.mkdir()
    (home / "config.toml").write_text(text)


def test_the_calendar_of_the_page_is_read(examples: Path, home: Path, tmp_path: Path) -> None:
    shifts = tmp_path / "shifts.txt"
    shifts.write_text("2026-03-04 13:00 14:00 lunch\n")
    configured(home, BLOCKS["config.toml"].replace("/home/me/shifts.txt", str(shifts)))
    assert beside(examples, home, "config", "check").code == 0
    assert re.search(r"calendar 1 \(shifts\).*it can be read", beside(examples, home, "doctor").out)
    shifts.write_text("tomorrow\n")
    assert f"{shifts} cannot be read" in beside(examples, home, "doctor").out


def policy_of(backend: str, provider: Provider, folder: Path) -> str:
    (folder / "tokenizer").mkdir()
    tiny.make_tokenizer(folder / "tokenizer")
    policy = POLICY.format(backend=backend, url=provider.url, tokenizer=folder / "tokenizer")
    return providers_toml(provider.url) + policy


def ask(running: Program, model: str) -> str:
    reply = httpx.post(
        f"{running.url}/v1/chat/completions",
        json={"model": model, "messages": [{"role": "user", "content": "Who are you?"}]},
        headers=running.auth,
        timeout=60,
    )
    return str(reply.json()["choices"][0]["message"]["content"])


def test_the_training_service_of_the_page_answers_requests(
    examples: Path, provider: Provider, tmp_path: Path
) -> None:
    config = policy_of("skyrl", provider, tmp_path)
    said = [*Vocabulary(tmp_path / "tokenizer").encode("Said by the service."), tiny.END]
    sdk = examples / "tinker" / "lib"
    sdk.mkdir(parents=True)
    (sdk.parent / "__init__.py").write_text(f"TOKENS = {said}\n{TINKER}")
    (sdk / "retryable_exception.py").write_text("class RetryableException(Exception): ...\n")
    env = {**NOT_LEARNING, "PYTHONPATH": str(examples)}
    running = Program(tmp_path / "home", config, env=env).start()
    try:
        assert ask(running, "tiny") == "Said by the service."
        assert provider.requests == []
    finally:
        assert running.stop() == 0, running.log.read_text()[-4000:]


class Shelf(FakeServer):
    """The server that the page's example is for."""

    def answer(self, path: str, body: Body) -> tuple[int, str]:
        name = body["lora_name"]
        if path == "/adapters/add":
            if name in self.adapters:
                return 400, "exists"
            self.adapters[name] = body["lora_path"]
            return 200, ""
        return (200, "") if self.adapters.pop(name, None) else (400, "unknown")


@pytest.mark.anyio
async def test_the_server_of_the_page_loads_versions(
    examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(examples)
    server = Shelf({"policy-000002": "/of/an/earlier/start"})
    endpoint = HttpEndpoint("shelf", "openai", f"{server.url}/v1", api_key="key")
    settings = HostSettings(
        endpoint.at_root(), "qwen", frozenset, lambda: pytest.fail("not needed")
    )
    try:
        served = cast(ModelHost, call_plugin(MODEL_HOSTS, "shelf", settings))
        await served.host.load(2, Weights("embedded", str(tmp_path)))
        assert server.adapters == {"policy-000002": str(tmp_path)}
        assert served.model_of is not None
        assert served.model_of(2) == "policy-000002"
        await served.host.unload(2)
        assert server.adapters == {}
    finally:
        await endpoint.aclose()
        server.stop()


def test_the_agent_of_the_page_is_connected_and_disconnected(examples: Path, home: Path) -> None:
    configured(home, '[proxy]\napi_key = "mc-key"\n')
    connected = beside(examples, home, "agents", "connect", "pilot", "--yes", "--model", "m")
    assert connected.code == 0, connected.err
    assert '"model": "m"' in (home / ".pilot" / "settings.json").read_text()
    assert "pilot" in beside(examples, home, "agents", "list").out
    assert beside(examples, home, "agents", "disconnect", "pilot", "--yes").code == 0
    assert not (home / ".pilot").exists()


def test_a_plugin_that_cannot_be_loaded_is_named_and_the_program_serves(
    provider: Provider, tmp_path: Path
) -> None:
    folder = tmp_path / "installed"
    folder.mkdir()
    install(folder, "metaclaw.training_services", broken="broken:connect")
    install(folder, "metaclaw.agents", broken="broken:AGENT")
    (folder / "broken.py").write_text("1 / 0\n")
    env = {**NOT_LEARNING, "PYTHONPATH": str(folder)}
    running = Program(tmp_path / "home", policy_of("broken", provider, tmp_path), env=env).start()
    named = "the plugin plugin_metaclaw_training_services cannot be loaded (division by zero)"
    try:
        assert ask(running, "echo").startswith("echo: Who are you?")
        assert named in " ".join(running.command("status").stdout.split())
        assert named in running.command("config", "check").stderr
        assert named in " ".join(running.command("doctor").stdout.split())
        listed = running.command("agents", "list")
        assert (listed.returncode, "claude-code" in listed.stdout) == (0, True)
        assert "the plugin plugin_metaclaw_agents cannot be loaded" in listed.stderr
    finally:
        assert running.stop() == 0, running.log.read_text()[-4000:]


def test_what_is_not_installed_is_named_with_what_to_install(home: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(CORE_ONLY)
    tables = {
        'kind = "google"\nclient_id = "id"\nclient_secret = "s"': (
            "metaclaw-google-calendar is not installed; in MetaClaw's repository run: pip install"
            " ./plugins/google_calendar"
        ),
        'kind = "caldav"\nurl = "https://example.org/"': "pip install ./plugins/caldav",
        'kind = "outlook"': (
            "no installed plugin has the name 'outlook'; known are caldav, google, ics"
        ),
    }
    configured(home, "".join(f"[[schedule.calendars]]\n{table}\n" for table in tables))
    checked, examined = beside(tmp_path, home, "config", "check"), beside(tmp_path, home, "doctor")
    assert checked.code == 2
    assert "config.toml:2: schedule.calendars.0.kind is ignored: metaclaw-google" in checked.err
    for words in tables.values():
        assert words in checked.err
        assert words in " ".join(examined.out.split())
    (home / "config.toml").write_text("[policy]\nbackend = 'weaver'\nserve = 'sglang'\n")
    refused = beside(tmp_path, home, "start")
    assert refused.code == 2
    assert (
        "config.toml:2: policy.backend cannot be used: metaclaw-weaver is not installed; in"
        " MetaClaw's repository run: pip install ./plugins/weaver\n"
    ) in refused.err
    assert "policy.serve cannot be used: metaclaw-sglang is not installed" in refused.err
    agent = beside(tmp_path, home, "agents", "connect", "zeroclaw")
    assert (agent.code, "pip install ./plugins/more_agents" in agent.err) == (1, True)


def test_an_sdk_that_is_not_installed_is_named(provider: Provider, tmp_path: Path) -> None:
    env = {**NOT_LEARNING, "PYTHONPATH": str(Path(__file__).parent / "support" / "hidden")}
    env["HIDDEN_PACKAGES"] = "tinker"
    running = Program(tmp_path / "home", policy_of("tinker", provider, tmp_path), env=env).start()
    try:
        status = " ".join(running.command("status").stdout.split())
        assert "training is in trouble: off: the plugin metaclaw-tinker failed" in status
        assert "pip install 'metaclaw-tinker[sdk]'" in status
    finally:
        assert running.stop() == 0
