"""Every main turn gets one verdict; the judge is asked only if checks and detectors cannot decide."""

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
from metaclaw.learn.outcomes import FIRST_PAUSE_S, MOST_TRIES, JudgeAllowance, pause_s
from metaclaw.learn.supervision import LoopProgress
from metaclaw.outcome import fuse
from metaclaw.ports import Purpose
from metaclaw.store import SqlForgetting
from tests.learn.house import CORRECTION, FAILED, PASSED, TASK, THANKS, House, Speaker, Talk
from tests.learn.recordings import call

pytestmark = pytest.mark.anyio
NewHouse = Callable[..., Awaitable[House]]
# Nothing in it tells a detector anything.
PLAIN = "Please prepare report number {} about the state of our harbour cranes."


def judge(rule: Callable[[str], object] = lambda prompt: PASSED) -> Speaker:
    return Speaker("world/judge", rule)


def down(prompt: str) -> UpstreamError:
    return UpstreamError("the judge is down", status=503, retryable=True)


async def test_a_turn_has_no_verdict_before_the_next_request_shows_what_came_of_it(new_house: NewHouse) -> None:
    house = await new_house()
    talk = Talk(house)
    first = await talk.say(TASK.format(1))
    await house.sense()
    assert house.outcome(first) is None
    second = await talk.say(CORRECTION)
    await house.sense()
    assert (house.verdict(first).outcome, house.verdict(first).source) == (Outcome.FAIL, Source.DETECTOR)
    assert house.outcome(second) is None


async def test_the_last_turn_is_judged_when_its_session_ends(new_house: NewHouse) -> None:
    house = await new_house(judge=judge(lambda prompt: FAILED))
    talk = Talk(house)
    turn = await talk.say(PLAIN.format(1))
    await house.sense()
    assert house.outcome(turn) is None
    await talk.end()
    await house.sense()
    assert (house.verdict(turn).outcome, house.verdict(turn).source) == (Outcome.FAIL, Source.JUDGE)


async def test_a_session_that_goes_on_after_its_end_is_judged_again_at_its_next_end(new_house: NewHouse) -> None:
    house = await new_house(judge=judge())
    talk = Talk(house)
    first = await talk.say(PLAIN.format(1))
    await talk.end()
    await house.sense()
    second = await talk.say(PLAIN.format(2))
    await talk.end()
    await house.sense()
    assert [house.outcome(turn) for turn in (first, second)] == [Outcome.PASS, Outcome.PASS]
    assert house.judge is not None
    assert house.judge.questions == 2


async def test_what_a_detector_can_tell_is_not_asked(new_house: NewHouse) -> None:
    house = await new_house(judge=judge())
    talk = Talk(house)
    failed = await talk.say(TASK.format(1))
    praised = await talk.say(CORRECTION)
    await talk.say(THANKS)
    await house.sense()
    assert [house.verdict(turn).source for turn in (failed, praised)] == [Source.DETECTOR, Source.DETECTOR]
    assert house.judge is not None
    assert house.judge.asked == []


async def test_the_judge_is_asked_no_more_often_than_its_share_allows(new_house: NewHouse) -> None:
    house = await new_house(judge=judge(), share=0.0)
    talk = Talk(house)
    turn = await talk.say(PLAIN.format(1))
    await talk.end()
    await house.sense()
    assert house.judge is not None
    assert house.judge.asked == []
    assert (house.verdict(turn).outcome, house.verdict(turn).comment) == (Outcome.UNKNOWN, "the judge's share is used up")


async def test_a_question_the_budget_cannot_pay_for_is_put_off_over_restarts_and_asked_when_it_can(new_house: NewHouse) -> None:
    speaker = judge(lambda prompt: BudgetError("used up"))
    house = await new_house(judge=speaker, can_pay=False)
    turn = await unjudged(house)
    assert (house.verdict(turn).outcome, house.verdict(turn).comment) == (Outcome.UNKNOWN, "waits for the learning budget")
    assert house.outcomes.questions.waiting_for_budget == 1
    for _ in range(2):
        house.restart()
        await house.sense()
    assert (speaker.questions, house.outcomes.questions.waiting_for_budget) == (1, 1)
    house.can_pay = True
    speaker.rule = lambda prompt: FAILED
    await house.sense()
    assert house.outcome(turn) is Outcome.FAIL
    assert (speaker.questions, house.outcomes.questions.waiting_for_budget) == (2, 0)


