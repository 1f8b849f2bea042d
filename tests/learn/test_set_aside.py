"""A work item that crashed several learners is set aside, in every loop, and no other item is."""

from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest

from metaclaw.domain.candidate import Standing
from metaclaw.domain.verdict import Outcome
from metaclaw.learn.supervision import WorkItem
from metaclaw.skills import GateMode
from tests.learn.house import CORRECTION, DATES, FAILED, TASK, House, Speaker, Talk

pytestmark = pytest.mark.anyio
NewHouse = Callable[..., Awaitable[House]]
PASSED = {"outcome": "pass", "score": 1, "reason": "it did what was asked"}


def evolver() -> Speaker:
    return Speaker("world/evolver", lambda prompt: {"skills": [DATES]})


def judge() -> Speaker:
    return Speaker("world/judge", lambda prompt: PASSED)


async def test_a_turn_that_is_set_aside_is_read_no_more_and_its_session_goes_on(new_house: NewHouse) -> None:
    house = await new_house(judge=judge())
    talk, other = Talk(house), Talk(house)
    before, deadly = await talk.say("Tell me of cats."), await talk.say("Tell me of dogs.")
    fine = await other.say("Tell me of owls.")
    house.die_of("sensing", deadly)
    await house.sense()
    assert [house.outcome(turn) for turn in (before, deadly)] == [Outcome.UNKNOWN] * 2
    assert house.verdict(deadly).comment.startswith("set aside")
    later = await talk.say("Tell me of bats.")
    await talk.end()
    await other.end()
    await house.sense()
    assert [house.outcome(turn) for turn in (later, fine)] == [Outcome.PASS] * 2
    assert house.attempt_log.set_aside == {WorkItem("sensing", deadly): 3}
    await house.learn()  # until what was said is heard, it is held on to
    await house.sense()
    assert house.cursors.cursor("sensing") == 4


@pytest.mark.parametrize("deaths", [1, 2])
async def test_what_fewer_have_died_of_is_taken_up_again_and_then_counts_for_nothing(new_house: NewHouse, deaths: int) -> None:
    house = await new_house(judge=judge())
    talk = Talk(house)
    turn = await talk.say("Tell me of cats.")
    await talk.end()
    house.die_of("judging", turn, deaths)
    await house.sense()
    assert house.outcome(turn) is Outcome.PASS
    assert house.attempt_log.failures_of(WorkItem("judging", turn)) == 0
    assert house.attempt_log.set_aside == {}


@pytest.mark.parametrize("loop", ["sensing", "judging"])
async def test_the_end_of_a_session_that_is_set_aside_leaves_its_last_turn_unknown(new_house: NewHouse, loop: str) -> None:
    house = await new_house(judge=judge())
    talk = Talk(house)
    turn = await talk.say("Tell me of cats.")
    await talk.end()
    house.die_of(loop, talk.session if loop == "sensing" else turn)
    await house.sense()
    assert house.verdict(turn).comment.startswith("set aside")
    assert house.judge is not None
    assert house.judge.asked == []


async def test_words_that_are_set_aside_become_no_skill_and_hold_nothing_up(new_house: NewHouse) -> None:
    house = await new_house()
    deadly = await Talk(house).say("From now on, always answer in German.")
    house.die_of("listening", deadly)
    await house.live()
    assert house.names == []
    assert house.cursors.cursor("listening") == 1
    await Talk(house).say("From now on, always answer in French.")
    await house.live()
    assert len(house.names) == 1


@pytest.mark.parametrize("loop", ["fast", "writing"])
async def test_an_attempt_that_is_set_aside_is_over_and_its_turns_stay_support(new_house: NewHouse, loop: str) -> None:
    house = await new_house(evolver=evolver())
    talk = Talk(house)
    failed = await talk.say(TASK.format(1))
    await talk.say(CORRECTION, "Released on 2026-02-01.")
    await house.sense()
    number = house.candidates.begin_attempt("wrong dates", 0, [failed])
    house.die_of(loop, f"attempt {number}" if loop == "fast" else number)
    await house.take_up_again()
    assert house.candidates.interrupted() == []
    assert house.role(failed) == "support"
    assert house.evolver is not None
    assert house.evolver.asked == []


async def test_a_failure_that_nobody_survives_reading_is_passed_over_and_the_others_are_learned_from(new_house: NewHouse) -> None:
    house = await new_house(evolver=evolver())
    deadly = await Talk(house).say("Tell me of cats.")
    house.say(deadly, Outcome.FAIL)
    talk = Talk(house)
    failed = await talk.say(TASK.format(1))
    await talk.say(CORRECTION, "Released on 2026-02-01.")
    house.die_of("reading", deadly)
    await house.live()
    assert house.names == ["iso-release-dates"]
    assert (house.role(failed), house.role(deadly)) == ("support", None)


@pytest.mark.parametrize("loop", ["fast", "gate"])
async def test_a_candidate_that_nobody_survives_deciding_about_is_turned_away(new_house: NewHouse, loop: str) -> None:
    house = await new_house(evolver=evolver(), gate=GateMode.SHADOW, judge=Speaker("world/judge", lambda prompt: FAILED))
    talk = Talk(house)
    await talk.say(TASK.format(1))
    await talk.say(CORRECTION, "Released on 2026-02-01.")
    await house.sense()
    await house.listen()
    async with anyio.create_task_group() as aside:
        await house.fast.learn(aside)
        while not house.candidates.candidates():
            await anyio.lowlevel.checkpoint()
        aside.cancel_scope.cancel()
    house.die_of(loop, house.only_candidate().id)
    await house.take_up_again()
    decided = house.only_candidate()
    assert (decided.standing, decided.reason.split(":")[0]) == (Standing.REJECTED, "set aside")
    await house.take_up_again()
    assert len(house.candidates.candidates()) == 1


async def test_a_skill_that_nobody_survives_tending_stays_as_it_is(new_house: NewHouse) -> None:
    house = await new_house()
    house.put_in_force("deadly", scope=None)
    house.put_in_force("other", scope=None)
    house.die_of("tending", "deadly")
    await house.tend()
    assert house.names == ["deadly", "other"]
    assert house.attempt_log.set_aside == {WorkItem("tending", "deadly"): 3}
