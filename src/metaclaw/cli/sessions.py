"""`metaclaw sessions`: list, search and show sessions; end and forget them."""

from collections.abc import Iterator
from pathlib import Path

import click

from metaclaw.cli.client import (
    WHERE_SESSIONS,
    Facts,
    NotFoundError,
    check_choice,
    connect,
    last_turn,
    read,
    request,
    segment,
)
from metaclaw.cli.output import (
    Bold,
    Columns,
    CommandOutput,
    ago,
    answers,
    confirm,
    counted,
    cut,
    limit_option,
    listing,
    moment,
    short,
    terminal_width,
    wants_json,
    wrapped,
    yes_option,
)
from metaclaw.cli.turns import held_in_words, verdict_in_words
from metaclaw.domain.status import agent_word, session_words

_FORGET_S = 600.0
_MOST_ENDED = 1000
_COLUMNS: Columns = {
    "SESSION": "prefix",
    "LAST": lambda one: ago(one["last_at"]),
    "AGENT": lambda one: agent_word(one["agent"]),
    "TURNS": "main_turn_count",
    "HOW IT WENT": lambda one: session_words(one["verdicts"], one["failed"]),
    "FIRST ASKED": lambda one: one["title"] if one["main_turn_count"] else "(side turns only)",
}
_last_option = click.option("--last", is_flag=True, help="The session of the last main turn.")


@click.group()
def sessions() -> None:
    """List, search, show, end and forget sessions."""


@sessions.command(name="list")
@limit_option(20, "Most sessions to list.")
@click.option(
    "--all",
    "show_all",
    is_flag=True,
    help="Also sessions in which the agent asked only on the side (titles, summaries).",
)
@answers
def list_(home: Path, limit: int, show_all: bool) -> CommandOutput:
    """List recorded sessions, newest first: the first request, the agent, and the verdicts."""
    kind = "all" if show_all else "main"
    facts = read(home, "/api/sessions", limit=limit, kind=kind, detail="verdicts")
    return CommandOutput({"sessions": facts["sessions"]}, _listed(facts))


def _listed(facts: Facts) -> Iterator[str]:
    found, total, hidden = facts["sessions"], facts["total"], facts["hidden"]
    if found:
        yield from _table(found)
    else:
        yield "No session has a main turn." if hidden else "No sessions are recorded yet."
    if total > len(found):
        yield (
            f"… and {total - len(found)} older. More with --limit; find one with: metaclaw sessions"
            " search WORDS"
        )
    if hidden:
        yield (
            f"{counted(hidden, 'session')} with side turns only (titles, summaries) not shown;"
            " --all shows them"
        )


@sessions.command()
@click.argument("words", nargs=-1, required=True)
@limit_option(20, "Most sessions to list.")
@click.option(
    "--among",
    type=click.IntRange(1, 1_000_000),
    default=1_000,
    show_default=True,
    help="Search this number of sessions, newest first.",
)
@answers
def search(home: Path, words: tuple[str, ...], limit: int, among: int) -> CommandOutput:
    """List the sessions that contain all WORDS in your requests or the answers, newest first."""
    query = {"words": " ".join(words), "among": among, "limit": limit, "detail": "verdicts"}
    found = request(home, "GET", "/api/sessions", timeout_s=_FORGET_S, query=query)["sessions"]
    nothing = f"No session of the newest {among} has these words in it."
    return CommandOutput({"sessions": found}, _table(found) if found else nothing)


def _table(found: list[Facts]) -> Iterator[str]:
    return listing(found, _COLUMNS, optional=("AGENT", "LAST"))


@sessions.command()
@click.argument("session", required=False)
@_last_option
@limit_option(50, "Most turns to show, the newest.")
@click.option(
    "--all", "show_all", is_flag=True, help="Also side turns (titles, summaries), and every word."
)
@answers
def show(home: Path, session: str | None, last: bool, limit: int, show_all: bool) -> CommandOutput:
    """Show one session: requests, answers, what was placed in the prompts, and verdicts.
    SESSION is an id or the beginning of one."""
    found = read(
        home,
        f"/api/sessions/{segment(_named(home, session, last=last))}",
        advice=WHERE_SESSIONS,
        newest=limit,
        kind="all" if show_all or wants_json() else "main",
        detail="whole" if wants_json() else "words",
    )
    return CommandOutput(found, _shown(found, show_all=show_all))


def _shown(found: Facts, *, show_all: bool) -> Iterator[str]:
    untitled = "(no readable request)" if found["main_turn_count"] else "(side turns only)"
    yield Bold(short(found["title"] or untitled, 100))
    ended = f"ended ({found['end_reason']})" if found["end_reason"] else "open"
    yield (
        f"{found['id']}  {agent_word(found['agent'])}  {moment(found['began_at'])} to"
        f" {moment(found['last_at'])}  {ended}"
    )
    turns, side = found["turns"], found["side_turns"]
    earlier = found["main_turns"] + (side if show_all else 0) - len(turns)
    if earlier > 0:
        yield f"… {counted(earlier, 'earlier turn')}; more with --limit"
    for turn in turns:
        yield from _turn_lines(turn, show_all=show_all)
    if side and not show_all:
        yield ""
        yield f"{counted(side, 'side turn')} (titles, summaries) not shown; --all shows them"