async def test_of_the_questions_that_were_put_off_the_most_suspicious_turn_is_asked_about_first(new_house: NewHouse) -> None:
    speaker = judge()
    house = await new_house(judge=speaker, share=0.0)
    for number, reply in enumerate(("Hm, well.", "Hm, I am not so sure that this is right.", "Hm, well.")):
        talk = Talk(house)
        await talk.say(PLAIN.format(number))
        await talk.say(reply)
    await house.sense()
    asked: list[TurnId] = []
    while len(house.outcomes.questions):
        asked.append(house.outcomes.questions.pop())
    suspicion = [fuse(house.verdict(turn).signals) for turn in asked]
    assert len(set(suspicion)) > 1
    assert suspicion == sorted(suspicion, reverse=True)


async def test_where_nobody_judges_nothing_is_taken_from_the_share(new_house: NewHouse) -> None:
    house = await new_house()
    talk = Talk(house)
    turn = await talk.say(PLAIN.format(1))
    await talk.end()
    await house.sense()
    assert (house.verdict(turn).outcome, house.verdict(turn).comment) == (Outcome.UNKNOWN, "no judge is configured")
    assert house.allowance.questions == 0


async def unjudged(house: House) -> TurnId:
    talk = Talk(house)
    turn = await talk.say(PLAIN.format(1))
    await talk.end()
    await house.sense()
    return turn


async def test_a_judge_that_is_down_leaves_a_turn_unknown_and_is_asked_again_later(new_house: NewHouse) -> None:
    speaker = judge(down)
    house = await new_house(judge=speaker)
    turn = await unjudged(house)
    assert house.outcome(turn) is Outcome.UNKNOWN
    speaker.rule = lambda prompt: FAILED
    await house.sense()
    assert speaker.questions == 1
    house.clock.pass_by(seconds=FIRST_PAUSE_S)
    await house.sense()
    assert house.verdict(turn).outcome is Outcome.FAIL
    house.clock.pass_by(days=1)
    await house.sense()
    assert speaker.questions == 2


async def test_it_is_asked_again_later_each_time_and_only_so_often(new_house: NewHouse) -> None:
    speaker = judge(down)
    house = await new_house(judge=speaker)
    await unjudged(house)
    asked_at = [house.clock.now]
    for _ in range(40):
        before = speaker.questions
        house.clock.pass_by(seconds=30)
        await house.sense()
        asked_at += [house.clock.now] * (speaker.questions - before)
    waits = [(later - earlier).total_seconds() for earlier, later in pairwise(asked_at)]
    assert waits == [FIRST_PAUSE_S * 2**tries for tries in range(MOST_TRIES - 1)]


async def test_a_restart_during_an_outage_neither_forgets_nor_begins_to_count_anew(new_house: NewHouse) -> None:
    speaker = judge(down)
    house = await new_house(judge=speaker)
    turn = await unjudged(house)
    for _ in range(2 * MOST_TRIES):
        house.restart()
        await house.sense()
        house.clock.pass_by(hours=1)
        await house.sense()
    assert speaker.questions == MOST_TRIES
    assert house.outcome(turn) is Outcome.UNKNOWN


async def test_what_a_judge_cannot_put_into_a_vote_is_unknown(new_house: NewHouse) -> None:
    house = await new_house(judge=judge(lambda prompt: "I would rather not say."))
    turn = await unjudged(house)
    assert (house.verdict(turn).outcome, house.verdict(turn).p_fail) == (Outcome.UNKNOWN, None)


async def test_of_a_request_that_failed_and_was_sent_again_only_the_second_answer_is_judged(new_house: NewHouse) -> None:
    house = await new_house(judge=judge())
    talk = Talk(house)
    broken = await talk.say(TASK.format(1), "", end=TurnEnd.FAILED, status=502)
    talk.agent.messages.pop()
    again = await talk.answer(Text("Released on 01/02/2026."), retry_of=broken)
    await house.sense()
    await talk.say(CORRECTION)
    await house.sense()
    assert house.outcome(broken) is None
    assert house.outcome(again) is Outcome.FAIL


