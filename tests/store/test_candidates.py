"""Attempts give their turns a role for ever; candidates are kept with all that was decided about
them.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from metaclaw.domain.candidate import (
    Candidate,
    CandidateId,
    Change,
    Proposal,
    Standing,
)
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Authorship, Skill
from metaclaw.domain.training import RoleKind, TurnRole
from metaclaw.domain.turn import Turn
from metaclaw.store import Database, LedgerReader, RefusedError, SqlCandidates, SqlLedger

pytestmark = pytest.mark.anyio
TurnMaker = Callable[..., Turn]
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
ODD = "said \x00 \ud800 \x1a0000 é"


@pytest.fixture
def store(database: Database) -> SqlCandidates:
    return SqlCandidates(database, clock=lambda: NOON)


def candidate(name: str, *support: str, **fields: object) -> Candidate:
    skill = Skill(
        SkillName(name),
        f"when {ODD}",
        f"Do {ODD}",
        "habits",
        "user:ada",
        author=Authorship.EVOLVER,
        check=ODD,
        other={"tags": {"pattern": ODD}},
    )
    proposal = Proposal(
        skill,
        Change.NEW,
        (),
        tuple(TurnId(turn) for turn in support or ("t_0",)),
        ODD,
        "evolver-1",
        is_instruction=True,
    )
    made = Candidate(CandidateId(f"c_{name}"), proposal, Standing.DRAFT, "just made", 3, NOON)
    return replace(made, **fields)  # type: ignore[arg-type]


async def record(ledger: SqlLedger, *turns: Turn) -> None:
    assert all(await asyncio.gather(*(ledger.record(turn) for turn in turns)))


def test_an_empty_store_knows_nothing(store: SqlCandidates) -> None:
    assert store.candidates() == []
    assert store.candidate(CandidateId("c_nobody")) is None


async def test_the_turns_of_an_attempt_are_support_for_ever(
    ledger: SqlLedger, store: SqlCandidates, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    turns = [new_turn() for _ in range(4)]
    await record(ledger, *turns)
    store.begin_attempt("repeated call", 3, [turn.id for turn in turns[:2]])
    assert [reader.role_of(turn.id) for turn in turns] == [TurnRole(RoleKind.SUPPORT, 3)] * 2 + [
        None
    ] * 2
    with pytest.raises(RefusedError):
        store.begin_attempt("the same again", 4, [turns[2].id, turns[1].id])
    assert reader.role_of(turns[2].id) is None
    assert reader.role_of(turns[1].id) == TurnRole(RoleKind.SUPPORT, 3)
    counts = reader.learning_counts()
    assert (counts.support, counts.query) == (2, 0)


@pytest.mark.parametrize("wanted", [[], ["t_unknown"], ["known", "t_unknown"]])
async def test_an_attempt_on_turns_that_are_not_there_is_none(
    ledger: SqlLedger,
    store: SqlCandidates,
    reader: LedgerReader,
    new_turn: TurnMaker,
    wanted: list[str],
) -> None:
    await record(ledger, new_turn(id=TurnId("known")))
    with pytest.raises(RefusedError):
        store.begin_attempt("kind", 0, [TurnId(turn) for turn in wanted])
    assert reader.learning_counts().support == 0


async def test_a_turn_named_twice_in_an_attempt_is_one_turn(
    ledger: SqlLedger, store: SqlCandidates, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    turn = new_turn()
    await record(ledger, turn)
    store.begin_attempt("kind", 0, [turn.id, turn.id])
    assert reader.learning_counts().support == 1


def test_a_candidate_is_read_back_as_it_was(store: SqlCandidates) -> None:
    made = candidate("wash-hands", "t_1", "t_2", reason=ODD)
    store.save_candidate(made)
    assert store.candidate(made.id) == made


def test_a_candidate_moves_on_and_events_say_what_it_became(
    store: SqlCandidates, reader: LedgerReader
) -> None:
    made = candidate("wash-hands")
    waiting = replace(made, standing=Standing.WAITING, reason="lint passed")
    accepted = replace(made, standing=Standing.ACCEPTED, reason="proven")
    for state in (
        made,
        waiting,
        accepted,
        replace(accepted, proposal=candidate("another").proposal),
    ):
        store.save_candidate(state)
    assert store.candidate(made.id) == accepted
    past = [(event.kind, event.data["standing"], event.data["reason"]) for event in reader.events()]
    assert past == [
        ("candidate.changed", "waiting", "lint passed"),
        ("candidate.changed", "accepted", "proven"),
        ("candidate.changed", "accepted", "proven"),
    ]


def test_candidates_come_newest_first_and_by_standing(
    store: SqlCandidates, reader: LedgerReader
) -> None:
    made = [
        candidate(f"skill-{number}", made_at=NOON + timedelta(seconds=number))
        for number in range(4)
    ]
    made[1] = replace(made[1], standing=Standing.REJECTED)
    for one in made:
        store.save_candidate(one)
    assert store.candidates() == list(reversed(made))
    assert store.candidates(limit=1) == [made[3]]
    assert store.candidates(Standing.REJECTED) == [made[1]]
    assert store.candidates(Standing.WAITING) == []
    counts = reader.learning_counts().candidates
    assert {standing.value: count for standing, count in counts.items()} == {
        "draft": 3,
        "waiting": 0,
        "accepted": 0,
        "rejected": 1,
    }


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE roles SET kind = 'query', attempt = NULL",
        "UPDATE roles SET generation = 9",
        "DELETE FROM roles",
        "INSERT INTO roles (turn, kind, generation) SELECT seq, 'support', 0 FROM turns",
        "INSERT INTO roles (turn, kind, generation) SELECT seq, 'query', 0 FROM turns",
        "INSERT INTO roles (turn, kind, generation) SELECT 99, 'query', 0 FROM turns",
    ],
)
async def test_the_database_itself_gives_a_role_once(
    ledger: SqlLedger,
    store: SqlCandidates,
    reader: LedgerReader,
    database: Database,
    new_turn: TurnMaker,
    statement: str,
) -> None:
    turn = new_turn()
    await record(ledger, turn)
    store.begin_attempt("kind", 0, [turn.id])
    with pytest.raises(RefusedError):
        with database.writing("cheating") as connection:
            connection.execute(text(statement))
    assert reader.role_of(turn.id) == TurnRole(RoleKind.SUPPORT, 0)
