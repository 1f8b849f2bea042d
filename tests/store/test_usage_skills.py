"""When skills were last needed, counted once; and attempts that were interrupted are known to
be.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from metaclaw.domain.candidate import Candidate, CandidateId, Change, Proposal, Standing
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Authorship, Skill
from metaclaw.domain.turn import Scope, Stamp, Times, Turn, TurnKind
from metaclaw.store import (
    Database,
    LedgerReader,
    SkillAttempt,
    SkillUse,
    SqlCandidates,
    SqlGenerations,
    SqlLedger,
    SqlUses,
)
from tests.store.conftest import MOMENT

pytestmark = pytest.mark.anyio
TurnMaker = Callable[..., Turn]
A, B = SkillName("a"), SkillName("b")


@pytest.fixture
def in_force(database: Database) -> None:
    """Only skills of a generation are counted: of one that was forgotten not even the name is
    kept.
    """
    SqlGenerations(database).publish([Skill(name, "when", "do") for name in (A, B)], "by hand")


def at(minutes: float) -> Times:
    return Times(MOMENT + timedelta(minutes=minutes), 0.1, 0.2)


def placed(*names: SkillName) -> Stamp:
    return Stamp(1, 0, "h", names)


async def record(ledger: SqlLedger, *turns: Turn) -> None:
    for turn in turns:
        assert await ledger.record(turn)


@pytest.mark.usefixtures("in_force")
async def test_a_skill_is_used_where_a_main_turn_has_it(
    ledger: SqlLedger, reader: LedgerReader, database: Database, new_turn: TurnMaker
) -> None:
    await record(
        ledger,
        new_turn(stamp=placed(A), times=at(1)),
        new_turn(stamp=placed(A), times=at(2)),
        new_turn(stamp=placed(A, B), times=at(3), kind=TurnKind.SIDE),
    )
    uses = SqlUses(database)
    uses.note(reader.turns_after(uses.cursor()))
    assert uses.uses_of([A, B, SkillName("c")]) == {
        A: SkillUse(at(2).received_at, 2),
    }
    assert uses.cursor() == reader.turns_after(0)[-1].seq


@pytest.mark.usefixtures("in_force")
async def test_what_was_counted_is_not_counted_again(
    ledger: SqlLedger, reader: LedgerReader, database: Database, new_turn: TurnMaker
) -> None:
    uses = SqlUses(database)
    await record(ledger, new_turn(stamp=placed(A), times=at(1)))
    for _ in range(3):
        uses.note(reader.turns_after(0))
    await record(ledger, new_turn(stamp=placed(A), times=at(5)))
    uses.note(reader.turns_after(0))
    uses.note([])
    assert uses.uses_of([A]) == {A: SkillUse(at(5).received_at, 2)}


async def test_tasks_are_counted_by_who_works(
    ledger: SqlLedger, database: Database, new_turn: TurnMaker
) -> None:
    ada, bob, nobody = Scope("ada", "lab"), Scope("bob", "lab"), Scope(None, "attic")
    await record(
        ledger,
        new_turn("s_1", scope=ada, times=at(1), segment=0),
        new_turn("s_1", scope=ada, times=at(11), segment=1),
        new_turn("s_1", scope=ada, times=at(12), segment=1),
        new_turn("s_1", scope=ada, times=at(13), segment=2, kind=TurnKind.SIDE),
        new_turn("s_2", scope=bob, times=at(14), segment=0),
        new_turn("s_2", scope=bob, times=at(15), segment=1),
        new_turn("s_3", scope=nobody, times=at(16), segment=0),
        new_turn("s_4", scope=bob, times=at(2), segment=0),
    )
    uses, since = SqlUses(database), at(10).received_at
    assert uses.tasks_since(since, 100) == 4
    assert uses.tasks_since(since, 3) == 3
    assert uses.tasks_since(since, 100, users=["ada"]) == 1
    assert uses.tasks_since(since, 100, users=["ada", "bob"]) == 3
    assert uses.tasks_since(since, 100, users=[]) == 0
    assert uses.tasks_since(since, 100, workspaces=["attic"]) == 1
    assert uses.tasks_since(since, 100, users=[None]) == 1
    assert uses.tasks_since(at(0).received_at, 100, users=["bob"]) == 3


async def test_an_attempt_of_which_nothing_came_yet_is_interrupted(
    ledger: SqlLedger, database: Database, new_turn: TurnMaker
) -> None:
    candidates = SqlCandidates(database)
    turns = [new_turn() for _ in range(4)]
    await record(ledger, *turns)
    ended, taught, left = (
        candidates.begin_attempt(f"kind {number} \x00", 3, [turn.id for turn in some])
        for number, some in enumerate((turns[:1], turns[1:2], turns[2:]))
    )
    candidates.end_attempt(ended)
    candidates.end_attempt(ended)
    proposal = Proposal(
        Skill(A, "when", "how", author=Authorship.EVOLVER),
        Change.NEW,
        (),
        (turns[1].id,),
        "kind",
        "evolver",
    )
    candidates.save_candidate(
        Candidate(CandidateId("c_1"), proposal, Standing.DRAFT, "", 3, MOMENT)
    )
    assert taught < left
    assert candidates.interrupted() == [
        SkillAttempt(left, "kind 2 \x00", 3, (turns[2].id, turns[3].id))
    ]


async def test_the_candidates_of_a_skill_are_found_by_its_name(database: Database) -> None:
    candidates = SqlCandidates(database)
    for number, name in enumerate(("a", "other", "a")):
        skill = Skill(SkillName(name), "when", f"how {number}", author=Authorship.EVOLVER)
        proposal = Proposal(skill, Change.NEW, (), (TurnId(f"t_{number}"),), "kind", "evolver")
        made_at = MOMENT + timedelta(seconds=number)
        candidates.save_candidate(
            Candidate(CandidateId(f"c_{number}"), proposal, Standing.REJECTED, "", 0, made_at)
        )
    assert [one.id for one in candidates.candidates(name=A)] == ["c_2", "c_0"]
    assert candidates.candidates(name=SkillName("nobodys")) == []


async def test_since_when_a_skill_is_what_it_is(database: Database) -> None:
    now = [MOMENT]
    generations = SqlGenerations(database, lambda: now[0])
    live, other = Skill(A, "when", "how"), Skill(SkillName("z"), "when", "how")
    pinned, edited = replace(live, pinned=True), replace(live, body="how else")
    story: list[tuple[list[Skill], tuple[int, int] | None]] = [
        ([live], (1, 1)),
        ([live, other], (1, 1)),
        ([pinned], (3, 1)),
        ([edited], (4, 4)),
        ([], None),
        ([edited], (6, 6)),
    ]
    assert generations.in_force(A) is None
    for minutes, (skills, expected) in enumerate(story):
        now[0] = MOMENT + timedelta(minutes=minutes)
        generations.publish(skills, "")
        found = generations.in_force(A)
        assert (None if found is None else (found.generation, found.text_since)) == expected
        if found is not None and found.generation == minutes + 1:
            assert found.since == now[0]
