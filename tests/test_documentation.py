"""README and docs: links lead somewhere, every `metaclaw` command exists with its options, agent
pages show what is written.
"""

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import click

from metaclaw.agents import Agent, Endpoint, known_agents
from metaclaw.agents.connection import applied
from metaclaw.cli.root import root
from tests.support.cases import each

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "benchmarks" / "README.md",
]
BY_HAND = [page for page in PAGES if page.name != "cli.md" and "decisions" not in page.parts]
ENDPOINT = Endpoint(
    "http://127.0.0.1:30000", "<key>", "gpt-5.1", frozenset({"openai", "anthropic"})
)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


@each("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        assert place.exists(), f"{name_of(page)} links to {target}, which does not exist"
        assert not anchor or anchor in anchors(place), (
            f"{name_of(page)} links to {target}, which has no such heading"
        )


def commands(page: Path) -> Iterator[str]:
    """The `metaclaw` commands of a page: lines of shell blocks and inline code."""
    text = page.read_text()
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if language not in ("console", "sh", ""):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            if found := re.match(r"(?:\$ )?(?:\.venv/bin/)?(metaclaw\s.*)", line):
                yield found[1]
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    yield from re.findall(r"`(metaclaw [^`]+)`", prose)


def lacking(line: str) -> str:
    """What the command line has not: the command or option that does not exist; empty if all do."""
    words = list(
        takewhile(
            lambda word: word not in ("#", "|", "&&", ">", "…"),
            shlex.split(line, comments=True)[1:],
        )
    )
    command: click.Command = root
    while words and isinstance(command, click.Group) and re.fullmatch("[a-z][a-z-]*", words[0]):
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            return words[0]
        command, words = found, words[1:]
    known = {
        option
        for parameter in (*root.params, *command.params)
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    given = [word.partition("=")[0] for word in words if word.startswith("--")]
    return next((option for option in given if option not in known and option != "--help"), "")


@each("page", BY_HAND, ids=name_of)
def test_commands_exist(page: Path) -> None:
    wrong = [
        (line, missing) for line in commands(page) if "|" not in line and (missing := lacking(line))
    ]
    assert not wrong


def test_commands_that_do_not_exist_are_found() -> None:
    assert lacking("metaclaw sessions forget --last --yes   # gone") == ""
    assert lacking("metaclaw sessions vanish") == "vanish"
    assert lacking("metaclaw sessions forget --never") == "--never"


@each("agent", [one for one in known_agents()[0] if one.name != "env"], ids=lambda one: one.name)
def test_the_page_of_an_agent_says_what_connect_writes(agent: Agent) -> None:
    page = (ROOT / "docs" / "agents" / f"{agent.name}.md").read_text()
    overview = (ROOT / "docs" / "agents.md").read_text()
    assert f"(agents/{agent.name}.md)" in overview
    assert agent.tried is None or (
        f"version {agent.tried}." in page and f"| {agent.tried} |" in overview
    )
    if agent.file is None or agent.text is None:
        written = "\n".join(agent.steps(ENDPOINT))
    else:
        written = applied(
            agent.file({"HOME": "/home/me"}), agent.text, "", agent.settings(ENDPOINT)
        )[0]
    assert f"\n{written.strip()}\n```" in page
