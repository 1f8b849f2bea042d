"""Every main turn gets one verdict; the judge is asked only if checks and detectors cannot
decide.
"""

import math
from collections.abc import Awaitable, Callable
from itertools import pairwise

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.domain.chat import ChatRequest, Completion, Text
from metaclaw.domain.ids import TurnId
from metaclaw.domain.turn import Scope, TurnEnd, TurnKind
from metaclaw.domain.verdict import Outcome, Source
from metaclaw.errors import BudgetError, UpstreamError
from metaclaw.learn.outcomes import FIRST_PAUSE_S, MOST_TRIES, JudgeAllowance
from metaclaw.learn.supervision import LoopProgress
from metaclaw.outcome import fuse
from metaclaw.ports import Purpose
from metaclaw.store import SqlForgetting
from tests.learn.learning import (
    CORRECTION,
    FAILED,
    PASSED,
    TASK,
    THANKS,
    ScriptedLearning,
    Speaker,
    Talk,
)
from tests.learn.recordings import call

pytestmark = pytest.mark.anyio
NewLearning = Callable[..., Awaitable[ScriptedLearning]]
# Nothing in it tells a detector anything.
PLAIN = "Please prepare report number {} about the state of our harbour cranes."


def judge(rule: Callable[[str], object] = lambda prompt: PASSED) -> Speaker:
    return Speaker("world/judge", rule)


def down(prompt: str) -> UpstreamError:
    return UpstreamError("the judge is down", status=503, retryable=True)


