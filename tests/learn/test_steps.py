"""Steps from recorded turns: the request, the answer, and the messages that followed it."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.domain.chat import (
    ChatRequest,
    Completion,
    Finish,
    Message,
    Opaque,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    Wire,
)
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.turn import SUBAGENT, Exchange, Step, TurnEnd, TurnKind
from metaclaw.learn.steps import StepBuilder, without_bodies
from metaclaw.proxy.sessions import conversation, recognition
from metaclaw.proxy.sessions.recognition import CLIENTS
from metaclaw.store import RecordedTurn
from metaclaw.wires import wire_format
from tests.learn.learning import CORRECTION, TASK, ScriptedLearning, Talk
from tests.learn.recordings import Agent, call, say, turn_of, words
from tests.support.cases import each

BUILDER = StepBuilder(words)


def step(agent: Agent, number: int = 0) -> Step:
    following = agent.turns[number + 1] if number + 1 < len(agent.turns) else None
    built = BUILDER.build(agent.turns[number], following, is_last=following is None)
    assert built is not None
    return built


def texts(messages: tuple[Message, ...]) -> list[str]:
    parts = [part for message in messages for part in message.parts]
    inner = [
        piece
        for part in parts
        for piece in (part.parts if isinstance(part, ToolResult) else (part,))
    ]
    return [part.text for part in inner if isinstance(part, Text)]


@pytest.mark.parametrize(
    "change", [{"parent": SessionId("s_who_hired_it")}, {"kind_reason": SUBAGENT}]
)
def test_in_a_sub_agents_turns_nobody_speaks_who_could_praise_or_blame(
    change: dict[str, Any],
) -> None:
    agent = (
        Agent(Wire.CHAT)
        .hear("Count the tests.")
        .answer(Text("Ten."))
        .hear("No, that is wrong.")
        .answer(Text("Eleven."))
    )
    assert (step(agent).said_after, step(agent).is_subagent) == ("No, that is wrong.", False)

    hired = [replace(one, turn=replace(one.turn, **change)) for one in agent.turns]
    first, _ = BUILDER.chain(hired)
    assert (first.task, first.said_after, first.is_subagent) == ("Count the tests.", None, True)


@each("wire", Wire)
@each("stream", [False, True])
def test_a_turn_is_seen_with_its_task_its_answer_and_what_came_after(
    wire: Wire, stream: bool
) -> None:
    agent = Agent(wire, stream).hear("Fix the test.<system-reminder>be kind</system-reminder>")
    agent.answer(Text("I look."), call("Read", file_path="a.py"), call("Grep", pattern="x")).give(
        "print(1)", "a.py:1"
    )
    agent.answer(Text("Done.")).hear("No, use tabs.").answer(Text("Sorry."))
    first, second, third = BUILDER.chain(agent.turns, is_ended=True)

    assert first.task == "Fix the test."
    assert [made.name for made in first.calls] == ["Read", "Grep"]
    assert [result.call_id for result in first.results] == ["call_1", "call_2"]
    assert texts(first.after) == ["print(1)", "a.py:1"]
    assert first.said_after is None
    assert (first.model, first.end, first.is_last, first.previous) == (
        "m-1",
        TurnEnd.COMPLETED,
        False,
        None,
    )
    assert {tool.name for tool in first.tools} >= {"Read", "Bash"}

    assert (second.task, second.answer, second.said_after) == (
        "Fix the test.",
        (Text("Done."),),
        "No, use tabs.",
    )
    assert second.previous is first
    assert texts(second.after) == ["No, use tabs."]

    assert (third.task, third.after, third.said_after, third.is_last) == (
        "No, use tabs.",
        (),
        None,
        True,
    )
    assert texts(third.history)[:2] == [
        "You are a coding agent.",
        "Fix the test.<system-reminder>be kind</system-reminder>",
    ]


@pytest.mark.parametrize("wire", Wire)
def test_one_turn_at_a_time_gives_the_same_steps(wire: Wire) -> None:
    agent = (
        Agent(wire)
        .hear("Go.")
        .use(call("Bash", command="ls"), "a")
        .answer(Text("Done."))
        .hear("Thanks!")
        .answer(Text("Bye."))
    )
    whole = BUILDER.chain(agent.turns, is_ended=True)
    previous: Step | None = None
    for number, expected in enumerate(whole):
        later = agent.turns[number + 1 :]
        built = BUILDER.build(
            agent.turns[number], BUILDER.following(agent.turns[number], later), not later, previous
        )
        assert built == expected
        previous = built


def test_side_turns_and_turns_that_cannot_be_read_give_no_step() -> None:
    agent = Agent(Wire.CHAT).hear("Go.").answer(Text("Done."))
    turn = agent.turns[0].turn
    assert BUILDER.build(RecordedTurn(1, replace(turn, kind=TurnKind.SIDE)), None) is None
    for body in (b"", b"[]", b"{", b'{"model": 1}', b"\xff"):
        assert BUILDER.build(RecordedTurn(1, replace(turn, exchange=Exchange(body))), None) is None
    assert BUILDER.chain([]) == []
    assert BUILDER.chain([RecordedTurn(1, replace(turn, kind=TurnKind.SIDE))]) == []


@pytest.mark.parametrize("wire", Wire)
def test_an_answer_that_broke_off_is_known_as_far_as_it_came(wire: Wire) -> None:
    agent = Agent(wire, stream=True).hear("Tell me a story.").answer(Text("Once upon a time"))
    turn = agent.turns[0].turn
    said = turn.exchange.said
    cut = said[
        : said.index(b"Once upon a time")
        + said[said.index(b"Once upon a time") :].index(b"\n\n")
        + 2
    ]
    broken = replace(turn, end=TurnEnd.CANCELLED, exchange=replace(turn.exchange, said=cut))
    built = BUILDER.build(RecordedTurn(1, broken), None)
    assert built is not None
    assert (built.answer, built.end) == ((Text("Once upon a time"),), TurnEnd.CANCELLED)


def test_an_answer_that_is_an_error_says_nothing() -> None:
    turn = Agent(Wire.CHAT).hear("Go.").answer(Text("Done.")).turns[0].turn
    failed = replace(
        turn,
        end=TurnEnd.FAILED,
        status=500,
        exchange=replace(turn.exchange, said=b'{"error": {"message": "no"}}'),
    )
    built = BUILDER.build(RecordedTurn(1, failed), None)
    assert built is not None
    assert (built.answer, built.end) == ((), TurnEnd.FAILED)


def test_a_client_that_clears_old_tool_output_and_strips_ids_is_followed() -> None:
    agent = (
        Agent(Wire.CHAT)
        .hear("Go.")
        .use(call("Bash", command="ls"), "a b c")
        .use(call("Bash", command="pwd"), "/x")
    )
    agent.answer(Text("Done.")).hear("Thanks.").answer(Text("Bye."))
    for number, recorded in enumerate(agent.turns):
        # The first message is another one each time, so that only the ids tell.
        body = (
            recorded.turn.exchange.request.replace(b'"call_', b'"call')
            .replace(b"Go.", b"Go %d." % number)
            .replace(b"a b c", b"[Old tool result content cleared]")
        )
        agent.turns[number] = replace(
            recorded,
            turn=replace(recorded.turn, exchange=replace(recorded.turn.exchange, request=body)),
        )
    steps = BUILDER.chain(agent.turns)
    assert [texts(built.after) for built in steps] == [
        ["[Old tool result content cleared]"],
        ["/x"],
        ["Thanks."],
        [],
    ]


@pytest.mark.parametrize("wire", Wire)
def test_a_client_that_rewrites_old_messages_is_followed_by_the_answer_itself(wire: Wire) -> None:
    agent = (
        Agent(wire)
        .hear("Go on with the long story about the bug.")
        .use(call("Bash", command="ls"), "a")
    )
    agent.messages[0] = say("(shortened)")
    agent.answer(Text("It was the cache.")).hear("Really?").answer(Text("Yes."))
    agent.messages[0] = say("(even shorter)")
    steps = BUILDER.chain(agent.turns)
    assert texts(steps[0].after) == ["a"]
    assert (texts(steps[1].after), steps[1].said_after) == (["Really?"], "Really?")


@pytest.mark.parametrize("wire", Wire)
def test_after_a_compaction_only_what_is_new_came_after(wire: Wire) -> None:
    agent = (
        Agent(wire)
        .hear("Go.")
        .use(call("Bash", command="ls"), "a")
        .answer(Text("The result is long."))
    )
    agent.messages = [
        say("Go."),
        say("This session is being continued from a previous conversation: …"),
        say("And now tests."),
    ]
    agent.answer(Text("Good."))
    last = BUILDER.chain(agent.turns)[1]
    assert last.said_after == "And now tests."
    assert "Go." not in texts(last.after)


def test_the_same_request_again_adds_nothing() -> None:
    agent = Agent(Wire.CHAT).hear("Go.").answer(Text("One."))
    agent.messages.pop()
    agent.answer(Text("Two."))
    assert step(agent).after == ()
    retry = replace(
        agent.turns[1], turn=replace(agent.turns[1].turn, retry_of=agent.turns[0].turn.id)
    )
    built = BUILDER.build(agent.turns[0], retry)
    assert built is not None
    assert built.after == ()


def test_a_retry_is_passed_over_and_the_answer_that_was_kept_is_followed() -> None:
    agent = Agent(Wire.CHAT).hear("Go.").answer(Text("One."))
    agent.messages.pop()
    agent.answer(Text("Two.")).hear("Good.").answer(Text("Bye."))
    assert BUILDER.following(agent.turns[1], agent.turns[2:]) is agent.turns[2]
    assert step(agent, 1).said_after == "Good."
    # The first answer is in no later request, and the person's words are about the other one.
    (dropped,) = BUILDER.chain(agent.turns, is_ended=True)
    assert (dropped.answer, dropped.after, dropped.is_last) == ((Text("One."),), (), False)


def test_a_message_that_was_edited_and_sent_again_is_what_the_person_said_next() -> None:
    agent = (
        Agent(Wire.MESSAGES)
        .hear("Hello.")
        .answer(Text("Hi."))
        .hear("Sort it.")
        .answer(Text("Sorted up."))
    )
    del agent.messages[-2:]
    agent.hear("Sort it downwards.").answer(Text("Sorted down."))
    assert step(agent, 1).said_after == "Sort it downwards."
    assert texts(step(agent, 1).after) == ["Sort it downwards."]


def test_words_that_were_said_before_are_not_taken_for_the_same_answer() -> None:
    agent = Agent(Wire.CHAT).hear("A.").answer(Text("Done.")).hear("B.").answer(Text("Done."))
    agent.hear("C.").answer(Text("Fine.")).hear("D.").answer(Text("Done."))
    del agent.messages[-2:]
    agent.messages[0] = say("A, rewritten.")
    agent.hear("E.").answer(Text("Done."))
    built = step(agent, 3)
    assert (built.answer, texts(built.after)) == ((Text("Done."),), ["E."])


def test_what_a_client_glues_to_the_newest_words_only_is_no_part_of_them() -> None:
    """The answers are all the same, so only their places tell them apart."""
    agent = Agent(Wire.MESSAGES)
    for said in ("A.", "B.", "A."):
        agent.hear(f"{said}<system-reminder>only now</system-reminder>").answer(Text("Done."))
        agent.messages[-2] = say(said)
    assert [built.said_after for built in BUILDER.chain(agent.turns)] == ["B.", "A.", None]
    assert [built.task for built in BUILDER.chain(agent.turns)] == ["A.", "B.", "A."]


@pytest.mark.parametrize("rewrites", [False, True])
def test_ids_that_are_used_again_in_a_session_do_not_confuse(rewrites: bool) -> None:
    agent = Agent(Wire.CHAT).hear("Go.")
    for text in ("one", "two", "three"):
        agent.use(replace(call("Bash", command=text), id="call_0"), text)
        if rewrites:
            agent.messages[0] = say(f"Go on behind {text}.")
    agent.answer(Text("Done."))
    assert [texts(built.after) for built in BUILDER.chain(agent.turns)] == [
        ["one"],
        ["two"],
        ["three"],
        [],
    ]


@pytest.mark.parametrize("wire", [Wire.CHAT, Wire.MESSAGES])
def test_the_beginning_of_an_answer_that_the_caller_wrote_is_no_obstacle(wire: Wire) -> None:
    agent = Agent(wire).hear("Give JSON.")
    agent.messages.append(Message(Role.ASSISTANT, (Text("{"),)))
    agent.answer(Text('"a": 1}'))
    agent.messages[-2:] = [Message(Role.ASSISTANT, (Text('{"a": 1}'),))]
    agent.hear("Give JSON.")
    agent.messages.append(Message(Role.ASSISTANT, (Text("{"),)))
    agent.answer(Text('"b": 1}'))
    built = step(agent)
    assert (texts(built.after), built.said_after) == (["Give JSON."], "Give JSON.")


def test_history_left_with_the_provider_is_joined_from_the_step_before() -> None:
    first = ChatRequest(
        Wire.RESPONSES, "m", (Message(Role.SYSTEM, (Text("Be short."),)), say("Go."))
    )
    looked = turn_of(first, (ToolCall("c1", "Bash", "{}"),), number=1)
    given = (
        Message(Role.SYSTEM, (Text("Be brief."),)),
        Message(Role.TOOL, (ToolResult("c1", (Text("a"),)),)),
    )
    identity = json.loads(looked.exchange.said)["id"]
    second = turn_of(
        ChatRequest(Wire.RESPONSES, "m", given, extra={"previous_response_id": identity}),
        (Text("Done."),),
    )
    third = turn_of(
        ChatRequest(
            Wire.RESPONSES,
            "m",
            (say("No."),),
            extra={"previous_response_id": json.loads(second.exchange.said)["id"]},
        ),
        (Text("Oh."),),
    )
    steps = BUILDER.chain(
        [RecordedTurn(at, turn) for at, turn in enumerate((looked, second, third))]
    )
    assert [texts(built.after) for built in steps] == [["a"], ["No."], []]
    assert [built.task for built in steps] == ["Go.", "Go.", "No."]
    assert texts(steps[1].history) == ["Be brief.", "Go.", "a"]
    assert texts(steps[2].history) == ["Be brief.", "Go.", "a", "Done.", "No."]


def test_reasoning_and_what_only_one_wire_knows_do_not_break_the_chain() -> None:
    agent = (
        Agent(Wire.MESSAGES)
        .hear("Go.")
        .answer(Reasoning("hm", "messages:sig"), Text("I look."), call("Bash", command="ls"))
    )
    agent.messages[-1] = replace(agent.messages[-1], parts=agent.messages[-1].parts[1:])
    agent.give("a").answer(Text("Done."))
    assert texts(step(agent).after) == ["a"]
    request = ChatRequest(
        Wire.MESSAGES,
        "m",
        (say("Go."),),
        (Opaque(Wire.MESSAGES, {"type": "computer_20250124", "name": "computer"}),),
    )
    built = BUILDER.build(RecordedTurn(1, turn_of(request, (Text("Done."),))), None)
    assert built is not None
    assert built.tools == ()


def test_other_threads_of_a_session_are_passed_over() -> None:
    mine = (
        Agent(Wire.CHAT)
        .hear("Fix a.")
        .use(call("Bash", command="ls a"), "a")
        .answer(Text("Fixed a."))
    )
    other = (
        Agent(Wire.CHAT, session=mine.session, calls=50)
        .hear("Fix b.")
        .use(call("Bash", command="ls b"), "b")
        .answer(Text("b."))
    )
    turns = [recorded for pair in zip(mine.turns, other.turns, strict=True) for recorded in pair]
    steps = BUILDER.chain(turns)
    assert [built.turn for built in steps] == [recorded.turn.id for recorded in mine.turns]
    assert texts(steps[0].after) == ["a"]


def test_the_beginning_of_another_conversation_follows_nothing() -> None:
    mine = Agent(Wire.CHAT).hear("Fix a.").answer(Text("Fixed a."))
    other = (
        Agent(Wire.CHAT, session=mine.session)
        .hear("Write a poem about snow.")
        .answer(Text("Snow."))
    )
    assert BUILDER.following(mine.turns[0], other.turns) is None
    edited = Agent(Wire.CHAT, session=mine.session).hear("Fix a. now").answer(Text("Fixed."))
    assert BUILDER.following(mine.turns[0], edited.turns) is edited.turns[0]


SAID = st.text("abc .", min_size=1, max_size=8).filter(lambda text: text.strip() == text)


@given(
    wire=st.sampled_from(Wire),
    rounds=st.lists(st.tuples(SAID, st.lists(SAID, max_size=3), SAID), min_size=1, max_size=4),
    stream=st.booleans(),
)
def test_every_result_and_every_word_comes_after_exactly_one_answer(
    wire: Wire, rounds: list[tuple[str, list[str], str]], stream: bool
) -> None:
    agent = Agent(wire, stream)
    given_: list[str] = []
    for wanted, results, said in rounds:
        agent.hear(wanted)
        given_.append(wanted)
        for result in results:
            agent.use(call("Bash", command=result), result)
            given_.append(result)
        agent.answer(Text(said))
    steps = BUILDER.chain(agent.turns, is_ended=True)
    assert len(steps) == len(agent.turns)
    assert [text for built in steps for text in texts(built.after)] == given_[1:]
    assert [built.said_after for built in steps if built.said_after] == [
        wanted for wanted, _, _ in rounds[1:]
    ]
    assert [built.is_last for built in steps] == [False] * (len(steps) - 1) + [True]


# What real clients sent, one request after the other.

CHAINS = {
    "claude-code-2.1.325": (Wire.MESSAGES, "claude-code", "run one command and say hello"),
    "codex-0.166.0": (Wire.RESPONSES, "codex", "say hello and run one command"),
    "openclaw-2026.9.6": (Wire.CHAT, "openclaw", "say hello and run one command"),
    "hermes-agent-0.19.0": (Wire.CHAT, "hermes", "say hello and run one command"),
    "mini-swe-agent-2.4.6": (Wire.CHAT, "mini-swe-agent", "say hello and run one command"),
}


def captured(shared: Path, name: str) -> ChatRequest:
    for kind in ("", "chat_"):
        path = shared / "captures" / name.replace("__", f"__{kind}")
        if path.is_file():
            capture: dict[str, Any] = json.loads(path.read_text())
            wire = CHAINS[name.partition("__")[0]][0]
            return wire_format(wire).parse_request(capture["body"])
    pytest.skip(f"needs the recorded request {name}: docs/captures.md tells how to record it")


def own_words(agent: str, text: str) -> str:
    """As the proxy takes a person's words out of a message."""
    client = next(client for client in CLIENTS if client.name == agent)
    return recognition.words(client, conversation.without_ephemeral(text))


