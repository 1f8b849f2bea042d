"""`metaclaw feedback`: a person's word on a turn, told to the running proxy, or put into the store where none runs."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from metaclaw.cli.client import connect, expect, message_in
from metaclaw.cli.output import json_option, plain, print_json
from metaclaw.cli.references import WHERE_TURNS, find_turn
from metaclaw.errors import MetaClawError
from metaclaw.instance import find

if TYPE_CHECKING:
    from metaclaw.domain.chat import Json

_OUTCOMES = ("pass", "fail")


@click.command()
@click.argument("said", nargs=-1, metavar="[TURN] pass|fail [COMMENT]...", required=True)
@click.option("--last", is_flag=True, help="The last main turn; then no TURN is named.")
@click.option("--comment", default="", help="The same as COMMENT.")
@json_option
@click.pass_obj
def feedback(home: Path, said: tuple[str, ...], last: bool, comment: str, as_json: bool) -> None:
    """Say whether a turn was good. Your word outranks every judge; with fail, skills are made of your COMMENT.

    TURN is an id or the beginning of one. For example: metaclaw feedback --last fail "the date must be ISO"
    """
    named, outcome, words = _read(said, last=last)
    turn = _resolved(home, named)
    comment = " ".join(words) or comment
    facts = _tell(home, turn, outcome, comment) if find(home) is not None else _record(home, turn, outcome, comment)
    if as_json:
        print_json(facts)
    else:
        click.echo(f"Noted: {plain(turn)} is a {outcome}.")
        if outcome == "fail" and not comment:
            click.echo('Say what was wrong, and it learns more: metaclaw feedback --last fail "…"')


def _read(said: tuple[str, ...], *, last: bool) -> tuple[str | None, str, tuple[str, ...]]:
    """The turn that is named, the outcome and the comment."""
    named, rest = (None, said) if last else (said[0], said[1:])
    if not rest or rest[0] not in _OUTCOMES:
        if not last and named in _OUTCOMES:
            raise click.UsageError("name a turn (the beginning of its id is enough), or say --last")
        given = f"{rest[0]!r} is neither pass nor fail" if rest else "pass or fail is missing"
        raise click.UsageError(f'{given}; for example: metaclaw feedback --last fail "the date must be ISO"')
    return named, rest[0], rest[1:]


def _resolved(home: Path, named: str | None) -> str:
    """The whole id. One that the ledger does not know is left for the proxy to refuse."""
    from metaclaw.cli.ledger import reading
    from metaclaw.config import load

    with reading(load(home)) as reader:
        if named is not None and (reader is None or not reader.find_turns(named)):
            return named
        return find_turn(reader, named)


def _tell(home: Path, turn: str, outcome: str, comment: str) -> "dict[str, Json]":
    _, api = connect(home)
    status, body = api.post("/api/feedback", {"turn": turn, "outcome": outcome, "comment": comment})
    if status == 404:
        raise MetaClawError(f"{message_in(body)}; {WHERE_TURNS}")
    return expect(status, body)


def _record(home: Path, turn: str, outcome: str, comment: str) -> "dict[str, Json]":
    """Straight into the store: a proxy that starts later learns from it."""
    from metaclaw.api import verdict_view
    from metaclaw.cli.ledger import opened
    from metaclaw.config import load
    from metaclaw.domain.ids import TurnId
    from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict
    from metaclaw.store import LedgerReader, SqlVerdicts

    is_fail = outcome == Outcome.FAIL
    p_fail, fault = (1.0, Fault.AGENT) if is_fail else (0.0, None)
    verdict = Verdict(TurnId(turn), Outcome(outcome), Source.USER, p_fail, fault=fault, comment=comment.strip())
    with opened(load(home)) as database:
        if database is None or LedgerReader(database).standing_of(verdict.turn) is None:
            raise MetaClawError(f"there is no turn {plain(turn)}; {WHERE_TURNS}")
        SqlVerdicts(database).record_verdict(verdict)
    return {"turn": turn, "verdict": verdict_view(verdict)}
