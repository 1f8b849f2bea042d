"""`metaclaw watch`: print one line for each lesson as it happens, also across restarts of the
proxy.
"""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from metaclaw.cli.client import (
    ApiClient,
    NotListeningError,
    NotRunningError,
    UnreachableError,
    at,
    connect,
    expect,
    parsed,
    rows,
    segment,
)
from metaclaw.cli.output import agent_name, plain
from metaclaw.domain.status import KEEP_RULES, outcome_word, reason_words

if TYPE_CHECKING:
    from metaclaw.domain.chat import Json

# The proxy sends a comment at least every 15 seconds.
_SILENCE_S = 60.0
_RETRY_S = 0.5
_TEXTS_SHOWN = 3
_MOST_TEXT = 200
_SPOKEN = re.compile(
    r"(?:noted|replaced|retracted|unconfirmed|example) [a-z0-9-]+(?:, [a-z0-9-]+)*"
)


_GOT = {
    "complied": "; then it sent other calls, which follow it",
    "words": "; then it answered in words, without calls",
    "stopped": "; the answer ended with a text",
    "warned": "; it passed with a warning",
}


@dataclass(frozen=True, slots=True)
class StreamedEvent:
    """One event of the proxy; `cursor` resumes the stream behind it."""

    cursor: str
    kind: str
    data: "dict[str, Json]"


@click.command()
@click.option(
    "--since",
    metavar="CURSOR",
    default="now",
    help="Begin behind this cursor, 0 for everything so far [now].",
)
@click.option("--all", "show_all", is_flag=True, help="Show every event, not only lessons.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print every event as one line of JSON, with its cursor.",
)
@click.pass_obj
def watch(home: Path, since: str, show_all: bool, as_json: bool) -> None:
    """Print one line for each lesson as it happens: rules noted, changed and taken back, skills
    learned and retired.

    Goes on when the proxy is restarted, and misses nothing in between. End it with Ctrl-C.
    """
    if since != "now" and not since.isdecimal():
        raise click.UsageError(f"--since is {since!r}: give the cursor of an event, or 0")
    for api, event in _follow(home, since):
        if as_json:
            click.echo(json.dumps({"cursor": int(event.cursor), "event": event.kind, **event.data}))
        elif (line := _line(api, event, show_all=show_all)) is not None:
            click.echo(f"{_clock(event)}  {line}")


def _follow(home: Path, cursor: str) -> Iterator[tuple[ApiClient, StreamedEvent]]:
    """Yield events behind the cursor for ever. Raises NotRunningError only if no proxy runs at the
    beginning.
    """
    _, api = connect(home)
    is_waiting = False
    while True:
        try:
            for event in _events(api, cursor):
                is_waiting, cursor = False, event.cursor or cursor
                if event.kind:
                    yield api, event
        except UnreachableError:
            pass
        if not is_waiting:
            click.echo("The proxy has stopped; waiting until it runs again.", err=True)
            is_waiting = True
        time.sleep(_RETRY_S)
        try:
            _, api = connect(home)
        except (NotRunningError, NotListeningError):
            continue


def _events(api: ApiClient, cursor: str) -> Iterator[StreamedEvent]:
    """The events of one connection until it ends. The first has no kind, only the cursor at which
    the stream begins.
    """
    with api.stream("GET", f"/api/events?after={cursor}", timeout_s=_SILENCE_S) as reply:
        if reply.status != 200:
            expect(reply.status, parsed(reply.read()))
        fields: dict[str, str] = {}
        while line := reply.readline():
            text = line.decode("utf-8", "replace").rstrip("\n")
            if text.startswith(": from "):
                yield StreamedEvent(text.removeprefix(": from "), "", {})
            elif text and not text.startswith(":"):
                name, _, value = text.partition(": ")
                fields[name] = value
            elif fields:
                data = parsed(fields.get("data", "").encode())
                yield StreamedEvent(
                    fields.get("id", cursor),
                    fields.get("event", ""),
                    data if isinstance(data, dict) else {},
                )
                fields = {}