def spoken(request: ChatRequest) -> list[Message]:
    return [message for message in request.messages if message.role is not Role.SYSTEM]


def answer_between(request: ChatRequest, following: ChatRequest) -> tuple[Part, ...]:
    """What the model must have said between two requests of a conversation."""
    added = spoken(following)[len(spoken(request)) :]
    parts: list[Part] = []
    for message in added:
        if message.role is not Role.ASSISTANT:
            break
        parts += [part for part in message.parts if not isinstance(part, Reasoning)]
    return tuple(parts)


@pytest.mark.parametrize("client", CHAINS)
def test_what_came_after_is_found_in_the_requests_of_real_clients(
    shared: Path, client: str
) -> None:
    wire, agent, task = CHAINS[client]
    kinds = ["main_first", "main_tool_result", "main_parallel_tool_results"]
    requests = [captured(shared, f"{client}__{kind}.json") for kind in kinds]
    turns = []
    for number, request in enumerate(requests):
        answer = (
            answer_between(request, requests[number + 1])
            if number + 1 < len(requests)
            else (Text("Done."),)
        )
        completion = Completion(f"a{number}", "m", answer, Finish.STOP)
        body = json.dumps(wire_format(wire).render_request(request)).encode()
        said = wire_format(wire).render_answer(completion, request)
        turn = turn_of(request, (), agent=agent, stream=False)
        turns.append(RecordedTurn(number, replace(turn, exchange=Exchange(body, said=said))))
    steps = StepBuilder(own_words).chain(turns)
    assert len(steps) == 3
    results = [
        ["".join(texts((Message(Role.TOOL, (result,)),))) for result in built.results]
        for built in steps
    ]
    assert len(results[0]) == 1
    assert "tool-ok-1" in results[0][0]
    assert len(results[1]) == 2
    assert "tool-ok-2a" in results[1][0]
    assert "tool-ok-2b" in results[1][1]
    assert results[2] == []
    assert all(task in built.task for built in steps)
    assert all(built.said_after is None for built in steps)


