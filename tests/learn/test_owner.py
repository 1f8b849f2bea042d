"""A person's commands: feedback on a turn, retire and revert skills, forget a session."""

from collections.abc import Awaitable, Callable

import pytest

from metaclaw.domain.candidate import CandidateId
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import Scope
from metaclaw.domain.verdict import Outcome, Source
from metaclaw.errors import SkillError
from metaclaw.skills import GateMode
from tests.learn.learning import CORRECTION, DATES, TASK, ScriptedLearning, Speaker, Talk

pytestmark = pytest.mark.anyio
NewLearning = Callable[..., Awaitable[ScriptedLearning]]
NAME = "iso-release-dates"


async def learned(learning: ScriptedLearning) -> Talk:
    """A session that has taught a skill."""
    learning.evolver = Speaker("world/evolver", lambda prompt: {"skills": [DATES]})
    talk = Talk(learning)
    await talk.say(TASK.format(1))
    await talk.say(CORRECTION, "Released on 2026-02-01.")
    await learning.live()
    assert learning.names == [NAME]
    return talk


async def test_feedback_is_a_verdict_with_the_persons_words_and_an_event(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    turn = await Talk(learning).say(TASK.format(1))
    verdict = await learning.owner.feedback(turn, Outcome.FAIL, "  The date is wrong.  ")
    assert verdict == learning.verdict(turn)
    assert (verdict.source, verdict.p_fail, verdict.comment) == (
        Source.USER,
        1.0,
        "The date is wrong.",
    )
    assert learning.told == [("feedback", {"turn": turn, "outcome": "fail"})]


async def test_a_complaint_is_learned_from_at_once(new_learning: NewLearning) -> None:
    learning = await new_learning(
        evolver=Speaker("world/evolver", lambda prompt: {"skills": [DATES]}), min_failures=1000
    )
    turn = await Talk(learning).say(TASK.format(1))
    await learning.owner.feedback(
        turn, Outcome.FAIL, "Release dates in the changelog must be written as YYYY-MM-DD."
    )
    assert learning.fast.wakeup._event.is_set()
    await learning.learn()
    assert learning.names == [NAME]


async def test_praise_teaches_nothing_and_knows_what_it_means(new_learning: NewLearning) -> None:
    learning = await new_learning()
    turn = await Talk(learning).say(TASK.format(1))
    passed = await learning.owner.feedback(turn, Outcome.PASS, "")
    assert passed is not None
    assert passed.p_fail == 0.0
    unknown = await learning.owner.feedback(turn, Outcome.UNKNOWN, "I take that back.")
    assert unknown is not None
    assert (unknown.p_fail, learning.outcome(turn)) == (None, Outcome.UNKNOWN)
    assert not learning.fast.wakeup._event.is_set()


async def test_of_a_turn_that_does_not_exist_nothing_can_be_said(new_learning: NewLearning) -> None:
    learning = await new_learning()
    assert await learning.owner.feedback(TurnId("t_nobody"), Outcome.FAIL, "") is None
    assert learning.told == []


async def test_a_person_may_retire_what_was_learned_and_it_is_written_down(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    await learned(learning)
    before = learning.library.view.generation
    assert await learning.owner.retire(SkillName(NAME)) == before + 1
    assert learning.names == []
    assert learning.only_candidate().reason == f"a person retired {NAME}"
    with pytest.raises(SkillError, match="no skill named"):
        await learning.owner.retire(SkillName(NAME))


async def test_a_person_may_retire_what_a_person_wrote(new_learning: NewLearning) -> None:
    learning = await new_learning()
    learning.write_by_hand(Skill(SkillName("mine"), "When I say so", "My own words."))
    await learning.owner.retire(SkillName("mine"))
    assert learning.names == []


async def test_going_back_and_forth_between_generations(new_learning: NewLearning) -> None:
    learning = await new_learning()
    await learned(learning)
    now = learning.library.view.generation
    assert await learning.owner.revert(now - 1) == now + 1
    assert learning.names == []
    assert await learning.owner.revert(now) == now + 2
    assert learning.names == [NAME]
    with pytest.raises(SkillError, match="no generation"):
        await learning.owner.revert(99)


async def test_what_was_reverted_is_not_learned_again_from_the_same_failure(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    await learned(learning)
    await learning.owner.revert(0)
    await learning.live()
    assert learning.names == []


async def test_forgetting_a_session_takes_back_what_it_taught(new_learning: NewLearning) -> None:
    learning = await new_learning()
    talk = await learned(learning)
    gone = await learning.owner.forget(talk.session)
    assert gone is not None
    assert (gone["turns"], gone["skills"], gone["versions"], gone["purged"]) == (
        2,
        [NAME],
        [],
        True,
    )
    assert learning.names == []
    assert [kind for kind, _ in learning.told] == ["forgotten"]
    assert learning.reader.session(talk.session) is None
    assert all(learning.reader.turn(recorded.turn.id) is None for recorded in talk.agent.turns)


async def test_forgetting_takes_back_candidates_that_wait_for_a_person(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    reaching = {
        **DATES,
        "body": f"{DATES['body']}\n- Release dates are listed on https://dates.example/releases.",
    }
    learning.evolver = Speaker("world/evolver", lambda prompt: {"skills": [reaching]})
    talk = Talk(learning)
    await talk.say(TASK.format(1))
    await talk.say(CORRECTION)
    await learning.live()
    candidate = learning.only_candidate()
    await learning.owner.forget(talk.session)
    assert learning.candidates.candidates() == []
    assert await learning.owner.decide(candidate.id, approved=True) is None
    assert (await learning.admission.decide(candidate, approved=True)).standing == "rejected"
    assert learning.names == []


async def test_forgetting_leaves_what_a_person_has_made_their_own(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    talk = await learned(learning)
    path = learning.library.folder / NAME / "SKILL.md"
    path.write_text(path.read_text() + "\nAnd a word of mine.\n")
    learning.library.sync()
    await learning.owner.forget(talk.session)
    assert learning.names == [NAME]


async def test_forgetting_one_session_leaves_what_others_taught(new_learning: NewLearning) -> None:
    learning = await new_learning()
    await learned(learning)
    other = Talk(learning, Scope("bob"))
    await other.say(TASK.format(2))
    gone = await learning.owner.forget(other.session)
    assert gone is not None
    assert (gone["turns"], gone["skills"], gone["versions"]) == (1, [], [])
    assert learning.names == [NAME]


async def test_forgetting_one_of_two_people_who_said_the_same_leaves_the_other_s_skill_with_its_papers(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    first, second = Talk(learning), Talk(learning, Scope("bob"))
    for talk in (first, second):
        await talk.say(TASK.format(1))
        await talk.say("From now on, always answer in German.")
        await learning.live()
        if talk is first:
            (name,) = map(SkillName, learning.names)
            await learning.owner.retire(name)
    assert learning.names == [name], "the name was free again"
    await learning.owner.forget(first.session)
    assert learning.names == [name]
    papers = learning.candidates.candidates(name=name)
    assert [(one.standing, one.proposal.skill.name) for one in papers] == [("accepted", name)]


async def test_a_session_nobody_knows_cannot_be_forgotten(new_learning: NewLearning) -> None:
    learning = await new_learning()
    assert await learning.owner.forget(SessionId("s_nobody")) is None


async def test_whoever_remembers_something_of_a_forgotten_session_is_told(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    talk = await learned(learning)
    dropped: list[SessionId] = []
    learning.owner.on_forget = dropped.append
    await learning.owner.forget(talk.session)
    assert set(dropped) == {talk.session}


async def test_what_is_known_of_a_skill(new_learning: NewLearning) -> None:
    learning = await new_learning(gate=GateMode.LINT)
    talk = await learned(learning)
    again = await Talk(learning).say(TASK.format(2), skills=(NAME,))
    learning.say(again, Outcome.PASS)
    facts = await learning.owner.skill_facts(SkillName(NAME))
    assert facts.learned_from == (talk.agent.turns[0].turn.id,)
    assert (facts.tally.passed, facts.tally.failed) == (1, 0)


async def test_what_is_known_of_a_persons_own_skill_and_of_none(new_learning: NewLearning) -> None:
    learning = await new_learning()
    learning.write_by_hand(Skill(SkillName("mine"), "When I say so", "My own words."))
    facts = await learning.owner.skill_facts(SkillName("mine"))
    assert facts.learned_from == ()
    nothing = await learning.owner.skill_facts(SkillName("nobodys"))
    assert nothing.learned_from == ()


async def test_a_decision_on_a_candidate_that_does_not_exist_is_none(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    assert await learning.owner.decide(CandidateId("c_nobody"), approved=True) is None
