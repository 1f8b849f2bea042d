"""`metaclaw sessions`: what was recorded, read from the store; ending one is asked of the running proxy."""

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from metaclaw.cli.client import connect, expect, message_in
from metaclaw.cli.output import counted, json_option, moment, plain, print_facts, print_json, print_table
from metaclaw.errors import MetaClawError

if TYPE_CHECKING:
    from metaclaw.store import TurnRow


@click.group()
def sessions() -> None:
    """List, show and end sessions."""


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
            raise MetaClawError(f"there is no session {plain(session)}; metaclaw sessions list shows those there are")
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
