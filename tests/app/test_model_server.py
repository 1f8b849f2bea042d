"""The server of a model as a child: started, watched, started again, and ended with the proxy. The
server here is a few lines of Python that know nothing but `/health`."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import pytest

from metaclaw.app.model_server import ModelServer, ModelServerError, with_model_server
from metaclaw.cli.lifecycle import settings_of_model
from metaclaw.config import build
from metaclaw.errors import ConfigError
from metaclaw.learn import Supervisor
from metaclaw.upstream import HttpEndpoint
from tests.support.ports import free_port
from tests.support.program import Program

pytestmark = pytest.mark.anyio

HEALTHY = """
import os, pathlib, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.send_header("content-length", "0")
        self.end_headers()
pathlib.Path(sys.argv[2]).write_text(str(os.getpid()))
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
WITHIN_S = 20.0


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not is_so():
            await anyio.sleep(0.02)


def pid_in(path: Path) -> int:
    return int(path.read_text()) if path.exists() and path.read_text() else 0


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A killed child of a killed process is a zombie until somebody reaps it.
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


class Healthy:
    """A server, and the endpoint that asks it."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.pid_file = folder / "pid"
        command = (sys.executable, "-c", HEALTHY, str(port), str(self.pid_file))
        self.server = ModelServer("vllm", "tiny", command, {}, folder / "vllm.log")
        self.endpoint = HttpEndpoint("vllm", "openai", f"http://127.0.0.1:{port}/v1")

    async def run(self) -> None:
        await self.server.run(self.endpoint)


@pytest.fixture
async def healthy(tmp_path: Path) -> AsyncIterator[Healthy]:
    found = Healthy(tmp_path)
    yield found
    await found.endpoint.aclose()


async def test_a_server_that_dies_is_started_again_and_ends_with_the_program(
    healthy: Healthy,
) -> None:
    second = 0
    async with anyio.create_task_group() as group:
        supervisor = Supervisor(group)
        supervisor.run("model server", healthy.run)
        assert "vllm is starting" in (healthy.server.unready or "")
        await until(lambda: healthy.server.state == "ready")
        assert not healthy.server.unready
        first = pid_in(healthy.pid_file)
        os.kill(first, signal.SIGKILL)
        await until(lambda: "ended with status" in supervisor.states["model server"])
        await until(lambda: healthy.server.state == "ready")
        second = pid_in(healthy.pid_file)
        assert second != first
        group.cancel_scope.cancel()
    assert not lives(second)


async def test_a_command_that_cannot_run_is_told_with_its_log(tmp_path: Path) -> None:
    server = ModelServer("vllm", "tiny", ("/nowhere/vllm",), {}, tmp_path / "vllm.log")
    endpoint = HttpEndpoint("vllm", "openai", "http://127.0.0.1:1/v1")
    with pytest.raises(ModelServerError, match=r"vllm ended with status 1; its log is .*vllm\.log"):
        await server.run(endpoint)
    assert "/nowhere/vllm" in (tmp_path / "vllm.log").read_text()
    await endpoint.aclose()


def model_folder(home: Path) -> Path:
    folder = home / "models" / "tiny"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_without_a_provider_the_server_of_serve_becomes_one_on_a_port_of_this_machine(
    tmp_path: Path,
) -> None:
    folder = model_folder(tmp_path)
    command = ["my-vllm", "{model}", "--port", "{port}", "--rank", "{rank}", "--name", "{name}"]
    policy = {"serve": "vllm", "base_model": str(folder), "serve_command": command, "lora_rank": 12}
    config, server = with_model_server(build({"policy": policy}, tmp_path), tmp_path)
    assert server is not None
    assert config.policy is not None
    [provider] = config.providers
    assert (provider.name, provider.models, config.policy.provider) == ("vllm", ("tiny",), "vllm")
    assert provider.base_url is not None
    port = provider.base_url.split(":")[2].split("/")[0]
    assert server.command == [
        "my-vllm",
        str(folder),
        "--port",
        port,
        "--rank",
        "16",
        "--name",
        "tiny",
    ]
    assert provider.api_key is not None
    assert server.environment["VLLM_API_KEY"] == provider.api_key.resolve()
    plain = build({"policy": {}}, tmp_path)
    assert with_model_server(plain, tmp_path) == (plain, None)


def test_what_is_missing_is_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    policy: dict[str, object] = {"serve": "vllm", "base_model": str(tmp_path / "none")}
    with pytest.raises(ConfigError, match=r"no Hugging Face folder at .*Start once with --set"):
        with_model_server(build({"policy": policy}, tmp_path), tmp_path)
    policy["base_model"] = str(model_folder(tmp_path))
    with pytest.raises(ConfigError, match=r"vllm is not installed here.*pip install vllm"):
        with_model_server(build({"policy": policy}, tmp_path), tmp_path)


def test_start_with_a_model_serves_it_by_vllm_where_that_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model_folder(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    wanted = [f"policy.base_model={folder}", "policy.mode=skills_only"]
    assert settings_of_model(tmp_path, "tiny", None, []) == wanted
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert settings_of_model(tmp_path, str(folder), None, []) == [*wanted, "policy.serve=vllm"]
    assert settings_of_model(tmp_path, "tiny", "auto", []) == [wanted[0], "policy.serve=vllm"]
    assert settings_of_model(tmp_path, None, None, []) == []


@pytest.mark.slow
def test_a_program_that_is_killed_leaves_no_server_behind(tmp_path: Path) -> None:
    """And one that runs tells of it in its status."""
    home, pid_file = tmp_path / "home", tmp_path / "pid"
    folder = model_folder(home)
    script = tmp_path / "server.py"
    script.write_text(HEALTHY)
    command = [sys.executable, str(script), "{port}", str(pid_file)]
    policy = f'mode = "skills_only"\nserve = "vllm"\nbase_model = "{folder}"'
    config = f"[policy]\n{policy}\nserve_command = {command}\n"
    program = Program(home, config).start()
    anyio.run(until, lambda: program.get("/api/status")["server"]["state"] == "ready")
    assert program.get("/api/status")["server"] == {"name": "vllm", "state": "ready"}
    pid = pid_in(pid_file)
    program.kill()
    anyio.run(until, lambda: not lives(pid))
    program.start()
    anyio.run(until, lambda: program.get("/api/status")["server"]["state"] == "ready")
    again = pid_in(pid_file)
    assert program.stop() == 0
    assert not lives(again)
