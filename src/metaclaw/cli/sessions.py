"""`metaclaw sessions`: list, search and show sessions; end and forget them."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from metaclaw.cli.client import (
    WHERE_SESSIONS,
    NotFoundError,
    at,
    check_choice,
    connect,
    counts,
    last_turn,
    number,
    objects,
    read,
    request,
    rows,
    segment,
)
from metaclaw.cli.output import (
    agent_name,
    ago,
    ask,
    counted,
    cut,
    home_and_json,
    limit_option,
    moment,
    one_line,
    plain,
    plain_block,
    print_json,
    print_result,
    print_table,
    terminal_width,
    wrapped,
)
from metaclaw.cli.turns import held_in_words, verdict_in_words
from metaclaw.domain.status import session_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from metaclaw.domain.chat import Json

_FORGET_S = 600.0
_MOST_ENDED = 1000


@click.group()
def sessions() -> None:
    """List, search, show, end and forget sessions: your requests, the answers, and the verdicts on
    them.
    """


@sessions.command(name="list")
@limit_option(20, "Most sessions to list, newest first.")
@click.option(
    "--all",
    "show_all",
    is_flag=True,
    help="Also sessions in which the agent asked only on the side (titles, summaries).",
)
@home_and_json
def list_(home: Path, limit: int, show_all: bool, as_json: bool) -> None:
    """List recorded sessions, newest first: the first request, the agent, and the verdicts.

    Your feedback, a check, the next turn or a judge decides whether a turn was good or bad; it
    failed if no answer came."""
    kind = "all" if show_all else "main"
    facts = read(home, "/api/sessions", limit=limit, kind=kind, detail="verdicts")
    found, total, hidden = objects(facts["sessions"]), facts["total"], facts["hidden"]
    if as_json:
        print_json({"sessions": found})
        return
    assert isinstance(total, int)
    if found:
        _print_found(found)
    else:
        click.echo("No session has a main turn." if hidden else "No sessions are recorded yet.")
    if total > len(found):
        click.echo(
            f"… and {total - len(found)} older. More with --limit; find one with: metaclaw sessions"
            " search WORDS"
        )
    if hidden:
        click.echo(
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
@home_and_json
def search(home: Path, words: tuple[str, ...], limit: int, among: int, as_json: bool) -> None:
    """List the sessions that contain all WORDS in your requests or the answers, newest first."""
    found = objects(
        request(
            home,
            "GET",
            "/api/sessions",
            timeout_s=_FORGET_S,
            query={
                "words": " ".join(words),
                "among": among,
                "limit": limit,
                "detail": "verdicts",
            },
        )["sessions"]
    )
    if as_json:
        print_json({"sessions": found})
    elif found:
        _print_found(found)
    else:
        click.echo(f"No session of the newest {among} has these words in it.")


def _print_found(found: "list[dict[str, Json]]") -> None:
    cells = [
        (
            session["prefix"],
            ago(session["last_at"]),
            agent_name(session["agent"]),
            session["main_turn_count"],
            session_words(counts(session["verdicts"]), number(session["failed"])),
            session["title"] if session["main_turn_count"] else "(side turns only)",
        )
        for session in found
    ]
    print_table(
        ("SESSION", "LAST", "AGENT", "TURNS", "HOW IT WENT", "FIRST ASKED"),
        cells,
        optional=("AGENT", "LAST"),
    )


@sessions.command()
@click.argument("session", required=False)
@click.option("--last", is_flag=True, help="The session of the last main turn.")
@limit_option(50, "Most turns to show, the newest.")
@click.option(
    "--all", "show_all", is_flag=True, help="Also side turns (titles, summaries), and every word."
)
@home_and_json
def show(
    home: Path, session: str | None, last: bool, limit: int, show_all: bool, as_json: bool
) -> None:
    """Show one session: your requests, the answers, the rules and skills placed in the prompts, and
    the verdict on each turn.

    SESSION is an id or the beginning of one. With --json, everything that was recorded.
    """
    check_choice(session, last, "session")
    found = read(
        home,
        f"/api/sessions/{segment(_named(home, session))}",
        advice=WHERE_SESSIONS,
        newest=limit,
        kind="all" if show_all or as_json else "main",
        detail="whole" if as_json else "words",
    )
    if as_json:
        print_json(found)
        return
    untitled = "(no readable request)" if found["main_turn_count"] else "(side turns only)"
    click.secho(one_line(found["title"] or untitled, 100), bold=True)
    ended = f"ended ({found['end_reason']})" if found["end_reason"] else "open"
    click.echo(
        f"{plain(found['id'])}  {agent_name(found['agent'])}  {moment(found['began_at'])} to"
        f" {moment(found['last_at'])}  {plain(ended)}"
    )
    turns, main, side = objects(found["turns"]), found["main_turns"], found["side_turns"]
    assert isinstance(main, int)
    assert isinstance(side, int)
    earlier = main + (side if show_all else 0) - len(turns)
    if earlier > 0:
        click.echo(f"… {counted(earlier, 'earlier turn')}; more with --limit")
    for turn in turns:
        _print_turn(turn, show_all=show_all)
    if side and not show_all:
        click.echo(
            f"\n{counted(side, 'side turn')} (titles, summaries) not shown; --all shows them"
        )


def _print_turn(turn: "dict[str, Json]", *, show_all: bool) -> None:
    is_main, usage, duration = (
        turn["kind"] == "main",
        turn["usage"],
        at(turn, "times", "duration_s"),
    )
    facts = [moment(at(turn, "times", "received_at"))[11:], turn["model"], f"{duration:.2f} s"]
    if usage is not None:
        facts.append(f"{at(usage, 'input_tokens')} → {at(usage, 'output_tokens')} tokens")
    facts += [f"weights {turn['policy_version']}"] if turn["policy_version"] else []
    facts += [] if is_main else [turn["kind"]]
    if turn["finish"] is None or turn["error"]:
        facts.append(turn["error"] or turn["end"])
    click.echo()
    click.secho(plain(turn["prefix"]), bold=True, nl=False)
    click.echo(f"  {'  '.join(plain(fact) for fact in facts)}")
    asked = "(results of tools)" if turn["continued"] else str(turn["asked"])
    broken = "; ".join(f"{one['rule']}: {one['reason']}" for one in objects(turn["broken"]))
    said = [
        ("you" if is_main else "client", asked, 4),
        ("answer", str(turn["answered"]), 6),
        *([("held", held_in_words(turn), 3)] if turn["enforced"] else []),
        *([("broken", broken, 3)] if broken else []),
        *([("placed", ", ".join(map(str, rows(turn["skills"]))), 2)] if turn["skills"] else []),
        ("verdict", verdict_in_words(turn["verdict"]), 2),
    ]
    for label, text, most_lines in said:
        _print_words(label, text, most_lines=None if show_all else most_lines)


def _print_words(label: str, text: str, *, most_lines: int | None) -> None:
    """Print a label and a wrapped text beside it, cut to `most_lines` lines."""
    room = max(30, (terminal_width() or 110) - 11)
    lines = [
        line for paragraph in plain_block(text).splitlines() for line in wrapped(paragraph, room)
    ] or ["–"]
    if most_lines is not None and len(lines) > most_lines:
        lines = [*lines[: most_lines - 1], f"{cut(lines[most_lines - 1], room - 2)} …"]
    for place, line in enumerate(lines):
        click.echo(f"  {(label if not place else '').ljust(7)}  {line}")


@sessions.command()
@click.argument("session", required=False)
@click.option("--last", is_flag=True, help="The session of the last main turn.")
@click.option(
    "--all", "is_all", is_flag=True, help="All of the newest 1000 sessions that are active."
)
@home_and_json
def end(home: Path, session: str | None, last: bool, is_all: bool, as_json: bool) -> None:
    """End an active session: its last turn is judged, and may train."""
    connect(home)  # without a proxy, no session is active
    if is_all:
        if session is not None or last:
            raise click.UsageError("--all ends every session: name none")
        _end_all(home, as_json=as_json)
        return
    check_choice(session, last, "session")
    path = f"/api/sessions/{segment(_named(home, session))}/end"
    facts = request(home, "POST", path, advice=WHERE_SESSIONS)
    print_result(facts, f"Ended {plain(facts['session'])}.", as_json=as_json)


def _end_all(home: Path, *, as_json: bool) -> None:
    ended: list[Json] = []
    for session in objects(read(home, "/api/sessions", limit=_MOST_ENDED)["sessions"]):
        if session["end_reason"] is None:
            try:
                request(home, "POST", f"/api/sessions/{segment(str(session['id']))}/end")
            except NotFoundError:
                continue  # it is recorded as open, but is not active
            ended.append(session["id"])
    print_result({"ended": ended}, f"Ended {counted(len(ended), 'session')}.", as_json=as_json)


@sessions.command()
@click.argument("session", required=False)
@click.option("--last", is_flag=True, help="The session of the last main turn.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@home_and_json
def forget(home: Path, session: str | None, last: bool, yes: bool, as_json: bool) -> None:
    """Delete a session for ever: its turns, and everything that was learned from them."""
    check_choice(session, last, "session")
    named = _named(home, session)
    if not yes:
        named, size = _described(home, named)
        ask(f"Forget {plain(named)} ({size}) for ever, and everything that was learned from it?")
    facts = request(
        home,
        "POST",
        f"/api/sessions/{segment(named)}/forget",
        advice=WHERE_SESSIONS,
        timeout_s=_FORGET_S,
    )
    if as_json:
        print_json(facts)
        return
    for line in _forgotten_lines(str(facts["session"]), facts):
        click.echo(line)


def _forgotten_lines(session: str, facts: "dict[str, Json]") -> "Iterator[str]":
    def named(key: str) -> str:
        return ", ".join(map(plain, rows(at(facts, key))))

    if at(facts, "turns") == 0:
        yield (
            f"{plain(session)} was already forgotten. Deleted what was left of it, in"
            f" {plain(at(facts, 'seconds'))} s."
        )
    else:
        yield (
            f"Forgot {plain(session)}: {counted(at(facts, 'turns'), 'turn')}, in"
            f" {plain(at(facts, 'seconds'))} s."
        )
    if named("skills"):
        yield f"Deleted the skills it had taught: {named('skills')}."
    if named("edited"):
        yield (
            f"Kept, because you have edited them since: {named('edited')}. Delete them if they"
            " contain what is to be forgotten."
        )
    if named("sessions"):
        yield (
            f"Prompts of other sessions contained such skills: {named('sessions')}. They were"
            " removed from the records, but answers may repeat them. If so, forget those sessions"
            " as well."
        )
    if named("versions"):
        yield (
            f"Deleted the weights that were trained on it: version {named('versions')}. See"
            " metaclaw policy list."
        )
    if named("backups"):
        yield (
            f"These backups still contain it: {named('backups')}. Delete them, or make new ones"
            " with metaclaw store backup."
        )
    if at(facts, "purged") is not True:
        yield (
            "The database is in use and was not compacted, so its file may still contain fragments"
            " of the text. Stop the proxy and run this command again."
        )


def _named(home: Path, session: str | None) -> str:
    """The session that was named; for None, that of the last main turn."""
    return str(last_turn(home)["session"]) if session is None else session


def _described(home: Path, named: str) -> tuple[str, str]:
    """The whole id of a session and its size. An unknown id may be of a session that is only partly
    forgotten.
    """
    try:
        found = read(home, f"/api/sessions/{segment(named)}", limit=1)
    except NotFoundError:
        return named, "not in the ledger"
    return str(found["id"]), counted(found["turn_count"], "turn")
