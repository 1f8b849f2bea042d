"""Skills that did not help and unused ones are retired, and a person's rules and skills stay."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from metaclaw.domain.candidate import Candidate, CandidateId, Change, Proposal, Standing
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.domain.turn import Scope, TurnKind
from metaclaw.domain.verdict import Outcome
from metaclaw.learn.maintenance import ScopeMembers, members_of_scope
from tests.learn.learning import (
    CORRECTION,
    NOON,
    TASK,
    ScriptedLearning,
    Talk,
    learned_skill,
)

pytestmark = pytest.mark.anyio
NewLearning = Callable[..., Awaitable[ScriptedLearning]]
NAME = "iso-release-dates"


async def turns_with(learning: ScriptedLearning, name: str, *, passed: int, failed: int) -> None:
    """Turns with a skill in their prompt, and what came of them."""
    for number in range(passed + failed):
        turn = await Talk(learning).say(TASK.format(number), skills=(name,))
        learning.say(turn, Outcome.PASS if number < passed else Outcome.FAIL)


async def taught(learning: ScriptedLearning, skill: Skill) -> Skill:
    """A learned skill in force that came through the gate."""
    talk = Talk(learning, Scope((skill.scope or "user:ada").removeprefix("user:")))
    turn = await talk.say(TASK.format(1))
    await talk.say(CORRECTION, "Released on 2026-02-01.")
    learning.say(turn, Outcome.FAIL)
    learning.candidates.begin_attempt("dates", learning.library.view.generation, [turn])
    draft = replace(skill, state=SkillState.DRAFT)
    proposal = Proposal(draft, Change.NEW, (), (turn,), "dates", "world/evolver")
    name = CandidateId(f"c_{skill.name}")
    learning.candidates.save_candidate(
        Candidate(name, proposal, Standing.ACCEPTED, "the draft has no faults", 0, NOON)
    )
    learning.library.publish([skill], (), f"learned {skill.name}")
    return learning.skill(skill.name)


async def test_a_skill_that_did_not_help_is_withdrawn_and_it_is_written_down_why(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    await taught(learning, learned_skill(NAME))
    await turns_with(learning, NAME, passed=4, failed=5)
    await learning.tend()
    assert learning.names == []
    assert "it did not help: 5 of 9 turns with it failed" in learning.only_candidate().reason


@pytest.mark.parametrize(("passed", "failed"), [(0, 4), (6, 5)])
async def test_a_skill_that_helps_or_of_which_little_is_known_stays(
    new_learning: NewLearning, passed: int, failed: int
) -> None:
    learning = await new_learning()
    learning.put_in_force(NAME)
    await turns_with(learning, NAME, passed=passed, failed=failed)
    await learning.tend()
    assert learning.names == [NAME]


async def test_what_happened_with_another_text_of_this_name_does_not_count(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    learning.put_in_force(NAME)
    await turns_with(learning, NAME, passed=0, failed=9)
    learning.put_in_force(NAME, body="1. Something else.\n2. Entirely.\n\nDo not do it.")
    await learning.tend()
    assert learning.names == [NAME]


@pytest.mark.parametrize("fields", [{"author": Authorship.PERSON}, {"pinned": True}])
async def test_what_a_person_wrote_or_pinned_is_never_touched(
    new_learning: NewLearning, fields: dict[str, object]
) -> None:
    learning = await new_learning()
    learning.library.publish([learned_skill(NAME, **fields)], (), "by hand", by_person=True)
    await turns_with(learning, NAME, passed=0, failed=20)
    generation = learning.library.view.generation
    learning.clock.pass_by(days=400)
    for _ in range(2):
        await learning.tend()
        learning.clock.pass_by(days=1)
    assert (learning.names, learning.library.view.generation) == ([NAME], generation)


async def idle(
    learning: ScriptedLearning, days: float = 91, scope: Scope | None = None, work: int = 500
) -> None:
    """Time goes by in which people work at other things."""
    await learning.tend()
    learning.clock.pass_by(days=days)
    talk = Talk(learning, scope or Scope("ada"))
    for number in range(work):
        await talk.say(f"Sort list {number}.", "Sorted.")
        talk.agent.messages.clear()
    await learning.tend()
    learning.clock.pass_by(days=1)
    await learning.tend()


async def test_a_skill_that_nothing_asked_for_in_a_long_and_busy_time_is_retired(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    learning.put_in_force(NAME)
    await idle(learning)
    assert learning.names == []
    event = next(
        event
        for event in learning.reader.events()
        if event.kind == "generation" and event.data["gone"]
    )
    assert "no task has matched it for" in str(event.data["reason"])


async def test_a_skill_that_matched_meanwhile_stays(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    learning.put_in_force(NAME)
    await learning.tend()
    learning.clock.pass_by(days=91)
    talk = Talk(learning)
    await talk.say(TASK.format(1), skills=(NAME,))
    await idle(learning, days=0)
    assert learning.names == [NAME]
    assert learning.uses.uses_of([SkillName(NAME)])[SkillName(NAME)].times == 1


async def test_a_quiet_time_makes_nothing_stale(new_learning: NewLearning) -> None:
    learning = await new_learning()
    learning.put_in_force(NAME)
    await idle(learning, work=20)
    assert learning.names == [NAME]


async def test_work_of_others_makes_nobodys_skill_stale(new_learning: NewLearning) -> None:
    learning = await new_learning()
    learning.put_in_force(NAME, scope="user:ada")
    await idle(learning, scope=Scope("bob"))
    assert learning.names == [NAME]


async def test_an_instruction_does_not_go_stale(new_learning: NewLearning) -> None:
    learning = await new_learning()
    learning.put_in_force(NAME, author=Authorship.INSTRUCTION)
    await idle(learning)
    assert learning.names == [NAME]


async def test_a_name_that_comes_back_begins_to_age_anew(new_learning: NewLearning) -> None:
    learning = await new_learning()
    learning.put_in_force(NAME)
    await learning.tend()
    learning.library.retire(SkillName(NAME))
    await idle(learning)
    learning.put_in_force(NAME)
    learning.clock.pass_by(days=1)
    await learning.tend()
    assert learning.names == [NAME]


def test_whose_a_scope_is() -> None:
    teams = {"web": ("ada", "bob")}
    assert members_of_scope(None, teams) == ScopeMembers()
    assert members_of_scope("owner", teams) == ScopeMembers(users=(None,))
    assert members_of_scope("user:ada", teams) == ScopeMembers(users=("ada",))
    assert members_of_scope("workspace:lab", teams) == ScopeMembers(workspaces=("lab",))
    assert members_of_scope("team:web", teams) == ScopeMembers(users=("ada", "bob"))
    assert members_of_scope("team:gone", teams) == ScopeMembers(users=())
    assert members_of_scope("ada", teams) == ScopeMembers(users=("ada",), workspaces=("ada",))


async def test_uses_are_counted_once_whoever_counts_and_however_often(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    learning.put_in_force(NAME)
    talk = Talk(learning)
    await talk.say(TASK.format(1), skills=(NAME,))
    await talk.say("A title, please.", skills=(NAME,), kind=TurnKind.SIDE)
    await learning.tend()
    learning.uses.note(learning.reader.turns_after(0))
    learning.restart()
    await learning.tend()
    assert learning.uses.uses_of([SkillName(NAME)])[SkillName(NAME)].times == 1


async def test_skills_are_retired_once_a_day_over_restarts_too(new_learning: NewLearning) -> None:
    learning = await new_learning()
    far_ahead = 400 * 24
    days = []
    for hours in (0, 1, 22, 1.5, 24, far_ahead, 1 - far_ahead, 1):
        learning.clock.pass_by(hours=hours)
        learning.restart()
        learning.put_in_force(NAME)
        await turns_with(learning, NAME, passed=0, failed=5)
        await learning.tend()
        days.append(learning.names == [])
    # Also once the clock is right again.
    assert days == [True, False, False, True, True, True, True, False]
