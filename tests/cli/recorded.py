"""A home with something in it, for commands that read the store: turns, verdicts, a skill and the
candidate it came from.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
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
from metaclaw.domain.skill import Authorship, Lesson, Rule, Skill
from metaclaw.domain.turn import (
    Exchange,
    Placement,
    Scope,
    Stamp,
    Times,
    Turn,
    TurnEnd,
    TurnKind,
)
from metaclaw.skills import SkillLibrary, render_lesson
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


def asking(session: SessionId, words: str) -> Turn:
    """A turn in which a person says these words."""
    body = json.dumps({"model": "m-1", "messages": [{"role": "user", "content": words}]}).encode()
    return replace(turn(session), exchange=Exchange(request=body, said=b"{}"))


def stated(name: str, text: str, taught_by: TurnId) -> Candidate:
    """A rule that two readings of a person's words disagree about."""
    rule = Rule(SkillName(name), "always", text, scope="user:ann", applies_always=True)
    return candidate(rule, taught_by, reason="a second reading disagrees: it was a joke")


def lesson(name: str, text: str, **wanted: object) -> Lesson:
    """A lesson about test runs that do not find their modules."""
    facts: dict[str, object] = {
        "author": Authorship.EVOLVER,
        "scope": "user:ann",
        "applies_always": True,
        "signatures": ("shell: ModuleNotFoundError",),
    }
    return Lesson(SkillName(name), "always", text, **{**facts, **wanted})  # type: ignore[arg-type]


def helped_by(made: Lesson, session: SessionId, generation: int) -> Turn:
    """A turn whose request holds a failed call, behind whose result this lesson was placed."""
    call = {"name": "shell", "arguments": json.dumps({"command": "pytest -q"})}
    messages = [
        {"role": "user", "content": "Run the tests."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_7", "type": "function", "function": call}],
        },
        {
            "role": "tool",
            "tool_call_id": "call_7",
            "content": "ModuleNotFoundError: No module named 'app'",
        },
    ]
    body = json.dumps({"model": "m-1", "messages": messages}).encode()
    placed = Placement.behind_result("call_7", made.name, render_lesson(made))
    return replace(
        turn(session),
        stamp=Stamp(generation, 0, "", (made.name,)),
        exchange=Exchange(request=body, said=b"{}"),
        placements=(placed,),
    )
