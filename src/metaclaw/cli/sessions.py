"""`metaclaw sessions`: read sessions from the store; the running proxy ends and forgets them."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from metaclaw.cli.client import at, connect, expect, rows
from metaclaw.cli.home import (
    WHERE_SESSIONS,
    check_choice,
    find_session,
    opened,
    reading,
    short_session,
    short_turn,
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
from metaclaw.cli.turns import answered, held_in_words, is_continued, verdict_in_words
from metaclaw.domain.status import session_words
from metaclaw.errors import MetaClawError
from metaclaw.instance import acquire, find

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from metaclaw.domain.chat import Json
    from metaclaw.domain.ids import SessionId
    from metaclaw.store import Database, LedgerReader, SessionRow, TurnRow

_FORGET_S = 600.0
_MOST_SEARCHED = 200
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
    from metaclaw.store import LedgerReader, Overview, SessionFilter

    wanted = SessionFilter(with_side_only=show_all)
    with opened(home) as database:
        found = [] if database is None else Overview(database).sessions(wanted, limit)
        is_printed = database is not None and _print_found(database, found, as_json=as_json)
        total = 0 if database is None else Overview(database).count(wanted)
        hidden = 0 if database is None else LedgerReader(database).counts().sessions - total
    if not is_printed:
        _print_none(
            "No sessions are recorded yet." if not hidden else "No session has a main turn.",
            as_json=as_json,
        )
    if total > len(found) and not as_json:
        click.echo(
            f"… and {total - len(found)} older. More with --limit; find one with: metaclaw sessions"
            " search WORDS"
        )
    if hidden and not as_json:
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
    from itertools import islice

    from metaclaw.store import LedgerReader, Overview, SessionFilter

    wanted = [word.casefold() for word in " ".join(words).split()]
    with opened(home) as database:
        if database is not None:
            reader = LedgerReader(database)
            fitting = (
                session
                for session in Overview(database).sessions(SessionFilter(), among)
                if _holds(reader, session, wanted)
            )
            if _print_found(database, list(islice(fitting, limit)), as_json=as_json):
                return
    _print_none(f"No session of the newest {among} has these words in it.", as_json=as_json)


def _holds(reader: "LedgerReader", session: "SessionRow", wanted: list[str]) -> bool:
    from metaclaw.api import last_words
    from metaclaw.proxy import own_words

    missing = set(wanted)
    for row in reader.turns_of(session.id, _MOST_SEARCHED):
        whole = reader.turn(row.id) if row.kind.value == "main" else None
        if whole is not None:
            text = f"{last_words(whole.turn, own_words)}\n{answered(whole.turn)}".casefold()
            missing -= {word for word in missing if word in text}
        if not missing:
            return True
    return False


def _print_none(sentence: str, *, as_json: bool) -> None:
    print_result({"sessions": []}, sentence, as_json=as_json)


def _print_found(database: "Database", sessions: "list[SessionRow]", *, as_json: bool) -> bool:
    """Print sessions with their titles; False if there are none."""
    from metaclaw.api import session_view
    from metaclaw.store import LedgerReader, Overview

    reader, titles = LedgerReader(database), _titles(database, sessions)
    ids = [session.id for session in sessions]
    attempts = reader.attempts_in(ids)
    sessions = [
        replace(session, turns=session.turns - attempts.get(session.id, 0)) for session in sessions
    ]
    if sessions and as_json:
        print_json(
            {"sessions": [session_view(session, titles.get(session.id)) for session in sessions]}
        )
    elif sessions:
        outcomes, failed = Overview(database).outcomes(ids), Overview(database).failed(ids)
        cells = [
            (
                short_session(reader, session.id),
                ago(session.last_at),
                agent_name(session.agent),
                session.main_turns,
                session_words(outcomes.get(session.id, {}), failed.get(session.id, 0)),
                titles.get(session.id, "") if session.main_turns else "(side turns only)",
            )
            for session in sessions
        ]
        print_table(
            ("SESSION", "LAST", "AGENT", "TURNS", "HOW IT WENT", "FIRST ASKED"),
            cells,
            optional=("AGENT", "LAST"),
        )
    return bool(sessions)


def _titles(database: "Database", sessions: "list[SessionRow]") -> "Mapping[SessionId, str]":
    """The titles of these sessions, as in the API."""
    from metaclaw.api import Titles
    from metaclaw.proxy import own_words
    from metaclaw.store import Overview

    return Titles(Overview(database), own_words).of([session.id for session in sessions])


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
    from metaclaw.api import session_view, turn_view
    from metaclaw.store import LedgerReader

    check_choice(session, last, "session")
    with opened(home) as database:
        wanted = find_session(None if database is None else LedgerReader(database), session)
        assert database is not None
        reader = LedgerReader(database)
        found = reader.session(wanted)
        if found is None:
            raise _unknown(wanted)
        title = _titles(database, [found]).get(found.id)
        rows_ = reader.turns_of(found.id, found.turns + 1)
        if as_json:
            turns = [
                turn_view(whole.turn) for row in rows_[-limit:] if (whole := reader.turn(row.id))
            ]
            print_json({**session_view(found, title), "turns": turns})
            return
        click.secho(
            one_line(
                title or ("(no readable request)" if found.main_turns else "(side turns only)"), 100
            ),
            bold=True,
        )
        ended = f"ended ({found.end_reason})" if found.end_reason else "open"
        click.echo(
            f"{plain(found.id)}  {agent_name(found.agent)}  {moment(found.began_at)} to"
            f" {moment(found.last_at)}  {plain(ended)}"
        )
        shown = rows_ if show_all else [row for row in rows_ if row.kind.value == "main"]
        if len(shown) > limit:
            click.echo(f"… {counted(len(shown) - limit, 'earlier turn')}; more with --limit")
        for row in shown[-limit:]:
            _print_turn(reader, row, show_all=show_all)
        if len(shown) < len(rows_):
            click.echo(
                f"\n{counted(len(rows_) - len(shown), 'side turn')} (titles, summaries) not shown;"
                " --all shows them"
            )


def _print_turn(reader: "LedgerReader", row: "TurnRow", *, show_all: bool) -> None:
    from metaclaw.api import last_words
    from metaclaw.proxy import own_words

    whole, standing = reader.turn(row.id), reader.standing_of(row.id)
    if whole is None:
        return
    usage, policy = row.usage, row.stamp.policy_version
    facts = [f"{moment(row.times.received_at)[11:]}", row.model, f"{row.times.duration_s:.2f} s"]
    facts += [f"{usage.input_tokens} → {usage.output_tokens} tokens"] if usage is not None else []
    facts += [f"weights {policy}"] if policy else []
    facts += [row.kind.value] if row.kind.value != "main" else []
    if row.finish is None or row.error:
        facts.append(row.error or row.end.value)
    click.echo()
    click.secho(plain(short_turn(reader, row.id)), bold=True, nl=False)
    click.echo(f"  {'  '.join(plain(fact) for fact in facts)}")
    words = "(results of tools)" if is_continued(whole.turn) else last_words(whole.turn, own_words)
    _print_words(
        "you" if row.kind.value == "main" else "client", words, most_lines=None if show_all else 4
    )
    _print_words("answer", answered(whole.turn), most_lines=None if show_all else 6)
    if whole.turn.enforcement is not None:
        _print_words(
            "held", held_in_words(whole.turn.enforcement), most_lines=None if show_all else 3
        )
    if broken := reader.broken_rules(row.id):
        _print_words(
            "broken",
            "; ".join(f"{rule}: {reason}" for rule, reason in broken),
            most_lines=None if show_all else 3,
        )
    if row.stamp.skills:
        _print_words("placed", ", ".join(row.stamp.skills), most_lines=None if show_all else 2)
    _print_words(
        "verdict",
        verdict_in_words(None if standing is None else standing.verdict),
        most_lines=None if show_all else 2,
    )


def _print_words(label: str, text: str, *, most_lines: int | None) -> None:
    """Print a label and a wrapped text beside it, cut to `most_lines` lines."""
    room = max(30, (terminal_width() or 110) - 11)
    lines = [
        line for paragraph in plain_block(text).splitlines() for line in wrapped(paragraph, room)
    ] or ["–"]
    if most_lines is not None and len(lines) > most_lines:
        lines = [*lines[: most_lines - 1], f"{cut(lines[most_lines - 1], room - 2)} …"]
    for number, line in enumerate(lines):
        click.echo(f"  {(label if not number else '').ljust(7)}  {line}")


@sessions.command()
@click.argument("session", required=False)
@click.option("--last", is_flag=True, help="The session of the last main turn.")
@click.option(
    "--all", "is_all", is_flag=True, help="All of the newest 1000 sessions that are active."
)
@home_and_json
def end(home: Path, session: str | None, last: bool, is_all: bool, as_json: bool) -> None:
    """End an active session: its last turn is judged, and may train."""
    if is_all:
        if session is not None or last:
            raise click.UsageError("--all ends every session: name none")
        _end_all(home, as_json=as_json)
        return
    check_choice(session, last, "session")
    _, api = connect(home)
    session = _resolved(home, session)
    facts = expect(*api.post(f"/api/sessions/{quote(session, safe='')}/end"), advice=WHERE_SESSIONS)
    print_result(facts, f"Ended {plain(session)}.", as_json=as_json)


def _end_all(home: Path, *, as_json: bool) -> None:
    from metaclaw.store import LedgerReader

    _, api = connect(home)
    with opened(home) as database:
        found = [] if database is None else LedgerReader(database).sessions(_MOST_ENDED)
    active = [str(session.id) for session in found if session.end_reason is None]
    ended: list[Json] = [
        name for name in active if api.post(f"/api/sessions/{quote(name, safe='')}/end")[0] < 400
    ]
    print_result({"ended": ended}, f"Ended {counted(len(ended), 'session')}.", as_json=as_json)


@sessions.command()
@click.argument("session", required=False)
@click.option("--last", is_flag=True, help="The session of the last main turn.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@home_and_json
def forget(home: Path, session: str | None, last: bool, yes: bool, as_json: bool) -> None:
    """Delete a session for ever: its turns, and everything that was learned from them."""
    check_choice(session, last, "session")
    session = _resolved(home, session)
    if not yes:
        ask(
            f"Forget {plain(session)} ({_size(home, session)}) for ever, and everything that was"
            " learned from it?"
        )
    facts = (
        _forget_by_proxy(home, session) if find(home) is not None else _forget_here(home, session)
    )
    if as_json:
        print_json(facts)
        return
    for line in _forgotten_lines(session, facts):
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


def _resolved(home: Path, session: str | None) -> str:
    """The whole id. An unknown id is returned unchanged, because it may be of a session that is
    only partly forgotten.
    """

    with reading(home) as reader:
        if session is not None and (reader is None or not reader.find_sessions(session)):
            return session
        return find_session(reader, session)


def _size(home: Path, session: str) -> str:
    from metaclaw.domain.ids import SessionId

    with reading(home) as reader:
        found = None if reader is None else reader.session(SessionId(session))
    return "not in the ledger" if found is None else counted(found.turns, "turn")


def _forget_by_proxy(home: Path, session: str) -> "dict[str, Json]":
    _, api = connect(home)
    return expect(
        *api.post(f"/api/sessions/{quote(session, safe='')}/forget", timeout_s=_FORGET_S),
        advice=WHERE_SESSIONS,
    )


def _forget_here(home: Path, session: str) -> "dict[str, Json]":
    """Forget the session while no proxy runs, and finish what an interrupted run left."""
    from metaclaw.config import load
    from metaclaw.domain.ids import SessionId
    from metaclaw.learn import SessionErasure
    from metaclaw.skills import SkillLibrary
    from metaclaw.store import SqlGenerations

    config = load(home)
    with opened(config) as database:
        if database is None:
            raise _unknown(session)
        with acquire(home):
            library = SkillLibrary(config.skills.dir, SqlGenerations(database))
            library.sync()
            if library.trouble is not None:
                raise MetaClawError(f"nothing was forgotten: {library.trouble}")
            erasure = SessionErasure(database, library, home / "policies", is_alone=True)
            report = erasure.forget(SessionId(session))
            if report is None:
                raise _unknown(session)
            erasure.remove_weights()
            return {"forgotten": True, **erasure.purge(report).as_json()}


def _unknown(session: str) -> MetaClawError:
    return MetaClawError(f"there is no session {plain(session)}; {WHERE_SESSIONS}")
