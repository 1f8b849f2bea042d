"""Where a skill stands in the prompt of a recorded turn."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from metaclaw.domain.chat import (
    ChatRequest,
    Message,
    Role,
    Text,
    Wire,
)
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import Anchor, Placement, Stamp, Turn
from metaclaw.learn.replay import (
    ReplayPrompt,
)
from metaclaw.learn.steps import StepBuilder, read_request
from metaclaw.proxy.splice import placement_splices
from metaclaw.skills import Budgets, render_block
from metaclaw.wires import encode_json, wire_format
from tests.learn.recordings import Agent, call, say, words
from tests.support.cases import each

TABS = Skill(SkillName("use-tabs"), "When writing Go", "Indent with tabs, never with spaces.")


OLDER = Skill(SkillName("indent-well"), "When writing code", "Indent well.")


BESIDE = Skill(SkillName("be-brief"), "Always", "Be brief.")


def texts(request: ChatRequest) -> str:
    return "\n".join(
        part.text
        for message in request.messages
        for part in message.parts
        if isinstance(part, Text)
    )


def coding(wire: Wire, **fields: object) -> Agent:
    """The agent reads, tests, edits, tests again, and says so with spaces; the person wants
    tabs.
    """
    agent = Agent(wire, **fields)  # type: ignore[arg-type]
    agent.hear("Fix the Go test.")
    for made, result in STEPS:
        agent.use(made, result)
    return (
        agent.answer(Text("Fixed with spaces.")).hear("I want tabs there.").answer(Text("Sorry."))
    )


STEPS = [
    (call("Read", file_path="a.go"), "func main"),
    (call("Bash", command="go test ./..."), "FAIL"),
    (call("Edit", file_path="a.go", old_string="x", new_string="y"), "The file was edited."),
    (call("Bash", command="go test ./..."), "ok"),
]


_OUTSIDE = (
    "socket.connect",
    "socket.bind",
    "socket.sendto",
    "socket.getaddrinfo",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.fork",
)


_watching: list[list[str]] = []


def spliced(turn: Turn, skills: Sequence[Skill], task: int | None = None) -> Turn:
    """The turn as the proxy would have sent it with these skills: behind the task at this index, or
    in the system text.
    """
    text = render_block(skills, 1500).text.removeprefix("\n\n")
    anchor = b"" if task is None else b"task"
    placement = Placement(anchor, tuple(skill.name for skill in skills), text)
    body = turn.exchange.request
    anchors = () if task is None else (Anchor(task, anchor),)
    placed = placement_splices(turn.wire, body, json.loads(body), [placement], anchors)
    assert placed.refused is None
    return replace(
        turn,
        placements=placed.placed,
        exchange=replace(turn.exchange, splices=placed.splices),
        stamp=Stamp(1, 0, "h", placement.skills),
    )


def stage(turn: Turn, *known: Skill) -> ReplayPrompt:
    builder = StepBuilder(words)
    skills = {skill.name: skill for skill in known}
    return ReplayPrompt(
        turn, skills, lambda message: builder.own_words(turn.agent, message), Budgets()
    )


def flat(request: ChatRequest) -> list[tuple[str, str]]:
    """Who says what, however it is cut into parts."""
    return [
        (
            str(message.role),
            "\n\n".join(part.text for part in message.parts if isinstance(part, Text)),
        )
        for message in request.messages
    ]


@each("wire", Wire)
@each("system", ["You are a coding agent.", ""])
def test_the_skill_of_a_first_task_stands_where_the_proxy_would_put_it(
    wire: Wire, system: str
) -> None:
    agent = coding(wire, system=system)
    turn = agent.turns[2].turn
    arms = stage(turn).arms(TABS, ())
    proxys = spliced(turn, [TABS])
    assert arms.without == read_request(wire, turn.exchange.request)
    assert flat(arms.with_skill) == flat(read_request(wire, proxys.exchange.sent))
    assert wire_format(wire).render_request(arms.with_skill)


@pytest.mark.parametrize("wire", Wire)
def test_the_skill_of_a_later_task_stands_behind_the_persons_words(wire: Wire) -> None:
    agent = coding(wire)
    turn = agent.turns[-1].turn
    body = json.loads(turn.exchange.request)
    items = body["input" if wire is Wire.RESPONSES else "messages"]
    task = next(number for number, item in enumerate(items) if "I want tabs" in json.dumps(item))
    arms = stage(turn).arms(TABS, ())
    proxys = spliced(turn, [TABS], task)
    assert flat(arms.with_skill) == flat(read_request(wire, proxys.exchange.sent))
    if (
        wire is not Wire.RESPONSES
    ):  # there a message of one string and one of one part cannot be told apart
        assert arms.with_skill == read_request(wire, proxys.exchange.sent)


@pytest.mark.parametrize("wire", Wire)
def test_a_skill_that_was_in_the_prompt_is_taken_out_of_it_and_put_back(wire: Wire) -> None:
    agent = coding(wire)
    turn = spliced(agent.turns[0].turn, [BESIDE, TABS])
    sent = read_request(wire, turn.exchange.sent)
    arms = stage(turn, BESIDE, TABS).arms(TABS, ())
    assert arms.with_skill == sent
    assert TABS.body not in texts(arms.without)
    assert BESIDE.body in texts(arms.without)
    alone = spliced(agent.turns[0].turn, [TABS])
    assert flat(stage(alone, TABS).arms(TABS, ()).without) == flat(
        read_request(wire, alone.exchange.request)
    )


@pytest.mark.parametrize("wire", Wire)
def test_a_new_version_takes_the_place_of_what_it_replaces(wire: Wire) -> None:
    agent = coding(wire)
    turn = spliced(agent.turns[0].turn, [OLDER, BESIDE])
    arms = stage(turn, OLDER, BESIDE).arms(TABS, (OLDER.name,))
    assert OLDER.body not in texts(arms.without) + texts(arms.with_skill)
    assert flat(arms.without) == flat(
        read_request(wire, spliced(agent.turns[0].turn, [BESIDE]).exchange.sent)
    )
    assert flat(arms.with_skill) == flat(
        read_request(wire, spliced(agent.turns[0].turn, [TABS, BESIDE]).exchange.sent)
    )


def test_a_skill_joins_those_that_stand_at_its_place_and_no_more_than_are_allowed() -> None:
    agent = coding(Wire.CHAT)
    others = [Skill(SkillName(f"other-{number}"), "Always", f"Do {number}.") for number in range(3)]
    turn = spliced(agent.turns[0].turn, others)
    arms = stage(turn, *others).arms(TABS, ())
    assert all(other.body in texts(arms.without) for other in others)
    assert [other.body in texts(arms.with_skill) for other in others] == [True, True, False]
    assert TABS.body in texts(arms.with_skill)
    assert texts(arms.with_skill).count("<house_rules") == 1


def test_what_was_translated_for_the_provider_is_what_is_asked_again() -> None:
    agent = coding(Wire.MESSAGES)
    turn = spliced(agent.turns[1].turn, [BESIDE])
    asked = read_request(Wire.MESSAGES, turn.exchange.sent)
    body = encode_json(wire_format(Wire.CHAT).render_request(asked))
    translated = replace(
        turn, provider_wire=Wire.CHAT, exchange=replace(turn.exchange, splices=(), translated=body)
    )
    arms = stage(translated, BESIDE).arms(TABS, (BESIDE.name,))
    assert arms.without.wire is Wire.CHAT
    assert BESIDE.body not in texts(arms.without)
    assert TABS.body in texts(arms.with_skill)
    assert [message.role for message in arms.without.messages[:3]] == [
        Role.SYSTEM,
        Role.USER,
        Role.ASSISTANT,
    ]


def test_a_person_who_only_said_one_thing_has_one_task() -> None:
    agent = Agent(Wire.MESSAGES).hear("Go.")
    agent.messages.append(say("<system-reminder>mind the gap</system-reminder>"))
    agent.answer(Text("Done."))
    arms = stage(agent.turns[0].turn).arms(TABS, ())
    system = arms.with_skill.messages[0]
    assert system == Message(Role.SYSTEM, system.parts)
    assert TABS.body in str(system.parts)
