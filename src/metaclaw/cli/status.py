"""`metaclaw status`: show the state of the running proxy."""

from collections.abc import Iterator
from pathlib import Path

import click

from metaclaw.cli.candidates import question_lines
from metaclaw.cli.client import Facts, connect, read
from metaclaw.cli.output import (
    CommandOutput,
    answers,
    counted,
    duration,
    fact_lines,
    sentence,
    short,
    wants_json,
)
from metaclaw.instance import Running, find

_MOST_TEXT = 80
_MOST_ASKED = 5


@click.command()
@click.option(
    "--all", "show_all", is_flag=True, help="Show everything, not only the most important lines."
)
@answers
def status(home: Path, show_all: bool) -> CommandOutput:
    """Show the state of the running proxy: first problems and decisions that wait for you, then
    what it serves and learns.
    """
    if wants_json() and find(home) is None:
        start = "metaclaw start --detach"
        return CommandOutput({"running": False, "home": str(home), "start_with": start}, (), 1)
    running, api = connect(home)
    facts = api.call("GET", "/api/status")
    own = {"running": True, "pid": running.pid, "url": running.url, "home": str(home)}
    asked: list[Facts] = []
    if (facts["counts"]["candidates"] or {}).get("waiting"):
        found = read(home, "/api/candidates", standing="waiting", limit=_MOST_ASKED)
        asked = found["candidates"]
    output = {**own, **facts, "asked": asked}
    return CommandOutput(output, _lines(running, output, show_all=show_all))


def _lines(running: Running, facts: Facts, *, show_all: bool) -> Iterator[str]:
    state = "serves, degraded," if facts["degraded"] else "serves"
    yield f"MetaClaw {facts['version']} {state} at {running.url} (pid {running.pid})"
    asked = [*_decisions(facts)]
    for one in facts["problems"]:
        yield from sentence(f"! {problem_words(one)}", is_bold=True)
    yield from asked
    if not (facts["problems"] or asked):
        yield "No problems, and nothing waits for you."
    shown = [one for one in facts["summary"] if show_all or one["is_brief"]]
    mode = f"{facts['mode']}, running for {duration(facts['uptime_s'])}"
    shown_facts = [("mode", mode), *((one["label"], one["text"]) for one in shown)]
    if workers := facts.get("workers"):
        shown_facts.append(("workers", _workers_in_words(workers)))
    yield from fact_lines(shown_facts)
    if not show_all:
        yield "More: metaclaw status --all"


def _workers_in_words(workers: Facts) -> str:
    pids = [f"{one['pid']}{' (learns)' if one['leads'] else ''}" for one in workers["processes"]]
    again = f"; {workers['restarted']} ended and were started again" if workers["restarted"] else ""
    return f"{', '.join(pids)}{again}"


def problem_words(problem: Facts) -> str:
    """A problem in one line."""
    since = f" (at {problem['at']})" if problem["at"] else ""
    do = f". {problem['do']}" if problem["do"] else ""
    return f"{problem['what']}: {problem['why']}{since}{do}"


def _decisions(facts: Facts) -> Iterator[str]:
    """What waits for the person, and how to decide it."""
    for one in facts["asked"]:
        yield from question_lines(one)
    if (more := (facts["counts"]["candidates"] or {}).get("waiting", 0)) > len(facts["asked"]):
        listed = "metaclaw candidates list --standing waiting"
        yield f"! {counted(more - len(facts['asked']), 'further question')}: {listed}"
    for one in facts["questions"] or ():
        if one["candidate"] is not None:
            continue  # it is among those asked
        asked = f"! rule {one['name']} ({short(one['text'], _MOST_TEXT)}):"
        yield from sentence(asked, is_bold=True)
        yield from sentence(f"    {one['question']}", indent="    ")
