"""`metaclaw candidates`: list proposed skills from the store; approve or reject them through the
running proxy.
"""

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from metaclaw.cli.client import at, connect, expect, message_in
from metaclaw.cli.home import opened
from metaclaw.cli.output import (
    counted,
    home_and_json,
    limit_option,
    moment,
    plain,
    plain_block,
    print_facts,
    print_json,
    print_table,
)
from metaclaw.errors import MetaClawError

if TYPE_CHECKING:
    from metaclaw.domain.candidate import Candidate, Certificate

_STANDINGS = ("draft", "shadow", "waiting", "accepted", "rejected")
_DECIDE_S = 60.0
_WHERE = "metaclaw candidates list shows all"
_MOST_REASON = 80
_MOST_KNOWN = 10_000


@click.group()
def candidates() -> None:
    """List candidates (proposed skills), and approve or reject those that wait for you."""


@candidates.command(name="list")
@click.option(
    "--standing", type=click.Choice(_STANDINGS), help="Only candidates with this standing."
)
@limit_option(50, "Most candidates to list, newest first.")
@home_and_json
def list_(home: Path, standing: str | None, limit: int, as_json: bool) -> None:
    """List candidates, newest first."""
    from metaclaw.api import candidate_view
    from metaclaw.domain.candidate import Standing
    from metaclaw.store import SqlCandidates

    with opened(home) as database:
        wanted = None if standing is None else Standing(standing)
        found = [] if database is None else SqlCandidates(database).candidates(wanted, limit)
    if as_json:
        print_json({"candidates": [candidate_view(one) for one in found]})
    elif not found:
        click.echo("No candidates." if standing is None else f"No candidates are {standing}.")
    else:
        print_table(
            ("CANDIDATE", "SKILL", "SCOPE", "STANDING", "MADE", "WHY"), [_row(one) for one in found]
        )


@candidates.command()
@click.argument("candidate")
@home_and_json
def show(home: Path, candidate: str, as_json: bool) -> None:
    """Show one candidate: its text, its standing and why, and the turns it was learned from."""
    from metaclaw.api import whole_candidate_view

    found = _read(home, candidate)
    proposal = found.proposal
    if as_json:
        print_json(whole_candidate_view(found))
        return
    click.echo(plain(found.id))
    print_facts(_words(found))
    click.echo(f"\n{plain_block(proposal.skill.body)}")
    if check := proposal.skill.check:
        click.echo(f"\ncheck:\n{plain_block(str(check))}")
    if found.standing == "waiting":
        click.echo(
            f"\nIt waits for you: metaclaw candidates approve {plain(found.id)}, or reject"
            f" {plain(found.id)}"
        )


@candidates.command()
@click.argument("candidate")
@home_and_json
def approve(home: Path, candidate: str, as_json: bool) -> int:
    """Approve a waiting candidate: it is in force at once."""
    return _decide(home, candidate, "approve", "accepted", as_json=as_json)


@candidates.command()
@click.argument("candidate")
@home_and_json
def reject(home: Path, candidate: str, as_json: bool) -> int:
    """Reject a waiting candidate. The evolver considers this when it writes later skills."""
    return _decide(home, candidate, "reject", "rejected", as_json=as_json)


def _decide(home: Path, candidate: str, how: str, wanted: str, *, as_json: bool) -> int:
    _, api = connect(home)
    candidate = _resolved(home, candidate)
    status, body = api.post(
        f"/api/candidates/{quote(candidate, safe='')}/{how}", timeout_s=_DECIDE_S
    )
    if status == 409:
        raise MetaClawError(message_in(body))
    facts = expect(status, body, advice=_WHERE)
    skill, reason = plain(at(facts, "skill")), plain(at(facts, "reason"))
    if as_json:
        print_json(facts)
    elif at(facts, "standing") != wanted:
        raise MetaClawError(f"{skill} could not be put in force: {reason}")
    else:
        done = f"{skill} is in force now" if wanted == "accepted" else f"{skill} was rejected"
        click.echo(f"{done} ({plain(candidate)}).")
    return 0 if at(facts, "standing") == wanted else 1


def _resolved(home: Path, named: str) -> str:
    """The id of the candidate whose id begins with `named` or whose skill has this name; `named`
    itself if there is none.
    """
    from metaclaw.store import SqlCandidates

    with opened(home) as database:
        known = [] if database is None else SqlCandidates(database).candidates(None, _MOST_KNOWN)
    if any(one.id == named for one in known):
        return named
    found = [one for one in known if one.proposal.skill.name == named and one.standing == "waiting"]
    found = found or [
        one for one in known if one.id.startswith(named) or one.proposal.skill.name == named
    ]
    if len(found) > 1:
        several = ", ".join(plain(one.id) for one in found[:5])
        raise MetaClawError(
            f"{plain(named)} may be any of {several}{', …' if len(found) > 5 else ''}; write more"
            " of the id"
        )
    return found[0].id if found else named


def _read(home: Path, candidate: str) -> "Candidate":
    from metaclaw.domain.candidate import CandidateId
    from metaclaw.store import SqlCandidates

    candidate = _resolved(home, candidate)
    with opened(home) as database:
        found = (
            None if database is None else SqlCandidates(database).candidate(CandidateId(candidate))
        )
    if found is None:
        raise MetaClawError(f"there is no candidate {plain(candidate)}; {_WHERE}")
    return found


def _row(candidate: "Candidate") -> tuple[object, ...]:
    reason = (
        candidate.reason
        if len(candidate.reason) <= _MOST_REASON
        else f"{candidate.reason[: _MOST_REASON - 1]}…"
    )
    return (
        candidate.id,
        candidate.proposal.skill.name,
        candidate.proposal.skill.scope or "everyone",
        candidate.standing,
        moment(candidate.made_at),
        reason,
    )


def _words(candidate: "Candidate") -> list[tuple[str, object]]:
    proposal, certificate = candidate.proposal, candidate.certificate
    change = proposal.change.value + (
        f" of {', '.join(proposal.replaces)}" if proposal.replaces else ""
    )
    pairs: list[tuple[str, object]] = [
        ("skill", proposal.skill.name),
        ("use when", proposal.skill.trigger),
        ("scope", proposal.skill.scope or "everyone"),
        ("change", change),
        ("standing", candidate.standing.value),
        ("why", candidate.reason),
        ("written by", proposal.written_by),
        ("taught by", counted(len(proposal.support), "turn")),
        ("made", moment(candidate.made_at)),
    ]
    return pairs if certificate is None else [*pairs, ("certificate", _proof(certificate))]


def _proof(certificate: "Certificate") -> str:
    if not certificate.probes:
        return f"{certificate.stage.value}: no replays"
    replays = certificate.wins + certificate.losses + certificate.ties + certificate.undecided
    tried = f"{counted(replays, 'replay')} of {counted(certificate.probes, 'turn')}"
    return (
        f"{certificate.stage.value}: in {tried} it fixed {certificate.wins}, broke"
        f" {certificate.losses}, changed nothing in {certificate.ties}; {certificate.undecided}"
        " could not be decided"
    )