async def test_a_task_that_was_sent_again_is_heard_once(new_house: NewHouse) -> None:
    house = await new_house()
    talk = Talk(house)
    broken = await talk.say("From now on, always answer in German.", "", end=TurnEnd.FAILED, status=502)
    talk.agent.messages.pop()
    await talk.answer(Text("Ja."), retry_of=broken)
    await house.live()
    assert len(house.names) == 1


async def test_side_turns_are_nobodys_work_and_are_left_alone(new_house: NewHouse) -> None:
    house = await new_house(judge=judge())
    talk = Talk(house)
    side = await talk.say("Give this conversation a title.", "Cranes", kind=TurnKind.SIDE)
    await talk.end()
    await house.sense()
    assert house.outcome(side) is None
    assert house.allowance.turns == 0


async def test_threads_of_one_session_do_not_hide_each_other(new_house: NewHouse) -> None:
    house = await new_house()
    one, other = Talk(house), Talk(house)
    other.agent.session = one.agent.session
    first = await one.say(TASK.format(1))
    await other.say("Count the words in poem.txt.", "Forty-two.")
    await house.sense()
    await one.say(CORRECTION)
    await house.sense()
    assert house.outcome(first) is Outcome.FAIL


async def test_a_dozen_agents_at_work_in_one_session_do_not_hide_each_other_either(new_house: NewHouse) -> None:
    house = await new_house()
    things = ["tulip", "violin", "harbour", "ledger", "kettle", "glacier", "saddle", "comet", "loom", "anchor", "mosaic", "bridge"]
    talks = [Talk(house) for _ in things]
    for talk in talks:
        talk.agent.session = talks[0].agent.session
    first = [await talk.say(f"{thing.title()}: {thing}-one, {thing}-two.") for thing, talk in zip(things, talks, strict=True)]
    await house.sense()
    for talk in talks:
        await talk.say(CORRECTION)
    await house.sense()
    assert [house.outcome(turn) for turn in first] == [Outcome.FAIL] * len(talks)


async def test_the_agents_next_answer_counts_as_evidence_too(new_house: NewHouse) -> None:
    house = await new_house()
    talk = Talk(house)
    talk.agent.hear("Fix the totals.")
    talk.segment = 0
    edit = await talk.answer(call("Edit", file_path="a.py", old_string="x = 1", new_string="x = 2"))
    talk.agent.give("The file was edited.")
    await talk.answer(call("Edit", file_path="a.py", old_string="x = 2", new_string="x = 1"))
    await house.sense()
    assert "undone.by_agent" in [signal.detector for signal in house.verdict(edit).signals]


async def test_whoever_is_at_work_is_looked_at_often_and_nobody_seldom() -> None:
    looks = [pause_s(in_vain) for in_vain in range(300)]
    assert looks == sorted(looks)
    assert (looks[0], looks[-1]) == (0.25, 1.0)
    assert sum(looks[: looks.index(1.0)]) >= 30


async def test_what_a_user_has_said_stands_whatever_is_sensed_later(new_house: NewHouse) -> None:
    house = await new_house(judge=judge(lambda prompt: PASSED))
    talk = Talk(house)
    turn = await talk.say(TASK.format(1))
    await house.owner.feedback(turn, Outcome.PASS, "It was fine.")
    await talk.say(CORRECTION)
    await talk.end()
    await house.sense()
    assert (house.verdict(turn).outcome, house.verdict(turn).source) == (Outcome.PASS, Source.USER)


async def test_a_user_who_speaks_while_the_judge_thinks_has_the_last_word(new_house: NewHouse) -> None:
    speaker = judge(lambda prompt: PASSED)
    house = await new_house(judge=speaker)
    talk = Talk(house)
    turn = await talk.say(PLAIN.format(1))
    await talk.end()

    def interrupted(prompt: str) -> object:
        house.say(turn, Outcome.FAIL, Source.USER)
        return PASSED

    speaker.rule = interrupted
    await house.sense()
    assert (house.verdict(turn).outcome, house.verdict(turn).source) == (Outcome.FAIL, Source.USER)