pytestmark = pytest.mark.anyio
NewLearning = Callable[..., Awaitable[ScriptedLearning]]


async def test_a_turn_is_read_with_the_persons_next_words(new_learning: NewLearning) -> None:
    learning = await new_learning()
    talk = Talk(learning)
    first = await talk.say(TASK.format(1))
    second = await talk.say(CORRECTION)
    found = learning.recorded.with_following(first)
    assert found is not None
    assert (found.step.said_after, found.followed_by, found.step.is_last) == (
        CORRECTION,
        second,
        False,
    )
    alone = learning.recorded.alone(first)
    assert alone is not None
    assert (alone.task, alone.said_after) == (TASK.format(1), None)


async def test_the_turn_of_another_thread_is_not_what_followed(new_learning: NewLearning) -> None:
    learning = await new_learning()
    one, other = Talk(learning), Talk(learning)
    other.agent.session = one.agent.session
    first = await one.say(TASK.format(1))
    await other.say("Count the words in poem.txt.", "Forty-two.")
    second = await one.say(CORRECTION)
    found = learning.recorded.with_following(first)
    assert found is not None
    assert (found.step.said_after, found.followed_by) == (CORRECTION, second)


async def test_the_same_request_sent_again_is_not_what_followed(new_learning: NewLearning) -> None:
    learning = await new_learning()
    talk = Talk(learning)
    broken = await talk.say(TASK.format(1), "", end=TurnEnd.FAILED)
    talk.agent.messages.pop()
    await talk.answer(Text("Released on 01/02/2026."), retry_of=broken)
    found = learning.recorded.with_following(broken)
    assert found is not None
    assert found.followed_by is None


