"""`metaclaw feedback`: a person's word on a turn, told to the running proxy, or put into the store where none runs."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from metaclaw.cli.client import connect, expect, message_in
from metaclaw.cli.output import json_option, plain, print_json
from metaclaw.errors import MetaClawError
from metaclaw.instance import find

if TYPE_CHECKING:
    from metaclaw.domain.chat import Json

_WHERE = "answers carry it as X-Metaclaw-Turn, and metaclaw sessions show lists it"


@click.command()
@click.argument("turn")
@click.argument("outcome", type=click.Choice(("pass", "fail")))
@click.option("--comment", default="", help="What was good or wrong, in your own words; with fail, skills are made of it.")
@json_option
@click.pass_obj
def feedback(home: Path, turn: str, outcome: str, comment: str, as_json: bool) -> None:
    """Say whether a turn was good. Your word outranks every judge."""
    facts = _tell(home, turn, outcome, comment) if find(home) is not None else _record(home, turn, outcome, comment)
    if as_json:
        print_json(facts)
    else:
        click.echo(f"Noted: {plain(turn)} is a {outcome}.")


def _tell(home: Path, turn: str, outcome: str, comment: str) -> "dict[str, Json]":
    _, api = connect(home)
    status, body = api.post("/api/feedback", {"turn": turn, "outcome": outcome, "comment": comment})
    if status == 404:
        raise MetaClawError(f"{message_in(body)}; {_WHERE}")
    return expect(status, body)


def _record(home: Path, turn: str, outcome: str, comment: str) -> "dict[str, Json]":
    """Straight into the store: a proxy that starts later learns from it."""
    from metaclaw.cli.ledger import opened
    from metaclaw.config import load
    from metaclaw.dashboard.views import verdict_view
    from metaclaw.domain.ids import TurnId
    from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict
    from metaclaw.store import LedgerReader, SqlVerdicts

    is_fail = outcome == Outcome.FAIL
    p_fail, fault = (1.0, Fault.AGENT) if is_fail else (0.0, None)
    verdict = Verdict(TurnId(turn), Outcome(outcome), Source.USER, p_fail, fault=fault, comment=comment.strip())
    with opened(load(home)) as database:
        if database is None or LedgerReader(database).standing_of(verdict.turn) is None:
            raise MetaClawError(f"there is no turn {plain(turn)}; {_WHERE}")
        SqlVerdicts(database).record_verdict(verdict)
    return {"turn": turn, "verdict": verdict_view(verdict)}
