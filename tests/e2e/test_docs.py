"""Every `console` block of the documentation, run on the real program in front of a scripted provider."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.program import NOT_LEARNING, Program, providers_toml
from tests.support.provider import Provider

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = {
    str(page.relative_to(ROOT)): [
        line.removeprefix("$ ") for block in found for line in block.splitlines() if line.startswith("$ ")
    ]
    for page in PAGES
    if (found := re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL))
}


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    provider = Provider().start()
    env = {**NOT_LEARNING, "HOME": str(tmp_path / "user")}  # agents keep their configuration there
    running = Program(tmp_path / "home", providers_toml(provider.url), env=env).start()
    asked = {"model": "gpt", "messages": [{"role": "user", "content": "When was that?"}]}
    answer = httpx.post(f"{running.url}/v1/chat/completions", json=asked, headers=running.auth, timeout=60)
    assert answer.status_code == 200
    (running.home / "logs").mkdir(exist_ok=True)
    (running.home / "logs" / "metaclaw.log").touch()
    yield running
    assert running.stop() == 0
    provider.stop()


def test_there_are_pages_with_commands() -> None:
    assert {"docs/quickstart.md", "docs/operate.md", "docs/privacy.md", "docs/agents/codex.md"} <= COMMANDS.keys()


@pytest.mark.parametrize("page", COMMANDS)
def test_the_commands_of_a_page_work(page: str, program: Program) -> None:
    for line in COMMANDS[page]:
        name, *words = shlex.split(line)
        assert name == "metaclaw"
        done = program.command(*words)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
