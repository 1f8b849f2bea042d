"""A recorded turn is read with what truly came before and after it, whoever else spoke in between; and it is parsed once."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from metaclaw.domain.chat import Text, Wire
from metaclaw.domain.ids import TurnId
from metaclaw.domain.turn import TurnEnd, TurnKind
from metaclaw.learn.steps import StepBuilder, without_bodies
from tests.learn.house import CORRECTION, TASK, House, Talk
from tests.learn.recordings import Agent, call, words

pytestmark = pytest.mark.anyio
NewHouse = Callable[..., Awaitable[House]]


async def test_a_turn_is_read_with_the_persons_next_words(new_house: NewHouse) -> None:
    house = await new_house()
    talk = Talk(house)
    first = await talk.say(TASK.format(1))
    second = await talk.say(CORRECTION)
    found = house.recorded.with_following(first)
    assert found is not None
    assert (found.step.said_after, found.followed_by, found.step.is_last) == (CORRECTION, second, False)
    alone = house.recorded.alone(first)
    assert alone is not None
    assert (alone.task, alone.said_after) == (TASK.format(1), None)


async def test_the_turn_of_another_thread_is_not_what_followed(new_house: NewHouse) -> None:
    house = await new_house()
    one, other = Talk(house), Talk(house)
    other.agent.session = one.agent.session
    first = await one.say(TASK.format(1))
    await other.say("Count the words in poem.txt.", "Forty-two.")
    second = await one.say(CORRECTION)
    found = house.recorded.with_following(first)
    assert found is not None
    assert (found.step.said_after, found.followed_by) == (CORRECTION, second)


async def test_the_same_request_sent_again_is_not_what_followed(new_house: NewHouse) -> None:
    house = await new_house()
    talk = Talk(house)
    broken = await talk.say(TASK.format(1), "", end=TurnEnd.FAILED)
    talk.agent.messages.pop()
    await talk.answer(Text("Released on 01/02/2026."), retry_of=broken)
    found = house.recorded.with_following(broken)
    assert found is not None
    assert found.followed_by is None


async def test_a_turn_is_the_last_once_its_session_has_ended(new_house: NewHouse) -> None:
    house = await new_house()
    talk = Talk(house)
    turn = await talk.say(TASK.format(1))
    before = house.recorded.step(turn)
    await talk.end()
    after = house.recorded.step(turn)
    assert before is not None
    assert after is not None
    assert (before.is_last, after.is_last) == (False, True)


async def test_what_is_not_there_or_is_no_work_has_no_step(new_house: NewHouse) -> None:
    house = await new_house()
    side = await Talk(house).say("A title, please.", "Cranes", kind=TurnKind.SIDE)
    for turn in (side, TurnId("t_nobody")):
        assert house.recorded.step(turn) is None
        assert house.recorded.alone(turn) is None


async def test_where_the_provider_keeps_the_conversation_the_task_is_found_in_an_earlier_turn(new_house: NewHouse) -> None:
    house = await new_house()
    talk = Talk(house, wire=Wire.RESPONSES)
    talk.agent.hear("Read a.txt and tell me what it says.")
    talk.segment = 0
    await talk.answer(call("Read", file_path="a.txt"))
    talk.agent.give("Nothing at all.")
    # The next request holds nothing but the tool's result, and the name of the answer before.
    turn = talk.agent.turns[-1].turn
    messages = list(talk.agent.messages)
    talk.agent.messages[:] = messages[-1:]
    talk.agent.system = ""
    second = await talk.answer(Text("It is empty."), **continues(talk.agent))
    step = house.recorded.step(second)
    assert turn.id != second
    assert step is not None
    assert step.task == "Read a.txt and tell me what it says."


def continues(agent: Agent) -> dict[str, object]:
    """The bytes of a request that goes on from the last answer by its name."""
    made = agent.turns[-1].turn
    fresh = Agent(Wire.RESPONSES, system="", session=agent.session, messages=list(agent.messages))
    fresh.answer(Text("It is empty."))
    body = fresh.turns[-1].turn.exchange.request
    name = f'{{"previous_response_id":"answer{len(agent.turns) - 1}",'.encode()
    assert made.exchange.said.find(name.split(b'"')[3]) >= 0
    return {"exchange": replace(fresh.turns[-1].turn.exchange, request=body.replace(b"{", name, 1))}


async def test_a_step_without_bodies_still_says_what_it_was_about(new_house: NewHouse) -> None:
    house = await new_house()
    talk = Talk(house)
    first = await talk.say(TASK.format(1))
    await talk.say(CORRECTION)
    step = house.recorded.step(first)
    assert step is not None
    light = without_bodies(step)
    assert (light.task, light.said_after, light.turn) == (step.task, CORRECTION, first)
    assert (light.history, light.answer, light.after) == ((), (), ())


def test_a_turn_is_parsed_once_and_never_mistaken_for_another() -> None:
    heard: list[str] = []

    def counted(agent: str, text: str) -> str:
        heard.append(text)
        return words(agent, text)

    builder = StepBuilder(counted)
    agent = Agent(Wire.CHAT).hear(TASK.format(1)).answer(Text("Done.")).hear(CORRECTION).answer(Text("Sorry."))
    first, second = agent.turns
    assert builder.following(first, [second]) is second
    marks = heard.count(TASK.format(1))
    assert builder.following(first, [second]) is second
    assert heard.count(TASK.format(1)) == marks
    changed = replace(first, turn=replace(first.turn, kind=TurnKind.SIDE))
    assert builder.build(changed, None) is None
    assert builder.build(first, second) is not None
    builder.forget()
    assert builder.following(first, [second]) is second
    assert heard.count(TASK.format(1)) > marks
