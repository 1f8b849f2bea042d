"""A person's commands: feedback on a turn, retire and revert skills, forget a session."""

from collections.abc import Awaitable, Callable

import pytest

from metaclaw.domain.candidate import CandidateId
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.skill import Skill, SkillState
from metaclaw.domain.turn import Scope
from metaclaw.domain.verdict import Outcome, Source
from metaclaw.errors import SkillError
from metaclaw.skills import GateMode
from tests.learn.house import CORRECTION, DATES, TASK, House, Speaker, Talk, drawn

pytestmark = pytest.mark.anyio
NewHouse = Callable[..., Awaitable[House]]
NAME = "iso-release-dates"


async def learned(house: House) -> Talk:
    """A session that has taught a skill."""
    house.evolver = Speaker("world/evolver", lambda prompt: {"skills": [DATES]})
    talk = Talk(house)
    await talk.say(TASK.format(1))
    await talk.say(CORRECTION, "Released on 2026-02-01.")
    await house.live()
    assert house.names == [NAME]
    return talk


async def test_feedback_is_a_verdict_with_the_persons_words_and_an_event(new_house: NewHouse) -> None:
    house = await new_house()
    turn = await Talk(house).say(TASK.format(1))
    verdict = await house.owner.feedback(turn, Outcome.FAIL, "  The date is wrong.  ")
    assert verdict == house.verdict(turn)
    assert (verdict.source, verdict.p_fail, verdict.comment) == (Source.USER, 1.0, "The date is wrong.")
    assert house.told == [("feedback", {"turn": turn, "outcome": "fail"})]


async def test_a_complaint_is_learned_from_at_once(new_house: NewHouse) -> None:
    house = await new_house(evolver=Speaker("world/evolver", lambda prompt: {"skills": [DATES]}), min_failures=1000)
    turn = await Talk(house).say(TASK.format(1))
    await house.owner.feedback(turn, Outcome.FAIL, "Release dates in the changelog must be written as YYYY-MM-DD.")
    assert house.fast.wakeup._event.is_set()
    await house.learn()
    assert house.names == [NAME]


async def test_praise_teaches_nothing_and_knows_what_it_means(new_house: NewHouse) -> None:
    house = await new_house()
    turn = await Talk(house).say(TASK.format(1))
    passed = await house.owner.feedback(turn, Outcome.PASS, "")
    assert passed is not None
    assert passed.p_fail == 0.0
    unknown = await house.owner.feedback(turn, Outcome.UNKNOWN, "I take that back.")
    assert unknown is not None
    assert (unknown.p_fail, house.outcome(turn)) == (None, Outcome.UNKNOWN)
    assert not house.fast.wakeup._event.is_set()


async def test_of_a_turn_that_does_not_exist_nothing_can_be_said(new_house: NewHouse) -> None:
    house = await new_house()
    assert await house.owner.feedback(TurnId("t_nobody"), Outcome.FAIL, "") is None
    assert house.told == []


async def test_a_person_may_retire_what_was_learned_and_it_is_written_down(new_house: NewHouse) -> None:
    house = await new_house()
    await learned(house)
    before = house.library.view.generation
    assert await house.owner.retire(SkillName(NAME)) == before + 1
    assert house.names == []
    assert house.only_candidate().reason == f"a person retired {NAME}"
    with pytest.raises(SkillError, match="no skill named"):
        await house.owner.retire(SkillName(NAME))


async def test_a_person_may_retire_what_a_person_wrote(new_house: NewHouse) -> None:
    house = await new_house()
    house.write_by_hand(Skill(SkillName("mine"), "When I say so", "My own words."))
    await house.owner.retire(SkillName("mine"))
    assert house.names == []


async def test_going_back_and_forth_between_generations(new_house: NewHouse) -> None:
    house = await new_house()
    await learned(house)
    now = house.library.view.generation
    assert await house.owner.revert(now - 1) == now + 1
    assert house.names == []
    assert await house.owner.revert(now) == now + 2
    assert house.names == [NAME]
    with pytest.raises(SkillError, match="no generation"):
        await house.owner.revert(99)


async def test_what_was_reverted_is_not_learned_again_from_the_same_failure(new_house: NewHouse) -> None:
    house = await new_house()
    await learned(house)
    await house.owner.revert(0)
    await house.live()
    assert house.names == []


