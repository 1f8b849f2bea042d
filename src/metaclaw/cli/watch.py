"""`metaclaw watch`: print one line for each lesson as it happens, also across restarts of the
proxy.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import click

from metaclaw.cli.client import (
    ApiClient,
    Facts,
    NotListeningError,
    NotRunningError,
    UnreachableError,
    connect,
    expect,
    parsed,
    segment,
)
from metaclaw.cli.output import echo
from metaclaw.domain.status import KEEP_RULES, agent_word, outcome_word, reason_words

# The proxy sends a comment at least every 15 seconds.
_SILENCE_S = 60.0
_RETRY_S = 0.5
_TEXTS_SHOWN = 3
_MOST_TEXT = 200
_SPOKEN = re.compile(
    r"(?:noted|replaced|retracted|unconfirmed|reworded|example) [a-z0-9-]+(?:, [a-z0-9-]+)*"
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
    data: Facts


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
    """Print one line for each lesson as it happens, also across restarts of the proxy. End it with
    Ctrl-C.
    """
    if since != "now" and not since.isdecimal():
        raise click.UsageError(f"--since is {since!r}: give the cursor of an event, or 0")
    for api, event in follow_events(home, since):
        if as_json:
            click.echo(json.dumps({"cursor": int(event.cursor), "event": event.kind, **event.data}))
        elif (line := _line(api, event, show_all=show_all)) is not None:
            echo(f"{_clock(event)}  {line}")


def follow_events(home: Path, cursor: str) -> Iterator[tuple[ApiClient, StreamedEvent]]:
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
                data = parsed(fields["data"].encode(), api)
                yield StreamedEvent(fields["id"], fields["event"], data)
                fields = {}


def _line(api: ApiClient, event: StreamedEvent, *, show_all: bool) -> str | None:
    data = event.data
    if event.kind == "generation":
        # Rules that a user stated to an agent have a separate event with their text.
        is_told = _SPOKEN.fullmatch(data["reason"]) and not show_all
        return None if is_told else _generation(api, data)
    if (told := _LINES.get(event.kind)) is not None:
        return told(data)
    if not show_all:
        return None
    fields = ", ".join(f"{name} {value}" for name, value in data.items() if name != "at")
    return f"{event.kind}: {fields}"


def _noted_line(done: str) -> Callable[[Facts], str]:
    def line(data: Facts) -> str:
        replaced = ", ".join(data.get("replaces") or ())
        instead = f" (in place of {replaced})" if replaced else ""
        words = f"{done} the {data['kind']} {data['name']}{instead}: {_short(data['text'])}"
        if data.get("project") is None:
            return words
        return (
            f"{words} (in all projects: it is not known which one was meant; metaclaw rules edit"
            f" {data['name']} --project FOLDER)"
        )

    return line


def _notice_line(data: Facts) -> str:
    about = f" about {data['skill']}" if data.get("skill") else ""
    return f"notice{about}: {data['text']}"


def _broken_line(data: Facts) -> str:
    times = f", {data['times']} times so far" if data["times"] != 1 else ""
    return (
        f"{agent_word(data['agent'])} broke the rule {data['rule']} in turn {data['turn']}{times}"
    )


def _check_failed_line(data: Facts) -> str:
    held, passed = "but the call was held for another rule", "so the call passed"
    came = held if data.get("held") else passed
    return f"the check of {data['rule']} could not be run, {came}: {_short(data['reason'])}"


def _policy_line(data: Facts) -> str:
    if data["action"] == "published":
        return f"weights: version {data['version']} is trained and is tested now"
    return f"weights: version {data['version']} {data['action']} ({data.get('reason')})"


def held_line(data: Facts) -> str:
    """The event `rule_held` in words: which call was held, and what the client got."""
    is_wordy = data["end"] == "complied" and not data.get("calls")
    rule, times = data["rule"], data["attempts"]
    lift = f". To lift it: metaclaw rules edit {rule} --enforce remind"
    what = f"breaks {rule} ({times} of its tries)"
    return (
        f"held a call of {agent_word(data['agent'])} that"
        f" {what if times else f'could not be checked against {rule}'}"
        f"{_GOT.get('words' if is_wordy else data['end'], '')}{'' if rule == KEEP_RULES else lift}"
    )


_LINES: Mapping[str, Callable[[Facts], str]] = {
    **{done: _noted_line(done) for done in ("noted", "replaced", "retracted")},
    "example": lambda data: (
        f"{data['name']} was not found for a task it is for; the task is an example of it now"
    ),
    "notice": _notice_line,
    "rule_held": held_line,
    "check_failed": _check_failed_line,
    "rules_not_held": lambda data: (
        f"could not hold calls of {agent_word(data['agent'])} to {', '.join(data['rules'])}:"
        f" {data['reason']}"
    ),
    "rule_broken": _broken_line,
    "feedback": lambda data: (
        f"you said of {data['turn']} that it was {outcome_word(data['outcome'])}"
    ),
    "forgotten": lambda data: f"forgot the session {data['session']} and what it taught",
    "policy": _policy_line,
    "batch.dropped": lambda data: (
        f"weights: a training run of {data['turns']} turns was given up ({data['reason']}); turns"
        " that are not too old may train again"
    ),
}
"""The events that are lessons, in words."""


def _generation(api: ApiClient, data: Facts) -> str:
    """The reason of a generation, and the texts of the rules that came into force."""
    texts: list[str] = []
    for name in (data.get("put") or ())[:_TEXTS_SHOWN]:
        status, found = api.send("GET", f"/api/rules/{segment(name)}")
        if status == 200:
            texts.append(_short(found["text"]))
    return reason_words(data["reason"]) + (f": {' / '.join(texts)}" if texts else "")


def _short(text: str) -> str:
    return " ".join(text.split())[:_MOST_TEXT]


def _clock(event: StreamedEvent) -> str:
    return datetime.fromisoformat(event.data["at"]).astimezone().strftime("%H:%M:%S")