def _line(api: ApiClient, event: StreamedEvent, *, show_all: bool) -> str | None:
    data = event.data
    match event.kind:
        case "generation":
            # Rules that a user stated to an agent have a separate event with their text.
            return (
                None
                if _SPOKEN.fullmatch(str(data.get("reason"))) and not show_all
                else _generation(api, data)
            )
        case "noted" | "replaced" | "retracted":
            instead = (
                f" (in place of {plain(', '.join(map(str, rows(data.get('replaces')))))})"
                if data.get("replaces")
                else ""
            )
            which = f"{plain(data.get('kind'))} {plain(data.get('name'))}"
            return (
                f"{event.kind} the {which}{instead}: {_short(data.get('text'))}{_everywhere(data)}"
            )
        case "example":
            return (
                f"{plain(data.get('name'))} was not found for a task it is for; the task is an"
                " example of it now"
            )
        case "notice":
            about = f" about {plain(data.get('skill'))}" if data.get("skill") else ""
            return f"notice{about}: {plain(data.get('text'))}"
        case "rule_held":
            return held_line(data)
        case "check_failed":
            came = (
                "but the call was held for another rule"
                if data.get("held")
                else "so the call passed"
            )
            return (
                f"the check of {plain(data.get('rule'))} could not be run, {came}:"
                f" {_short(data.get('reason'))}"
            )
        case "rules_not_held":
            which = ", ".join(map(plain, rows(data.get("rules"))))
            return (
                f"could not hold calls of {agent_name(data.get('agent'))} to {which}:"
                f" {plain(data.get('reason'))}"
            )
        case "rule_broken":
            which, turn = plain(data.get("rule")), plain(data.get("turn"))
            times = f", {plain(data.get('times'))} times so far" if data.get("times") != 1 else ""
            return f"{agent_name(data.get('agent'))} broke the rule {which} in turn {turn}{times}"
        case "feedback":
            return (
                f"you said of {plain(data.get('turn'))} that it was"
                f" {plain(outcome_word(data.get('outcome')))}"
            )
        case "forgotten":
            return f"forgot the session {plain(data.get('session'))} and what it taught"
        case "policy":
            version, action = plain(data.get("version")), data.get("action")
            if action == "published":
                return f"weights: version {version} is trained and is tested now"
            return f"weights: version {version} {plain(action)} ({plain(data.get('reason'))})"
        case "batch.dropped":
            turns, reason = plain(data.get("turns")), plain(data.get("reason"))
            return (
                f"weights: a training run of {turns} turns was given up ({reason}); turns that are"
                " not too old may train again"
            )
        case _ if show_all:
            fields = ", ".join(
                f"{name} {plain(value)}" for name, value in data.items() if name != "at"
            )
            return f"{plain(event.kind)}: {fields}"
        case _:
            return None


def held_line(data: "dict[str, Json]") -> str:
    """The event `rule_held` in words: which call was held, and what the client got."""
    end = (
        "words" if data.get("end") == "complied" and not data.get("calls") else str(data.get("end"))
    )
    times, rule = plain(data.get("attempts")), plain(data.get("rule"))
    lift = (
        ""
        if data.get("rule") == KEEP_RULES
        else f". To lift it: metaclaw rules edit {rule} --enforce remind"
    )
    broken = f"breaks {rule} ({times} of its tries)"
    what = broken if data.get("attempts") else f"could not be checked against {rule}"
    return f"held a call of {agent_name(data.get('agent'))} that {what}{_GOT.get(end, '')}{lift}"


def _everywhere(data: "dict[str, Json]") -> str:
    """The advice for a rule that was stated for an unknown project."""
    if data.get("project") is None:
        return ""
    return (
        " (in all projects: it is not known which one was meant; metaclaw rules edit"
        f" {plain(data.get('name'))} --project FOLDER)"
    )


def _generation(api: ApiClient, data: "dict[str, Json]") -> str:
    """The reason of a generation, and the texts of the rules that came into force."""
    texts: list[str] = []
    for name in rows(data.get("put"))[:_TEXTS_SHOWN]:
        status, found = api.get(f"/api/rules/{segment(str(name))}")
        if status == 200:
            texts.append(_short(at(found, "text")))
    return plain(reason_words(data.get("reason"))) + (f": {' / '.join(texts)}" if texts else "")


def _short(text: "Json") -> str:
    return plain(" ".join(str(text).split())[:_MOST_TEXT])


def _clock(event: StreamedEvent) -> str:
    try:
        return datetime.fromisoformat(str(event.data.get("at"))).astimezone().strftime("%H:%M:%S")
    except ValueError:
        return "--:--:--"