class Slow(Speaker):
    """A judge that thinks until it is told to answer."""

    def __init__(self) -> None:
        super().__init__("world/judge", lambda prompt: PASSED)
        self.began, self.may_answer = anyio.Event(), anyio.Event()

    async def ask(self, request: ChatRequest, purpose: Purpose) -> Completion:
        self.began.set()
        await self.may_answer.wait()
        return await super().ask(request, purpose)


async def test_a_turn_that_waits_for_the_judge_is_not_assessed_twice(new_house: NewHouse) -> None:
    speaker = Slow()
    house = await new_house(judge=speaker)
    talk = Talk(house)
    turn = await talk.say(PLAIN.format(1))
    await talk.end()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as judging:
            await house.outcomes.poll(judging)
            await speaker.began.wait()
            await talk.say("Now something else: which ferries are there?", "Three.")
            await house.outcomes.poll(judging)
            speaker.may_answer.set()
    assert [verdict.source for verdict in house.verdicts.verdicts_of(turn)] == [Source.JUDGE]
    assert speaker.questions == 1


async def test_a_program_killed_while_the_judge_thinks_asks_again_and_judges_once(new_house: NewHouse) -> None:
    speaker = Slow()
    house = await new_house(judge=speaker)
    turns = []
    for number in range(3):
        talk = Talk(house)
        turns.append(await talk.say(PLAIN.format(number)))
        await talk.end()
        house.clock.pass_by(seconds=1)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as judging:
            await house.outcomes.poll(judging)
            await speaker.began.wait()
            judging.cancel_scope.cancel()
    assert [house.outcome(turn) for turn in turns] == [None] * 3
    house.restart()
    speaker.may_answer.set()
    await house.sense()
    await house.sense()
    assert [len(house.verdicts.verdicts_of(turn)) for turn in turns] == [1] * 3
    assert speaker.questions == 3


async def test_a_loop_that_is_started_again_takes_up_what_it_had_left(new_house: NewHouse) -> None:
    house = await new_house(judge=judge())
    talk = Talk(house)
    turn = await talk.say(PLAIN.format(1))
    await talk.end()
    async with anyio.create_task_group() as judging:
        await house.outcomes.poll(judging)
        judging.cancel_scope.cancel()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(house.outcomes.run)
            while house.outcome(turn) is None:
                house.outcomes.wakeup.notify()
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
    assert house.outcome(turn) is Outcome.PASS


async def test_what_is_done_is_not_read_again_after_a_restart(new_house: NewHouse) -> None:
    house = await new_house(judge=judge())
    talk = Talk(house)
    for number in range(3):
        await talk.say(PLAIN.format(number))
    await talk.end()
    await house.live()
    await house.sense()
    assert house.cursors.cursor("sensing") == 3
    house.restart()
    house.allowance.earn()
    await house.sense()
    assert house.allowance.turns == 1


async def test_words_that_nobody_has_made_anything_of_yet_are_heard_again_after_a_restart(new_house: NewHouse) -> None:
    house = await new_house()
    await Talk(house).say("From now on, always answer in German.")
    await house.sense()
    house.restart()
    await house.live()
    assert len(house.names) == 1
    await house.sense()
    house.restart()
    await house.live()
    assert len(house.candidates.candidates()) == 1


async def test_a_session_that_is_forgotten_while_the_judge_thinks_stops_nothing(new_house: NewHouse) -> None:
    speaker = judge()
    house = await new_house(judge=speaker)
    talk = Talk(house)
    turn = await talk.say(PLAIN.format(1))
    await talk.end()
    forgetting = SqlForgetting(house.database)
    speaker.rule = lambda prompt: (forgetting.forget_session(talk.session), PASSED)[1]
    await house.sense()
    assert house.reader.turn(turn) is None
    other = Talk(house, Scope("bob"))
    told = await other.say(TASK.format(1))
    await other.say(CORRECTION)
    await house.sense()
    assert house.outcome(told) is Outcome.FAIL


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
def test_questions_never_exceed_the_share_of_turns_and_what_was_in_hand(share: float, happened: list[bool]) -> None:
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
