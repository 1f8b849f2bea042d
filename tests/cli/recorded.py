"""A home with something in it, for commands that read the store: turns, verdicts, a skill and the
candidate it came from.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import anyio

from metaclaw.domain.candidate import (
    Candidate,
    CandidateId,
    Change,
    Proposal,
    Standing,
)
from metaclaw.domain.chat import Finish, Usage, Wire
from metaclaw.domain.ids import SessionId, SkillName, TurnId, new_turn_id
from metaclaw.domain.skill import Authorship, Skill
from metaclaw.domain.turn import Exchange, Scope, Stamp, Times, Turn, TurnEnd, TurnKind
from metaclaw.skills import SkillLibrary
from metaclaw.store import (
    Database,
    LedgerLimits,
    SqlCandidates,
    SqlGenerations,
    SqlLedger,
    open_database,
)


def turn(session: SessionId, model: str = "m-1") -> Turn:
    """A turn of one exchange."""
    return Turn(
        id=new_turn_id(),
        session=session,
        kind=TurnKind.MAIN,
        kind_reason="test",
        scope=Scope(user="ann"),
        stamp=Stamp(
            generation=2, policy_version=0, library_hash="", skills=(SkillName("backup-first"),)
        ),
        agent="some-agent",
        wire=Wire.CHAT,
        path="/chat/completions",
        stream=False,
        model=model,
        provider="main",
        provider_wire=Wire.CHAT,
        status=200,
        end=TurnEnd.COMPLETED,
        error=None,
        exchange=Exchange(request=b'{"model": "m-1"}', said=b'{"id": "x"}'),
        finish=Finish.STOP,
        usage=Usage(input_tokens=11, output_tokens=7),
        tokens=None,
        times=Times(received_at=datetime.now(UTC), first_byte_s=0.1, duration_s=0.25),
    )


@contextmanager
def store(home: Path) -> Iterator[Database]:
    """The home's own database."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    database = open_database(f"sqlite:///{home}/ledger.db")
    try:
        yield database
    finally:
        database.close()


def record(home: Path, *turns: Turn) -> None:
    """Put turns into the store as a proxy does."""

    async def run() -> None:
        with store(home) as database:
            ledger = SqlLedger(database, LedgerLimits(patience_s=60))
            await ledger.start()
            for one in turns:
                assert await ledger.record(one)
            await ledger.aclose()

    anyio.run(run)


def skill(name: str, **wanted: object) -> Skill:
    """A skill as an evolver writes it."""
    facts: dict[str, object] = {
        "scope": "user:ann",
        "author": Authorship.EVOLVER,
        "trigger": "When writing release notes with dates",
        "body": "1. Find the dates.\n2. Write them as YYYY-MM-DD.\n\nDo not use month names.",
    }
    return Skill(SkillName(name), **{**facts, **wanted})  # type: ignore[arg-type]


def candidate(
    made: Skill,
    taught_by: TurnId,
    standing: Standing = Standing.WAITING,
    reason: str = "it adds a host",
) -> Candidate:
    """A candidate at the gate."""
    proposal = Proposal(made, Change.NEW, (), (taught_by,), "dates", "some-model")
    return Candidate(
        CandidateId(f"c_{made.name}"), proposal, standing, reason, 1, datetime.now(UTC)
    )


def keep(home: Path, *candidates: Candidate) -> None:
    """Put candidates into the store; the skills of those that were accepted are in force, as files
    and as a generation.
    """
    with store(home) as database:
        library = SkillLibrary(home / "skills", SqlGenerations(database))
        library.sync()
        for one in candidates:
            SqlCandidates(database).save_candidate(one)
            if one.standing is Standing.ACCEPTED:
                library.publish([one.proposal.skill], (), f"learned {one.proposal.skill.name}")
