"""A proposal becomes a skill only through the gate, and never overwrites what a person has written
or decided meanwhile.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from metaclaw.domain.candidate import Candidate, Change, Objection, Proposal, Standing
from metaclaw.domain.chat import Json
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.domain.turn import Scope
from metaclaw.domain.verdict import Outcome
from metaclaw.errors import SkillError
from metaclaw.skills import Gate, GateMode
from metaclaw.store import SqlForgetting
from tests.learn.learning import (
    ADA,
    CORRECTION,
    DATES,
    TASK,
    ScriptedLearning,
    Talk,
    learned_skill,
)

pytestmark = pytest.mark.anyio
NewLearning = Callable[..., Awaitable[ScriptedLearning]]
SECRET = "sk-proj-" + "Zk3vQ9xT7bLm2Rw8Yc5N" * 2
RULE = "From now on, always write changelog release dates as YYYY-MM-DD."


def dates(**fields: object) -> Skill:
    """The skill that would have helped, as a draft."""
    skill = learned_skill(
        "iso-release-dates", trigger=DATES["trigger"], body=DATES["body"], state=SkillState.DRAFT
    )
    return replace(skill, **fields)  # type: ignore[arg-type]


async def teacher(learning: ScriptedLearning, scope: Scope = ADA) -> TurnId:
    """A turn that failed, in which the person said what was wrong; it is support."""
    talk = Talk(learning, scope)
    turn = await talk.say(TASK.format(1))
    await talk.say(CORRECTION, "Released on 2026-02-01.")
    learning.say(turn, Outcome.FAIL)
    learning.candidates.begin_attempt("dates", learning.library.view.generation, [turn])
    return turn


async def admit(
    learning: ScriptedLearning,
    skill: Skill,
    *support: TurnId,
    generation: int | None = None,
    **fields: object,
) -> Candidate:
    turns = support or (await teacher(learning),)
    proposal = replace(Proposal(skill, Change.NEW, (), turns, "dates", "world/evolver"), **fields)  # type: ignore[arg-type]
    await learning.admission.admit(proposal, generation=generation)
    return learning.candidates.candidates()[0]


@pytest.mark.parametrize("gate", [GateMode.OFF, GateMode.LINT])
async def test_a_sound_proposal_is_live_at_once(new_learning: NewLearning, gate: GateMode) -> None:
    learning = await new_learning(gate=gate)
    candidate = await admit(learning, dates())
    assert candidate.standing is Standing.ACCEPTED
    assert learning.skill("iso-release-dates").state is SkillState.LIVE


async def test_a_vague_draft_is_turned_away_unless_the_gate_is_off(
    new_learning: NewLearning,
) -> None:
    vague = dates(
        trigger="Whenever needed", body="Be careful with the release dates of the changelog."
    )
    learning = await new_learning(gate=GateMode.LINT)
    candidate = await admit(learning, vague)
    assert (candidate.standing, learning.names) == (Standing.REJECTED, [])
    assert "vague" in candidate.reason


async def test_with_the_gate_off_the_draft_is_not_read_for_style(new_learning: NewLearning) -> None:
    learning = await new_learning(gate=GateMode.OFF)
    candidate = await admit(
        learning, dates(body="Write release dates in the changelog as YYYY-MM-DD.")
    )
    assert candidate.standing is Standing.ACCEPTED


async def test_the_same_text_again_is_rejected(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    await admit(learning, dates())
    again = await admit(learning, dates())
    assert (again.standing, again.reason) == (
        Standing.REJECTED,
        "iso-release-dates is in force already",
    )


async def test_a_candidate_older_than_a_revert_is_dropped(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    support = await teacher(learning)
    learning.put_in_force("something")
    learning.library.revert(0)
    candidate = await admit(learning, dates(), support, generation=0)
    assert candidate.standing is Standing.REJECTED
    assert "reverted" in candidate.reason


async def test_a_name_that_a_person_has_taken_is_theirs_and_the_learned_skill_gets_a_number(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    support = await teacher(learning)
    own = Skill(SkillName("iso-release-dates"), "When I say so", "My own words.")
    learning.write_by_hand(own)
    candidate = await admit(learning, dates(), support)
    assert candidate.standing is Standing.ACCEPTED
    assert candidate.proposal.skill.name == "iso-release-dates-2"
    assert learning.skill("iso-release-dates").body == "My own words."


async def test_an_edit_of_what_a_person_has_changed_is_turned_away(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    support = await teacher(learning)
    learning.put_in_force("iso-release-dates", trigger=DATES["trigger"], body=DATES["body"])
    path = learning.library.folder / "iso-release-dates" / "SKILL.md"
    path.write_text(path.read_text() + "\nAnd a word of mine.\n")
    edited = dates(body=f"{DATES['body']}\n- Check the year twice.")
    candidate = await admit(learning, edited, support, change=Change.EDIT, replaces=(edited.name,))
    assert candidate.standing is Standing.REJECTED
    assert "And a word of mine." in path.read_text()
    assert learning.skill("iso-release-dates").author is Authorship.PERSON


async def test_an_edit_keeps_what_was_said_before_and_is_not_asked_who_said_it(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    before = (
        "1. Sort the contributors by their family name.\n2. Write each entry in the past"
        " tense.\n\nDo not thank anybody twice."
    )
    learning.put_in_force("changelog-entries", trigger=DATES["trigger"], body=before)
    support = await teacher(learning)
    edited = learned_skill(
        "changelog-entries",
        trigger=DATES["trigger"],
        body=f"{before}\n\n- Write each release date as YYYY-MM-DD.",
        state=SkillState.DRAFT,
    )
    candidate = await admit(learning, edited, support, change=Change.EDIT, replaces=(edited.name,))
    assert candidate.standing is Standing.ACCEPTED, candidate.reason


async def test_reach_waits_for_a_person_and_the_person_may_let_it_pass(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    waiting = dates(
        body=f"{DATES['body']}\n- Release dates are listed on https://dates.example/releases."
    )
    candidate = await admit(learning, waiting)
    assert candidate.standing is Standing.WAITING, candidate.reason
    assert learning.names == []
    assert [kind for kind, data in learning.told if data.get("candidate") == candidate.id] == [
        "notice"
    ]
    approved = await learning.owner.decide(candidate.id, approved=True)
    assert approved is not None
    assert (approved.standing, learning.names) == (Standing.ACCEPTED, ["iso-release-dates"])
    with pytest.raises(SkillError, match="does not wait"):
        await learning.owner.decide(candidate.id, approved=True)


async def test_a_person_may_turn_a_waiting_candidate_away(new_learning: NewLearning) -> None:
    learning = await new_learning()
    waiting = dates(
        body=f"{DATES['body']}\n- Release dates are listed on https://dates.example/releases."
    )
    candidate = await admit(learning, waiting)
    decided = await learning.owner.decide(candidate.id, approved=False)
    assert decided is not None
    assert (decided.standing, learning.names) == (Standing.REJECTED, [])


async def test_a_double_click_approves_once(new_learning: NewLearning) -> None:
    learning = await new_learning()
    waiting = dates(
        body=f"{DATES['body']}\n- Release dates are listed on https://dates.example/releases."
    )
    candidate = await admit(learning, waiting)
    await learning.admission.decide(candidate, approved=True)
    await learning.admission.decide(candidate, approved=True)
    assert learning.names == ["iso-release-dates"]


def everything_kept(learning: ScriptedLearning) -> str:
    """All that is written down of candidates and events, in full."""
    with learning.database.reading("looking") as connection:
        rows = [
            *connection.exec_driver_sql("SELECT * FROM candidates"),
            *connection.exec_driver_sql("SELECT * FROM events"),
        ]
    return "\n".join(str(tuple(row)) for row in rows) + str(learning.told)


async def test_a_secret_is_in_nothing_that_is_kept_or_told(new_learning: NewLearning) -> None:
    learning = await new_learning(gate=GateMode.OFF)
    leaking = dates(body=f"{DATES['body']}\n- Use the key {SECRET}.", check=f"pattern: {SECRET}")
    candidate = await admit(learning, leaking)
    assert candidate.standing is Standing.REJECTED
    assert candidate.id in everything_kept(learning)
    assert SECRET not in everything_kept(learning)
    assert learning.names == []


@pytest.mark.parametrize("waits", [True, False])
async def test_whoever_objects_may_quote_a_secret_and_it_is_not_kept(
    new_learning: NewLearning, waits: bool
) -> None:
    learning = await new_learning(gate=GateMode.OFF)
    quoting = Gate(GateMode.OFF, [lambda proposal: [Objection(f"it says {SECRET}", waits=waits)]])
    learning.admission = replace(learning.admission, gate=quoting)
    candidate = await admit(learning, dates())
    assert candidate.reason.startswith("it says <API_KEY")
    assert SECRET not in everything_kept(learning)


async def test_a_program_killed_between_publishing_and_writing_it_down_does_not_publish_twice(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    candidate = await admit(learning, dates())
    generation = learning.library.view.generation
    learning.candidates.save_candidate(replace(candidate, standing=Standing.DRAFT))
    learning.restart()
    await learning.take_up_again()
    assert learning.only_candidate().standing is Standing.ACCEPTED
    assert (learning.library.view.generation, learning.names) == (generation, ["iso-release-dates"])


async def test_a_skill_whose_teacher_is_forgotten_while_it_is_published_does_not_stay(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    talk = Talk(learning)
    turn = await talk.say(TASK.format(1))
    await talk.say(CORRECTION, "Released on 2026-02-01.")
    publish = learning.library.publish

    def forget_then_publish(*given: object, **named: object) -> object:
        forgetting = SqlForgetting(learning.database)
        forgetting.forget_session(talk.session)
        assert forgetting.erase("a session was forgotten")
        return publish(*given, **named)  # type: ignore[arg-type]

    learning.library.publish = forget_then_publish  # type: ignore[method-assign,assignment]
    proposal = Proposal(dates(), Change.NEW, (), (turn,), "dates", "world/evolver")
    await learning.admission.admit(proposal)
    assert (learning.names, learning.candidates.candidates()) == ([], [])


async def test_a_person_who_changes_a_skill_while_it_is_withdrawn_keeps_it(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    skill = learning.put_in_force("iso-release-dates")
    path = learning.library.folder / skill.name / "SKILL.md"
    path.write_text(path.read_text() + "\nMine now.\n")
    assert not await learning.admission.retire(skill, "not proven")
    assert learning.skill("iso-release-dates").author is Authorship.PERSON


async def test_every_publication_is_an_event(new_learning: NewLearning) -> None:
    learning = await new_learning()
    await admit(learning, dates())
    events: list[dict[str, Json]] = [
        event.data for event in learning.reader.events() if event.kind == "generation"
    ]
    assert [event["put"] for event in events] == [["iso-release-dates"]]