async def test_forgetting_a_session_takes_back_what_it_taught(new_house: NewHouse) -> None:
    house = await new_house()
    talk = await learned(house)
    gone = await house.owner.forget(talk.session)
    assert gone is not None
    assert (gone["turns"], gone["skills"], gone["versions"], gone["purged"]) == (2, [NAME], [], True)
    assert house.names == []
    assert [kind for kind, _ in house.told] == ["forgotten"]
    assert house.reader.session(talk.session) is None
    assert all(house.reader.turn(recorded.turn.id) is None for recorded in talk.agent.turns)


async def test_forgetting_takes_back_candidates_that_wait_for_a_person(new_house: NewHouse) -> None:
    house = await new_house()
    reaching = {**DATES, "body": f"{DATES['body']}\n- Release dates are listed on https://dates.example/releases."}
    house.evolver = Speaker("world/evolver", lambda prompt: {"skills": [reaching]})
    talk = Talk(house)
    await talk.say(TASK.format(1))
    await talk.say(CORRECTION)
    await house.live()
    candidate = house.only_candidate()
    await house.owner.forget(talk.session)
    assert house.candidates.candidates() == []
    assert await house.owner.decide(candidate.id, approved=True) is None
    assert (await house.admission.decide(candidate, approved=True)).standing == "rejected"
    assert house.names == []


async def test_forgetting_leaves_what_a_person_has_made_their_own(new_house: NewHouse) -> None:
    house = await new_house()
    talk = await learned(house)
    path = house.library.folder / NAME / "SKILL.md"
    path.write_text(path.read_text() + "\nAnd a word of mine.\n")
    house.library.sync()
    await house.owner.forget(talk.session)
    assert house.names == [NAME]


async def test_forgetting_one_session_leaves_what_others_taught(new_house: NewHouse) -> None:
    house = await new_house()
    await learned(house)
    other = Talk(house, Scope("bob"))
    await other.say(TASK.format(2))
    gone = await house.owner.forget(other.session)
    assert gone is not None
    assert (gone["turns"], gone["skills"], gone["versions"]) == (1, [], [])
    assert house.names == [NAME]


async def test_forgetting_one_of_two_people_who_said_the_same_leaves_the_other_s_skill_with_its_papers(new_house: NewHouse) -> None:
    house = await new_house()
    first, second = Talk(house), Talk(house, Scope("bob"))
    for talk in (first, second):
        await talk.say(TASK.format(1))
        await talk.say("From now on, always answer in German.")
        await house.live()
        if talk is first:
            (name,) = map(SkillName, house.names)
            await house.owner.retire(name)
    assert house.names == [name], "the name was free again"
    await house.owner.forget(first.session)
    assert house.names == [name]
    papers = house.candidates.of_skill(name)
    assert [(one.standing, one.proposal.skill.name) for one in papers] == [("accepted", name)]


async def test_a_session_nobody_knows_cannot_be_forgotten(new_house: NewHouse) -> None:
    house = await new_house()
    assert await house.owner.forget(SessionId("s_nobody")) is None


async def test_whoever_remembers_something_of_a_forgotten_session_is_told(new_house: NewHouse) -> None:
    house = await new_house()
    talk = await learned(house)
    dropped: list[SessionId] = []
    house.owner.on_forget = dropped.append
    await house.owner.forget(talk.session)
    assert set(dropped) == {talk.session}


async def test_what_is_known_of_a_skill(new_house: NewHouse) -> None:
    house = await new_house(gate=GateMode.LINT)
    talk = await learned(house)
    await Talk(house).say(TASK.format(2), draws=drawn(NAME, placed=True))
    facts = await house.owner.skill_facts(SkillName(NAME))
    assert facts.certificate is not None
    assert facts.certificate.stage is SkillState.DRAFT
    assert facts.learned_from == (talk.agent.turns[0].turn.id,)
    assert facts.uplift is not None
    assert facts.uplift.unknown == 1


async def test_what_is_known_of_a_persons_own_skill_and_of_none(new_house: NewHouse) -> None:
    house = await new_house()
    house.write_by_hand(Skill(SkillName("mine"), "When I say so", "My own words."))
    facts = await house.owner.skill_facts(SkillName("mine"))
    assert (facts.certificate, facts.learned_from) == (None, ())
    nothing = await house.owner.skill_facts(SkillName("nobodys"))
    assert (nothing.certificate, nothing.uplift) == (None, None)


async def test_a_decision_on_a_candidate_that_does_not_exist_is_none(new_house: NewHouse) -> None:
    house = await new_house()
    assert await house.owner.decide(CandidateId("c_nobody"), approved=True) is None