async def test_a_turn_is_the_last_once_its_session_has_ended(new_learning: NewLearning) -> None:
    learning = await new_learning()
    talk = Talk(learning)
    turn = await talk.say(TASK.format(1))
    before = learning.recorded.step(turn)
    await talk.end()
    after = learning.recorded.step(turn)
    assert before is not None
    assert after is not None
    assert (before.is_last, after.is_last) == (False, True)


async def test_what_is_not_there_or_is_no_work_has_no_step(new_learning: NewLearning) -> None:
    learning = await new_learning()
    side = await Talk(learning).say("A title, please.", "Cranes", kind=TurnKind.SIDE)
    for turn in (side, TurnId("t_nobody")):
        assert learning.recorded.step(turn) is None
        assert learning.recorded.alone(turn) is None


async def test_where_the_provider_keeps_the_conversation_the_task_is_found_in_an_earlier_turn(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    talk = Talk(learning, wire=Wire.RESPONSES)
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
    step = learning.recorded.step(second)
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


async def test_a_step_without_bodies_still_says_what_it_was_about(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    talk = Talk(learning)
    first = await talk.say(TASK.format(1))
    await talk.say(CORRECTION)
    step = learning.recorded.step(first)
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
    agent = (
        Agent(Wire.CHAT)
        .hear(TASK.format(1))
        .answer(Text("Done."))
        .hear(CORRECTION)
        .answer(Text("Sorry."))
    )
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
