"""A work item that crashed several learners is set aside, in every loop, and no other item is."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from metaclaw.domain.candidate import Standing
from metaclaw.domain.verdict import Outcome
from metaclaw.learn.supervision import WorkItem
from tests.learn.learning import CORRECTION, DATES, TASK, ScriptedLearning, Speaker, Talk

pytestmark = pytest.mark.anyio
NewLearning = Callable[..., Awaitable[ScriptedLearning]]
PASSED = {"outcome": "pass", "score": 1, "reason": "it did what was asked"}


def evolver() -> Speaker:
    return Speaker("world/evolver", lambda prompt: {"skills": [DATES]})


def judge() -> Speaker:
    return Speaker("world/judge", lambda prompt: PASSED)


async def test_a_turn_that_is_set_aside_is_read_no_more_and_its_session_goes_on(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(judge=judge())
    talk, other = Talk(learning), Talk(learning)
    before, deadly = await talk.say("Tell me of cats."), await talk.say("Tell me of dogs.")
    fine = await other.say("Tell me of owls.")
    learning.die_of("sensing", deadly)
    await learning.sense()
    assert [learning.outcome(turn) for turn in (before, deadly)] == [Outcome.UNKNOWN] * 2
    assert learning.verdict(deadly).comment.startswith("set aside")
    later = await talk.say("Tell me of bats.")
    await talk.end()
    await other.end()
    await learning.sense()
    assert [learning.outcome(turn) for turn in (later, fine)] == [Outcome.PASS] * 2
    assert learning.attempt_log.set_aside == {WorkItem("sensing", deadly): 3}
    await learning.learn()  # until what was said is heard, it is held on to
    await learning.sense()
    assert learning.cursors.cursor("sensing") == 4


@pytest.mark.parametrize("deaths", [1, 2])
async def test_what_fewer_have_died_of_is_taken_up_again_and_then_counts_for_nothing(
    new_learning: NewLearning, deaths: int
) -> None:
    learning = await new_learning(judge=judge())
    talk = Talk(learning)
    turn = await talk.say("Tell me of cats.")
    await talk.end()
    learning.die_of("judging", turn, deaths)
    await learning.sense()
    assert learning.outcome(turn) is Outcome.PASS
    assert learning.attempt_log.failures_of(WorkItem("judging", turn)) == 0
    assert learning.attempt_log.set_aside == {}


@pytest.mark.parametrize("loop", ["sensing", "judging"])
async def test_the_end_of_a_session_that_is_set_aside_leaves_its_last_turn_unknown(
    new_learning: NewLearning, loop: str
) -> None:
    learning = await new_learning(judge=judge())
    talk = Talk(learning)
    turn = await talk.say("Tell me of cats.")
    await talk.end()
    learning.die_of(loop, talk.session if loop == "sensing" else turn)
    await learning.sense()
    assert learning.verdict(turn).comment.startswith("set aside")
    assert learning.judge is not None
    assert learning.judge.asked == []


async def test_words_that_are_set_aside_become_no_skill_and_hold_nothing_up(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    deadly = await Talk(learning).say("From now on, always answer in German.")
    learning.die_of("listening", deadly)
    await learning.live()
    assert learning.names == []
    assert learning.cursors.cursor("listening") == 1
    await Talk(learning).say("From now on, always answer in French.")
    await learning.live()
    assert len(learning.names) == 1


@pytest.mark.parametrize("loop", ["fast", "writing"])
async def test_an_attempt_that_is_set_aside_is_over_and_its_turns_stay_support(
    new_learning: NewLearning, loop: str
) -> None:
    learning = await new_learning(evolver=evolver())
    talk = Talk(learning)
    failed = await talk.say(TASK.format(1))
    await talk.say(CORRECTION, "Released on 2026-02-01.")
    await learning.sense()
    number = learning.candidates.begin_attempt("wrong dates", 0, [failed])
    learning.die_of(loop, f"attempt {number}" if loop == "fast" else number)
    await learning.take_up_again()
    assert learning.candidates.interrupted() == []
    assert learning.role(failed) == "support"
    assert learning.evolver is not None
    assert learning.evolver.asked == []


async def test_a_failure_that_nobody_survives_reading_is_passed_over_and_the_others_are_learned_from(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(evolver=evolver())
    deadly = await Talk(learning).say("Tell me of cats.")
    learning.say(deadly, Outcome.FAIL)
    talk = Talk(learning)
    failed = await talk.say(TASK.format(1))
    await talk.say(CORRECTION, "Released on 2026-02-01.")
    learning.die_of("reading", deadly)
    await learning.live()
    assert learning.names == ["iso-release-dates"]
    assert (learning.role(failed), learning.role(deadly)) == ("support", None)


async def test_a_candidate_that_nobody_survives_deciding_about_is_turned_away(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(evolver=evolver())
    talk = Talk(learning)
    await talk.say(TASK.format(1))
    await talk.say(CORRECTION, "Released on 2026-02-01.")
    await learning.live()
    candidate = learning.only_candidate()
    learning.candidates.save_candidate(replace(candidate, standing=Standing.DRAFT))
    learning.die_of("fast", candidate.id)
    await learning.take_up_again()
    decided = learning.only_candidate()
    assert (decided.standing, decided.reason.split(":")[0]) == (Standing.REJECTED, "set aside")
    await learning.take_up_again()
    assert len(learning.candidates.candidates()) == 1