async def test_a_turn_has_no_verdict_before_the_next_request_shows_what_came_of_it(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    talk = Talk(learning)
    first = await talk.say(TASK.format(1))
    await learning.sense()
    assert learning.outcome(first) is None
    second = await talk.say(CORRECTION)
    await learning.sense()
    assert (learning.verdict(first).outcome, learning.verdict(first).source) == (
        Outcome.FAIL,
        Source.DETECTOR,
    )
    assert learning.outcome(second) is None


async def test_the_last_turn_is_judged_when_its_session_ends(new_learning: NewLearning) -> None:
    learning = await new_learning(judge=judge(lambda prompt: FAILED))
    talk = Talk(learning)
    turn = await talk.say(PLAIN.format(1))
    await learning.sense()
    assert learning.outcome(turn) is None
    await talk.end()
    await learning.sense()
    assert (learning.verdict(turn).outcome, learning.verdict(turn).source) == (
        Outcome.FAIL,
        Source.JUDGE,
    )


async def test_a_session_that_goes_on_after_its_end_is_judged_again_at_its_next_end(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(judge=judge())
    talk = Talk(learning)
    first = await talk.say(PLAIN.format(1))
    await talk.end()
    await learning.sense()
    second = await talk.say(PLAIN.format(2))
    await talk.end()
    await learning.sense()
    assert [learning.outcome(turn) for turn in (first, second)] == [Outcome.PASS, Outcome.PASS]
    assert learning.judge is not None
    assert learning.judge.questions == 2


async def test_what_a_detector_can_tell_is_not_asked(new_learning: NewLearning) -> None:
    learning = await new_learning(judge=judge())
    talk = Talk(learning)
    failed = await talk.say(TASK.format(1))
    praised = await talk.say(CORRECTION)
    await talk.say(THANKS)
    await learning.sense()
    assert [learning.verdict(turn).source for turn in (failed, praised)] == [
        Source.DETECTOR,
        Source.DETECTOR,
    ]
    assert learning.judge is not None
    assert learning.judge.asked == []


async def test_the_judge_is_asked_no_more_often_than_its_share_allows(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(judge=judge(), share=0.0)
    talk = Talk(learning)
    turn = await talk.say(PLAIN.format(1))
    await talk.end()
    await learning.sense()
    assert learning.judge is not None
    assert learning.judge.asked == []
    assert (learning.verdict(turn).outcome, learning.verdict(turn).comment) == (
        Outcome.UNKNOWN,
        "the judge's share is used up",
    )


async def test_a_question_the_budget_cannot_pay_for_is_put_off_over_restarts_and_asked_when_it_can(
    new_learning: NewLearning,
) -> None:
    speaker = judge(lambda prompt: BudgetError("used up"))
    learning = await new_learning(judge=speaker, can_pay=False)
    turn = await unjudged(learning)
    assert (learning.verdict(turn).outcome, learning.verdict(turn).comment) == (
        Outcome.UNKNOWN,
        "waits for the learning budget",
    )
    assert learning.outcomes.questions.waiting_for_budget == 1
    for _ in range(2):
        learning.restart()
        await learning.sense()
    assert (speaker.questions, learning.outcomes.questions.waiting_for_budget) == (1, 1)
    learning.can_pay = True
    speaker.rule = lambda prompt: FAILED
    await learning.sense()
    assert learning.outcome(turn) is Outcome.FAIL
    assert (speaker.questions, learning.outcomes.questions.waiting_for_budget) == (2, 0)


async def test_of_the_questions_that_were_put_off_the_most_suspicious_turn_is_asked_about_first(
    new_learning: NewLearning,
) -> None:
    speaker = judge()
    learning = await new_learning(judge=speaker, share=0.0)
    for number, reply in enumerate(
        ("Hm, well.", "Hm, I am not so sure that this is right.", "Hm, well.")
    ):
        talk = Talk(learning)
        await talk.say(PLAIN.format(number))
        await talk.say(reply)
    await learning.sense()
    asked: list[TurnId] = []
    while (question := learning.outcomes.questions.due()) is not None:
        learning.outcomes.questions.remove(question)
        asked.append(question.turn)
    suspicion = [fuse(learning.verdict(turn).signals) for turn in asked]
    assert len(set(suspicion)) > 1
    assert suspicion == sorted(suspicion, reverse=True)


async def test_where_nobody_judges_nothing_is_taken_from_the_share(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    talk = Talk(learning)
    turn = await talk.say(PLAIN.format(1))
    await talk.end()
    await learning.sense()
    assert (learning.verdict(turn).outcome, learning.verdict(turn).comment) == (
        Outcome.UNKNOWN,
        "no judge is configured",
    )
    assert learning.allowance.questions == 0


async def unjudged(learning: ScriptedLearning) -> TurnId:
    talk = Talk(learning)
    turn = await talk.say(PLAIN.format(1))
    await talk.end()
    await learning.sense()
    return turn


async def test_a_judge_that_is_down_leaves_a_turn_unknown_and_is_asked_again_later(
    new_learning: NewLearning,
) -> None:
    speaker = judge(down)
    learning = await new_learning(judge=speaker)
    turn = await unjudged(learning)
    assert learning.outcome(turn) is Outcome.UNKNOWN
    speaker.rule = lambda prompt: FAILED
    await learning.sense()
    assert speaker.questions == 1
    learning.clock.pass_by(seconds=FIRST_PAUSE_S)
    await learning.sense()
    assert learning.verdict(turn).outcome is Outcome.FAIL
    learning.clock.pass_by(days=1)
    await learning.sense()
    assert speaker.questions == 2


async def test_it_is_asked_again_later_each_time_and_only_so_often(
    new_learning: NewLearning,
) -> None:
    speaker = judge(down)
    learning = await new_learning(judge=speaker)
    await unjudged(learning)
    asked_at = [learning.clock.now]
    for _ in range(40):
        before = speaker.questions
        learning.clock.pass_by(seconds=30)
        await learning.sense()
        asked_at += [learning.clock.now] * (speaker.questions - before)
    waits = [(later - earlier).total_seconds() for earlier, later in pairwise(asked_at)]
    assert waits == [FIRST_PAUSE_S * 2**tries for tries in range(MOST_TRIES - 1)]


async def test_a_restart_during_an_outage_neither_forgets_nor_begins_to_count_anew(
    new_learning: NewLearning,
) -> None:
    speaker = judge(down)
    learning = await new_learning(judge=speaker)
    turn = await unjudged(learning)
    for _ in range(2 * MOST_TRIES):
        learning.restart()
        await learning.sense()
        learning.clock.pass_by(hours=1)
        await learning.sense()
    assert speaker.questions == MOST_TRIES
    assert learning.outcome(turn) is Outcome.UNKNOWN


async def test_what_a_judge_cannot_put_into_a_vote_is_unknown(new_learning: NewLearning) -> None:
    learning = await new_learning(judge=judge(lambda prompt: "I would rather not say."))
    turn = await unjudged(learning)
    assert (learning.verdict(turn).outcome, learning.verdict(turn).p_fail) == (
        Outcome.UNKNOWN,
        None,
    )


async def test_of_a_request_that_failed_and_was_sent_again_only_the_second_answer_is_judged(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(judge=judge())
    talk = Talk(learning)
    broken = await talk.say(TASK.format(1), "", end=TurnEnd.FAILED, status=502)
    talk.agent.messages.pop()
    again = await talk.answer(Text("Released on 01/02/2026."), retry_of=broken)
    await learning.sense()
    await talk.say(CORRECTION)
    await learning.sense()
    assert learning.outcome(broken) is None
    assert learning.outcome(again) is Outcome.FAIL


async def test_a_task_that_was_sent_again_is_heard_once(new_learning: NewLearning) -> None:
    learning = await new_learning()
    talk = Talk(learning)
    broken = await talk.say(
        "From now on, always answer in German.", "", end=TurnEnd.FAILED, status=502
    )
    talk.agent.messages.pop()
    await talk.answer(Text("Ja."), retry_of=broken)
    await learning.live()
    assert len(learning.names) == 1


async def test_side_turns_are_nobodys_work_and_are_left_alone(new_learning: NewLearning) -> None:
    learning = await new_learning(judge=judge())
    talk = Talk(learning)
    side = await talk.say("Give this conversation a title.", "Cranes", kind=TurnKind.SIDE)
    await talk.end()
    await learning.sense()
    assert learning.outcome(side) is None
    assert learning.allowance.turns == 0


async def test_threads_of_one_session_do_not_hide_each_other(new_learning: NewLearning) -> None:
    learning = await new_learning()
    one, other = Talk(learning), Talk(learning)
    other.agent.session = one.agent.session
    first = await one.say(TASK.format(1))
    await other.say("Count the words in poem.txt.", "Forty-two.")
    await learning.sense()
    await one.say(CORRECTION)
    await learning.sense()
    assert learning.outcome(first) is Outcome.FAIL


async def test_a_dozen_agents_at_work_in_one_session_do_not_hide_each_other_either(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    things = [
        "tulip",
        "violin",
        "harbour",
        "ledger",
        "kettle",
        "glacier",
        "saddle",
        "comet",
        "loom",
        "anchor",
        "mosaic",
        "bridge",
    ]
    talks = [Talk(learning) for _ in things]
    for talk in talks:
        talk.agent.session = talks[0].agent.session
    first = [
        await talk.say(f"{thing.title()}: {thing}-one, {thing}-two.")
        for thing, talk in zip(things, talks, strict=True)
    ]
    await learning.sense()
    for talk in talks:
        await talk.say(CORRECTION)
    await learning.sense()
    assert [learning.outcome(turn) for turn in first] == [Outcome.FAIL] * len(talks)


async def test_the_agents_next_answer_counts_as_evidence_too(new_learning: NewLearning) -> None:
    learning = await new_learning()
    talk = Talk(learning)
    talk.agent.hear("Fix the totals.")
    talk.segment = 0
    edit = await talk.answer(call("Edit", file_path="a.py", old_string="x = 1", new_string="x = 2"))
    talk.agent.give("The file was edited.")
    await talk.answer(call("Edit", file_path="a.py", old_string="x = 2", new_string="x = 1"))
    await learning.sense()
    assert "undone.by_agent" in [signal.detector for signal in learning.verdict(edit).signals]


async def test_what_a_user_has_said_stands_whatever_is_sensed_later(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(judge=judge(lambda prompt: PASSED))
    talk = Talk(learning)
    turn = await talk.say(TASK.format(1))
    await learning.owner.feedback(turn, Outcome.PASS, "It was fine.")
    await talk.say(CORRECTION)
    await talk.end()
    await learning.sense()
    assert (learning.verdict(turn).outcome, learning.verdict(turn).source) == (
        Outcome.PASS,
        Source.USER,
    )


async def test_a_user_who_speaks_while_the_judge_thinks_has_the_last_word(
    new_learning: NewLearning,
) -> None:
    speaker = judge(lambda prompt: PASSED)
    learning = await new_learning(judge=speaker)
    talk = Talk(learning)
    turn = await talk.say(PLAIN.format(1))
    await talk.end()

    def interrupted(prompt: str) -> object:
        learning.say(turn, Outcome.FAIL, Source.USER)
        return PASSED

    speaker.rule = interrupted
    await learning.sense()
    assert (learning.verdict(turn).outcome, learning.verdict(turn).source) == (
        Outcome.FAIL,
        Source.USER,
    )


class Slow(Speaker):
    """A judge that thinks until it is told to answer."""

    def __init__(self) -> None:
        super().__init__("world/judge", lambda prompt: PASSED)
        self.began, self.may_answer = anyio.Event(), anyio.Event()

    async def ask(self, request: ChatRequest, purpose: Purpose) -> Completion:
        self.began.set()
        await self.may_answer.wait()
        return await super().ask(request, purpose)


async def test_a_turn_that_waits_for_the_judge_is_not_assessed_twice(
    new_learning: NewLearning,
) -> None:
    speaker = Slow()
    learning = await new_learning(judge=speaker)
    talk = Talk(learning)
    turn = await talk.say(PLAIN.format(1))
    await talk.end()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as judging:
            await learning.outcomes.poll(judging)
            await speaker.began.wait()
            await talk.say("Now something else: which ferries are there?", "Three.")
            await learning.outcomes.poll(judging)
            speaker.may_answer.set()
    assert [verdict.source for verdict in learning.verdicts.verdicts_of(turn)] == [Source.JUDGE]
    assert speaker.questions == 1


async def test_a_program_killed_while_the_judge_thinks_asks_again_and_judges_once(
    new_learning: NewLearning,
) -> None:
    speaker = Slow()
    learning = await new_learning(judge=speaker)
    turns = []
    for number in range(3):
        talk = Talk(learning)
        turns.append(await talk.say(PLAIN.format(number)))
        await talk.end()
        learning.clock.pass_by(seconds=1)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as judging:
            await learning.outcomes.poll(judging)
            await speaker.began.wait()
            judging.cancel_scope.cancel()
    assert [learning.outcome(turn) for turn in turns] == [None] * 3
    learning.restart()
    speaker.may_answer.set()
    await learning.sense()
    await learning.sense()
    assert [len(learning.verdicts.verdicts_of(turn)) for turn in turns] == [1] * 3
    assert speaker.questions == 3


async def test_a_loop_that_is_started_again_takes_up_what_it_had_left(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(judge=judge())
    talk = Talk(learning)
    turn = await talk.say(PLAIN.format(1))
    await talk.end()
    async with anyio.create_task_group() as judging:
        await learning.outcomes.poll(judging)
        judging.cancel_scope.cancel()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(learning.outcomes.run)
            while learning.outcome(turn) is None:
                learning.outcomes.wakeup.notify()
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
    assert learning.outcome(turn) is Outcome.PASS


async def test_what_is_done_is_not_read_again_after_a_restart(new_learning: NewLearning) -> None:
    learning = await new_learning(judge=judge())
    talk = Talk(learning)
    for number in range(3):
        await talk.say(PLAIN.format(number))
    await talk.end()
    await learning.live()
    await learning.sense()
    assert learning.cursors.cursor("sensing") == 3
    learning.restart()
    learning.allowance.earn()
    await learning.sense()
    assert learning.allowance.turns == 1


async def test_words_that_nobody_has_made_anything_of_yet_are_heard_again_after_a_restart(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    await Talk(learning).say("From now on, always answer in German.")
    await learning.sense()
    learning.restart()
    await learning.live()
    assert len(learning.names) == 1
    await learning.sense()
    learning.restart()
    await learning.live()
    assert len(learning.candidates.candidates()) == 1


async def test_a_session_that_is_forgotten_while_the_judge_thinks_stops_nothing(
    new_learning: NewLearning,
) -> None:
    speaker = judge()
    learning = await new_learning(judge=speaker)
    talk = Talk(learning)
    turn = await talk.say(PLAIN.format(1))
    await talk.end()
    forgetting = SqlForgetting(learning.database)
    speaker.rule = lambda prompt: (forgetting.forget_session(talk.session), PASSED)[1]
    await learning.sense()
    assert learning.reader.turn(turn) is None
    other = Talk(learning, Scope("bob"))
    told = await other.say(TASK.format(1))
    await other.say(CORRECTION)
    await learning.sense()
    assert learning.outcome(told) is Outcome.FAIL


def test_progress_is_held_back_by_the_oldest_thing_under_way() -> None:
    progress = LoopProgress(10)
    assert (progress.reached, progress.settled) == (10, 10)
    progress.reach(20)
    for point in (15, 12, 12):
        progress.begin(point)
    assert (progress.reached, progress.settled) == (20, 11)
    progress.end(12)
    assert progress.settled == 11
    progress.end(12)
    assert progress.settled == 14
    progress.end(15)
    assert progress.settled == 20


IN_HAND = 20
shares = st.floats(0.0, 1.0, allow_nan=False)
events = st.lists(st.booleans(), max_size=300)
"""True: a turn was made; False: a question is wanted."""


@given(shares, events)
def test_questions_never_exceed_the_share_of_turns_and_what_was_in_hand(
    share: float, happened: list[bool]
) -> None:
    allowance = JudgeAllowance(share)
    granted = turns = 0
    for is_turn in happened:
        if is_turn:
            allowance.earn()
            turns += 1
        elif allowance.take():
            granted += 1
        assert granted <= turns * share + IN_HAND + 1e-6
    assert (allowance.turns, allowance.questions) == (turns, granted)


@given(shares.filter(lambda share: share >= 0.01))
def test_a_long_quiet_time_saves_up_no_more_than_what_was_in_hand_at_first(share: float) -> None:
    allowance = JudgeAllowance(share)
    for _ in range(5_000):
        allowance.earn()
    assert sum(allowance.take() for _ in range(1_000)) == IN_HAND


@given(shares.filter(lambda share: share >= 0.01))
def test_what_was_used_up_is_earned_again_at_the_share(share: float) -> None:
    allowance = JudgeAllowance(share)
    while allowance.take():
        pass
    needed = 0
    while not allowance.take():
        allowance.earn()
        needed += 1
    assert math.isclose(needed, 1 / share, rel_tol=0.02, abs_tol=1.01)


def test_a_share_of_nothing_asks_nothing() -> None:
    allowance = JudgeAllowance(0.0)
    for _ in range(100):
        allowance.earn()
        assert not allowance.take()


def test_a_question_that_is_given_back_may_be_taken_again() -> None:
    allowance = JudgeAllowance(0.2)
    while allowance.take():
        pass
    allowance.give_back()
    assert (allowance.take(), allowance.take()) == (True, False)