def _turn_lines(turn: Facts, *, show_all: bool) -> Iterator[str]:
    is_main, usage, times = turn["kind"] == "main", turn["usage"], turn["times"]
    facts = [moment(times["received_at"])[11:], turn["model"], f"{times['duration_s']:.2f} s"]
    if usage is not None:
        facts.append(f"{usage['input_tokens']} → {usage['output_tokens']} tokens")
    if turn["policy_version"]:
        facts.append(f"weights {turn['policy_version']}")
    if not is_main:
        facts.append(turn["kind"])
    if turn["finish"] is None or turn["error"]:
        facts.append(turn["error"] or turn["end"])
    yield ""
    yield Bold("  ".join([turn["prefix"], *facts]))
    asked = "(results of tools)" if turn["continued"] else turn["asked"]
    broken = "; ".join(f"{one['rule']}: {one['reason']}" for one in turn["broken"])
    said = [
        ("you" if is_main else "client", asked, 4),
        ("answer", turn["answered"], 6),
        *([("held", held_in_words(turn), 3)] if turn["enforced"] else []),
        *([("broken", broken, 3)] if broken else []),
        *([("placed", ", ".join(turn["skills"]), 2)] if turn["skills"] else []),
        ("verdict", verdict_in_words(turn["verdict"]), 2),
    ]
    for label, text, most_lines in said:
        yield from _labelled(label, text, most_lines=None if show_all else most_lines)


def _labelled(label: str, text: str, *, most_lines: int | None) -> Iterator[str]:
    """A label and a wrapped text beside it, cut to `most_lines` lines."""
    room = max(30, (terminal_width() or 110) - 11)
    lines = [line for paragraph in text.splitlines() for line in wrapped(paragraph, room)] or ["–"]
    if most_lines is not None and len(lines) > most_lines:
        lines = [*lines[: most_lines - 1], f"{cut(lines[most_lines - 1], room - 2)} …"]
    for place, line in enumerate(lines):
        yield f"  {(label if not place else '').ljust(7)}  {line}"


@sessions.command()
@click.argument("session", required=False)
@_last_option
@click.option(
    "--all", "is_all", is_flag=True, help="All of the newest 1000 sessions that are active."
)
@click.option("--yes", is_flag=True, expose_value=False, help="Changes nothing: it never asks.")
@answers
def end(home: Path, session: str | None, last: bool, is_all: bool) -> CommandOutput:
    """End an active session: its last turn is judged, and may train."""
    connect(home)  # without a proxy, no session is active
    if not is_all:
        path = f"/api/sessions/{segment(_named(home, session, last=last))}/end"
        facts = request(home, "POST", path, advice=WHERE_SESSIONS)
        return CommandOutput(facts, f"Ended {facts['session']}.")
    if session is not None or last:
        raise click.UsageError("--all ends every session: name none")
    ended = []
    for one in read(home, "/api/sessions", limit=_MOST_ENDED)["sessions"]:
        if one["end_reason"] is None:
            try:
                request(home, "POST", f"/api/sessions/{segment(one['id'])}/end")
            except NotFoundError:
                continue  # it is recorded as open, but is not active
            ended.append(one["id"])
    return CommandOutput({"ended": ended}, f"Ended {counted(len(ended), 'session')}.")


@sessions.command()
@click.argument("session", required=False)
@_last_option
@yes_option
@answers
def forget(home: Path, session: str | None, last: bool, yes: bool) -> CommandOutput:
    """Delete a session for ever: its turns, and everything that was learned from them."""
    named = _named(home, session, last=last)
    if not yes:
        named, size = _described(home, named)
        question = f"Forget {named} ({size}) for ever, and everything that was learned from it?"
        confirm(question, yes=False)
    path = f"/api/sessions/{segment(named)}/forget"
    facts = request(home, "POST", path, advice=WHERE_SESSIONS, timeout_s=_FORGET_S)
    return CommandOutput(facts, _forgotten_lines(facts))


_FORGOTTEN = {
    "skills": "Deleted the skills it had taught: {}.",
    "edited": (
        "Kept, because you have edited them since: {}. Delete them if they contain what is to be"
        " forgotten."
    ),
    "sessions": (
        "Prompts of other sessions contained such skills: {}. They were removed from the records,"
        " but answers may repeat them. If so, forget those sessions as well."
    ),
    "versions": (
        "Deleted the weights that were trained on it: version {}. See metaclaw policy list."
    ),
    "backups": (
        "These backups still contain it: {}. Delete them, or make new ones with metaclaw store"
        " backup."
    ),
}


def _forgotten_lines(facts: Facts) -> Iterator[str]:
    session, seconds = facts["session"], facts["seconds"]
    if facts["turns"]:
        yield f"Forgot {session}: {counted(facts['turns'], 'turn')}, in {seconds} s."
    else:
        yield f"{session} was already forgotten. Deleted what was left of it, in {seconds} s."
    for field, words in _FORGOTTEN.items():
        if found := facts[field]:
            yield words.format(", ".join(map(str, found)))
    if not facts["purged"]:
        yield (
            "The database is in use and was not compacted, so its file may still contain fragments"
            " of the text. Stop the proxy and run this command again."
        )


def _named(home: Path, session: str | None, *, last: bool) -> str:
    """The session that was named, or with `last` that of the last main turn."""
    check_choice(session, last, "session")
    return str(last_turn(home)["session"]) if session is None else session


def _described(home: Path, named: str) -> tuple[str, str]:
    """The whole id of a session and its size. An unknown id may be of a session that is only partly
    forgotten.
    """
    try:
        found = read(home, f"/api/sessions/{segment(named)}", limit=1)
    except NotFoundError:
        return named, "not in the ledger"
    return found["id"], counted(found["turn_count"], "turn")
