"""The commands in README and docs, run on the real program in front of a scripted provider."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.cases import each
from tests.support.program import NOT_LEARNING, Program, providers_toml
from tests.support.provider import Provider

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOT_RUN = re.compile(
    r"metaclaw (?:"
    # ask, or need the agent: tests/cli/test_agents.py
    r"setup|agents (?:connect|disconnect|test) claude-code$"
    r"|watch|start|stop|service|demo"  # follow for ever, or start and stop programs: tests/cli
    r"|rules (?:import|export --to)"  # read and write files of yours: tests/cli/test_rules.py
    r"|policy"  # needs weights that can be trained: tests/e2e/test_slow_loop.py
    r"|bench)"  # a distribution of its own
)
_PLACEHOLDER = re.compile(r"\b[A-Z]{2,}\b")


def commands_of(text: str) -> list[str]:
    """The commands in shell blocks that can be run as they stand: without words such as SESSION
    that stand for something.
    """
    fences = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    blocks = [block for language, block in fences if language in ("console", "sh", "")]
    lines = [
        " ".join(shlex.split(line.removeprefix("$ "), comments=True, posix=False))
        for block in blocks
        for line in block.splitlines()
        if line.removeprefix("$ ").startswith("metaclaw ") and not line.endswith("\\")
    ]
    return [
        line
        for line in lines
        if not NOT_RUN.match(line) and not any(map(_PLACEHOLDER.fullmatch, line.split()))
    ]


COMMANDS = {
    str(page.relative_to(ROOT)): found
    for page in PAGES
    if page.name != "cli.md" and (found := commands_of(page.read_text()))
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("docs")
    provider = Provider().start()
    env = {**NOT_LEARNING, "HOME": str(folder / "user")}  # agents keep their configuration there
    running = Program(folder / "home", providers_toml(provider.url), env=env).start()
    (running.home / "logs").mkdir(exist_ok=True)
    (running.home / "logs" / "metaclaw.log").touch()
    yield running
    assert running.stop() == 0
    provider.stop()


def test_there_are_pages_with_commands() -> None:
    assert {
        "docs/quickstart.md",
        "docs/operate.md",
        "docs/privacy.md",
        "docs/agents/codex.md",
    } <= COMMANDS.keys()


@each("page", COMMANDS)
def test_the_commands_of_a_page_work(page: str, program: Program) -> None:
    # Something to look at, and something to take back.
    asked = {"model": "gpt", "messages": [{"role": "user", "content": "When was that?"}]}
    answer = httpx.post(
        f"{program.url}/v1/chat/completions", json=asked, headers=program.auth, timeout=60
    )
    assert answer.status_code == 200
    rule = httpx.post(
        f"{program.url}/api/rules", json={"text": f"Be brief in {page}."}, headers=program.auth
    )
    assert rule.status_code == 200, rule.text
    for line in COMMANDS[page]:
        name, *words = shlex.split(line)
        assert name == "metaclaw"
        done = program.command(*words)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
