"""`metaclaw sessions`: what was recorded, read from the store; ending and forgetting are asked of the proxy that runs."""

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from metaclaw.cli.client import at, connect, expect, message_in, rows
from metaclaw.cli.output import ask, counted, json_option, moment, plain, print_facts, print_json, print_table
from metaclaw.errors import MetaClawError
from metaclaw.instance import acquire, find

if TYPE_CHECKING:
    from collections.abc import Iterator

    from metaclaw.domain.chat import Json
    from metaclaw.store import TurnRow

_FORGET_S = 600.0


@click.group()
def sessions() -> None:
    """List, show, end and forget sessions."""


@sessions.command(name="list")
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="Most sessions to list, newest first."
)
@json_option
@click.pass_obj
def list_(home: Path, limit: int, as_json: bool) -> None:
    """List recorded sessions, newest first."""
    from metaclaw.cli.ledger import reading
    from metaclaw.config import load
    from metaclaw.dashboard.views import session_view

    with reading(load(home)) as reader:
        found = reader.sessions(limit) if reader is not None else []
    if as_json:
        print_json({"sessions": [session_view(session) for session in found]})
    elif not found:
        click.echo("No sessions are recorded yet.")
    else:
        print_table(
            ("SESSION", "AGENT", "USER", "BEGAN", "LAST", "TURNS", "ENDED"),
            [(s.id, s.agent, s.scope.user, moment(s.began_at), moment(s.last_at), s.turns, s.end_reason) for s in found],
        )


@sessions.command()
@click.argument("session")
@click.option("--limit", type=click.IntRange(1, 100_000), default=200, show_default=True, help="Most turns to show, oldest first.")
@json_option
@click.pass_obj
def show(home: Path, session: str, limit: int, as_json: bool) -> None:
    """Show one session and its turns; with --json, everything that was recorded of them."""
    from metaclaw.cli.ledger import reading
    from metaclaw.config import load
    from metaclaw.dashboard.views import session_view, turn_view
    from metaclaw.domain.ids import SessionId

    with reading(load(home)) as reader:
        found = reader.session(SessionId(session)) if reader is not None else None
        if reader is None or found is None:
            raise _unknown(session)
        turns = reader.turns_of(found.id, limit)
        if as_json:
            print_json({**session_view(found), "turns": [turn_view(whole.turn) for row in turns if (whole := reader.turn(row.id))]})
            return
    click.echo(plain(found.id))
    print_facts(
        [
            ("agent", found.agent),
            ("began", moment(found.began_at)),
            ("last", moment(found.last_at)),
            ("turns", counted(found.turns, "turn")),
            ("ended", found.end_reason or "no"),
        ]
    )
    click.echo()
    print_table(("TURN", "KIND", "MODEL", "GEN", "SKILLS", "END", "TOKENS", "TIME"), [_row(turn) for turn in turns])


@sessions.command()
@click.argument("session")
@json_option
@click.pass_obj
def end(home: Path, session: str, as_json: bool) -> None:
    """End a session that is going on."""
    _, api = connect(home)
    status, body = api.post(f"/api/sessions/{quote(session, safe='')}/end")
    if status == 404:
        raise MetaClawError(f"{message_in(body)}; metaclaw sessions list shows those there are")
    facts = expect(status, body)
    if as_json:
        print_json(facts)
    else:
        click.echo(f"Ended {plain(session)}.")


@sessions.command()
@click.argument("session")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@click.pass_obj
def forget(home: Path, session: str, yes: bool, as_json: bool) -> None:
    """Forget a session for ever: its turns, and everything that was learned from them."""
    if not yes:
        ask(f"Forget {plain(session)} ({_size(home, session)}) for ever, and whatever was learned from it?")
    facts = _forget_by_proxy(home, session) if find(home) is not None else _forget_here(home, session)
    if as_json:
        print_json(facts)
        return
    for line in _told(session, facts):
        click.echo(line)


def _told(session: str, facts: "dict[str, Json]") -> "Iterator[str]":
    def named(key: str) -> str:
        return ", ".join(plain(one) for one in rows(at(facts, key)))

    if at(facts, "turns") == 0:
        yield f"{plain(session)} was already forgotten. Deleted what was left of it, in {plain(at(facts, 'seconds'))} s."
    else:
        yield f"Forgot {plain(session)}: {counted(at(facts, 'turns'), 'turn')}, in {plain(at(facts, 'seconds'))} s."
    if named("skills"):
        yield f"Deleted the skills it had taught: {named('skills')}."
    if named("edited"):
        yield f"Kept, because you have edited them since: {named('edited')}. Delete them if they hold what is to be forgotten."
    if named("sessions"):
        yield (
            f"Such skills stood in prompts of other sessions: {named('sessions')}. They were taken out of the records, but answers"
            " may repeat them: forget those sessions, too, if they do."
        )
    if named("versions"):
        yield f"Deleted the weights that were trained on it: version {named('versions')}. See metaclaw policy list."
    if named("backups"):
        yield f"These backups still hold it: {named('backups')}. Delete them, or make new ones with metaclaw store backup."
    if at(facts, "purged") is not True:
        yield (
            "The database is in use and was not compacted, so its file may still hold fragments of the text. Stop the proxy and run"
            " this command again."
        )


def _size(home: Path, session: str) -> str:
    from metaclaw.cli.ledger import reading
    from metaclaw.config import load
    from metaclaw.domain.ids import SessionId

    with reading(load(home)) as reader:
        found = None if reader is None else reader.session(SessionId(session))
    return "not in the ledger" if found is None else counted(found.turns, "turn")


def _forget_by_proxy(home: Path, session: str) -> "dict[str, Json]":
    _, api = connect(home)
    status, body = api.post(f"/api/sessions/{quote(session, safe='')}/forget", timeout_s=_FORGET_S)
    if status == 404:
        raise MetaClawError(f"{message_in(body)}; metaclaw sessions list shows those there are")
    return expect(status, body)


def _forget_here(home: Path, session: str) -> "dict[str, Json]":
    """With nobody else at work on this home. What an earlier try left undone is done now."""
    from metaclaw.cli.ledger import opened
    from metaclaw.config import load
    from metaclaw.domain.ids import SessionId
    from metaclaw.learn.erasure import SessionErasure
    from metaclaw.skills import Shelf
    from metaclaw.store import SqlGenerations

    config = load(home)
    with opened(config) as database:
        if database is None:
            raise _unknown(session)
        with acquire(home):
            shelf = Shelf(config.skills.dir, SqlGenerations(database))
            shelf.load()
            if shelf.trouble is not None:
                raise MetaClawError(f"nothing was forgotten: {shelf.trouble}")
            erasure = SessionErasure(database, shelf, home / "policies", is_alone=True)
            report = erasure.forget(SessionId(session))
            if report is None:
                raise _unknown(session)
            erasure.remove_weights()
            return {"forgotten": True, **erasure.purge(report).told()}


def _unknown(session: str) -> MetaClawError:
    return MetaClawError(f"there is no session {plain(session)}; metaclaw sessions list shows those there are")


def _row(turn: "TurnRow") -> tuple[object, ...]:
    usage = turn.usage
    tokens = f"{usage.input_tokens} → {usage.output_tokens}" if usage is not None else None
    ended = turn.finish.value if turn.finish is not None else turn.error or turn.end.value
    return (
        turn.id,
        turn.kind.value,
        turn.model,
        turn.stamp.generation,
        ", ".join(turn.stamp.skills),
        ended,
        tokens,
        f"{turn.times.duration_s:.2f} s",
    )
