"""Law: a skill that the model asks for arrives in full within the same request, and the client never
sees the call; unasked, no skill arrives.

The provider refuses histories that it did not make, so what a later request holds in place of the
client's message is the true exchange."""

import asyncio
import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.domain.chat import Wire
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import Turn
from tests.laws.test_enforcement import (
    RULE,
    House,
    InProcess,
    Model,
    read_by_sdk,
    request_of,
    results_of,
)
from tests.support.cases import each
from tests.support.depth import tries
from tests.support.strict_provider import BAD, OWN, STEPS, StrictProvider

BODY = "1. Run the tests.\n2. Deploy to stage.\n3. Watch the log for ten minutes."
SKILL = Skill(SkillName("deploy-checklist"), "When deploying a service", BODY)
OTHER = Skill(SkillName("bake-bread"), "When baking sourdough bread", "Feed the starter first.")
TOOL = {
    Wire.CHAT: {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}},
    Wire.MESSAGES: {"name": "bash", "input_schema": {"type": "object"}},
    Wire.RESPONSES: {"type": "function", "name": "bash", "parameters": {"type": "object"}},
    Wire.GEMINI: {
        "functionDeclarations": [{"name": "bash", "parametersJsonSchema": {"type": "object"}}]
    },
}


def asked(wire: Wire, history: list[Any], stream: bool = False, **more: Any) -> dict[str, Any]:
    return {**request_of(wire, history, stream), "tools": [TOOL[wire]], **more}


def house(strict: StrictProvider, speaks: Wire, *skills: Skill, seed: int = 1) -> House:
    provider = InProcess(strict, frozenset((speaks,)), Random(seed))
    return House(provider, *(skills or (SKILL, OTHER)), has_tools=True)


def in_full(sent: dict[str, Any]) -> int:
    """How often a request holds the skill in full."""
    return json.dumps(sent).count("Watch the log for ten minutes")


LOOKUPS = ("look", "wrong", "find")


@settings(max_examples=tries(20, nightly=500), deadline=None)
@given(
    wire=st.sampled_from(Wire),
    speaks=st.sampled_from(Wire),
    stream=st.booleans(),
    plans=st.lists(
        st.lists(
            st.sampled_from(
                ["look", "wrong", "text", "good", "two", "look-too", "look-first", "mute-look"]
            ),
            min_size=1,
            max_size=4,
        ),
        min_size=1,
        max_size=3,
    ),
    is_held=st.booleans(),
    pieces=st.integers(1, 7),
    seed=st.integers(0, 2**32),
)
def test_the_client_sees_one_message_without_our_calls_and_the_provider_its_own_history(
    wire: Wire,
    speaks: Wire,
    stream: bool,
    plans: list[list[str]],
    is_held: bool,
    pieces: int,
    seed: int,
) -> None:
    random = Random(seed) if speaks is Wire.CHAT else None  # the other wires send call after call
    strict = StrictProvider(pieces=pieces, random=random)
    home = house(strict, speaks, SKILL, OTHER, *((RULE,) if is_held else ()), seed=seed)

    async def talk() -> None:
        history: list[Any] = []
        for plan in plans:
            history.append({"role": "user", "content": f"PLAN {' '.join(plan)}"})
            left = [*plan, "text"]
            while True:
                before = len(strict.bodies)
                response = await home.post(wire, asked(wire, history, stream))
                assert response.status_code == 200, response.text
                text, calls, kept, tokens = read_by_sdk(wire, stream, response)
                lookups = 0
                while left[0].removeprefix("mute-") in LOOKUPS:
                    left.pop(0)
                    lookups += 1
                step = left.pop(0)
                assert len(strict.bodies) - before == lookups + 1
                assert tokens == 10 * (lookups + 1)
                own = [one for one in STEPS[step] if one in OWN]
                assert [one for _, one in calls] == [one for one in STEPS[step] if one not in own]
                assert "metaclaw_" not in json.dumps(kept)
                assert f"words {before + lookups + 1}" in text or "mute" in step
                history += kept
                if not calls:
                    break
                history += results_of(wire, calls)

    asyncio.run(talk())
    assert strict.refused == []
    has_asked = False
    for _, sent, _ in strict.bodies:
        assert in_full(sent) <= 1 or has_asked
        assert has_asked == bool(in_full(sent))
        names = [
            one.get("name") or one["function"]["name"]
            for tool in sent["tools"]
            for one in tool.get("functionDeclarations", [tool])
        ]
        assert names == ["bash", "metaclaw_skill"]
        has_asked = has_asked or sent_asks(strict, sent)


def sent_asks(strict: StrictProvider, sent: dict[str, Any]) -> bool:
    """Whether the answer to this request asked for the skill."""
    at = next(place for place, (_, one, _) in enumerate(strict.bodies) if one is sent)
    return any(command == "deploy-checklist" for _, command in strict.calls_made.get(at, ()))


@each("wire", list(Wire))
@each("stream", [False, True])
def test_a_skill_arrives_in_full_within_the_same_request(wire: Wire, stream: bool) -> None:
    strict = StrictProvider()
    home = house(strict, wire)
    history: list[Any] = [{"role": "user", "content": "PLAN look good"}]
    response = asyncio.run(home.post(wire, asked(wire, history, stream)))
    assert response.status_code == 200
    assert [in_full(sent) for _, sent, _ in strict.bodies] == [0, 1]
    (turn,) = home.book.turns
    assert turn.stamp.skills == ("deploy-checklist",)
    assert turn.listed == ("bake-bread",)
    assert turn.enforcement is not None
    assert [one.usage.output_tokens for one in turn.enforcement.attempts if one.usage] == [5, 5]
    assert home.book.events == []


@each("wire", list(Wire))
@each("stream", [False, True])
def test_an_answer_without_our_calls_is_relayed_as_it_is(wire: Wire, stream: bool) -> None:
    strict = StrictProvider()
    home = house(strict, wire)
    history: list[Any] = [{"role": "user", "content": "PLAN two"}]
    response = asyncio.run(home.post(wire, asked(wire, history, stream)))
    (turn,) = home.book.turns
    assert turn.exchange.seen is None
    assert turn.exchange.said == response.content
    assert turn.enforcement is None
    assert turn.stamp.skills == ()


@each("wire", list(Wire))
def test_a_skill_that_was_read_stays_with_the_session(wire: Wire) -> None:
    strict = StrictProvider()
    home = house(strict, wire)
    history: list[Any] = [{"role": "user", "content": "PLAN look"}]

    async def talk() -> None:
        for words in ("deploy it", "and again"):
            response = await home.post(wire, asked(wire, history))
            history.extend(read_by_sdk(wire, False, response)[2])
            history.append({"role": "user", "content": words})
        await home.post(wire, asked(wire, history))

    asyncio.run(talk())
    assert strict.refused == []
    assert [in_full(sent) for _, sent, _ in strict.bodies] == [0, 1, 1, 1]
    assert [turn.stamp.skills for turn in home.book.turns] == [("deploy-checklist",)] * 3


@each(
    "more",
    [
        {"tools": []},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "bash"}}},
        {"n": 2},
    ],
)
def test_the_tool_is_not_offered_where_its_call_could_not_be_answered(more: dict[str, Any]) -> None:
    strict = StrictProvider()
    home = house(strict, Wire.CHAT)
    history: list[Any] = [{"role": "user", "content": "PLAN text"}]
    asyncio.run(home.post(Wire.CHAT, asked(Wire.CHAT, history, **more)))
    ((_, sent, _),) = strict.bodies
    assert "metaclaw_skill" not in json.dumps(sent)
    assert "deploy-checklist" in json.dumps(sent)


@pytest.mark.parametrize("more", [{"conversation": "conv_1"}, {"background": True}])
def test_the_tool_is_not_offered_where_the_provider_keeps_the_answer(more: dict[str, Any]) -> None:
    strict = StrictProvider()
    home = house(strict, Wire.RESPONSES)
    history: list[Any] = [{"role": "user", "content": "PLAN text"}]
    asyncio.run(home.post(Wire.RESPONSES, asked(Wire.RESPONSES, history, **more)))
    assert "metaclaw_skill" not in json.dumps(strict.bodies[0][1])


def test_a_session_has_the_tool_from_its_first_request_on_or_never() -> None:
    strict = StrictProvider()
    home = house(strict, Wire.CHAT)
    history: list[Any] = [{"role": "user", "content": "PLAN text"}]
    asyncio.run(home.post(Wire.CHAT, request_of(Wire.CHAT, history, False)))
    history += [{"role": "assistant", "content": "words 1"}, {"role": "user", "content": "go"}]
    asyncio.run(home.post(Wire.CHAT, asked(Wire.CHAT, history)))
    assert "metaclaw_skill" not in json.dumps(strict.bodies[1][1])


def test_a_large_library_is_searched() -> None:
    many = [
        replace(
            SKILL, name=SkillName(f"procedure-{number}"), trigger=f"When part {number} {'x ' * 60}"
        )
        for number in range(200)
    ]
    back = Skill(SkillName("zz-roll-back"), "How to roll back a deployment", "Use the last tag.")
    strict = StrictProvider()
    home = house(strict, Wire.CHAT, *many, back)
    history: list[Any] = [{"role": "user", "content": "PLAN find text"}]
    response = asyncio.run(home.post(Wire.CHAT, asked(Wire.CHAT, history)))
    assert response.status_code == 200
    first, second = (json.dumps(sent) for _, sent, _ in strict.bodies)
    assert "metaclaw_find" in first
    assert "zz-roll-back: How to roll back" in second
    assert home.book.turns[0].stamp.skills == ()


class RefusingProvider(StrictProvider):
    """Takes no tool but its client's."""

    def reply(self, wire: str, request: Any, headers: dict[str, str]) -> tuple[int, Any]:
        if "metaclaw_skill" in json.dumps(request.get("tools")):
            self.bodies.append((wire, request, headers))
            return 400, {"error": {"message": "tools[1] is not allowed", "type": "invalid"}}
        return super().reply(wire, request, headers)


@each("wire", list(Wire))
@each("speaks", list(Wire))
def test_a_provider_that_refuses_the_tool_is_remembered(wire: Wire, speaks: Wire) -> None:
    strict = RefusingProvider()
    home = house(strict, speaks)
    for _ in range(2):
        history: list[Any] = [{"role": "user", "content": "PLAN text"}]
        response = asyncio.run(home.post(wire, asked(wire, history)))
        assert response.status_code == 200
    offered = ["metaclaw_skill" in json.dumps(sent["tools"]) for _, sent, _ in strict.bodies]
    assert offered == [True, False, False]
    assert all("deploy-checklist" in json.dumps(sent) for _, sent, _ in strict.bodies)


@each("wire", list(Wire))
@each("stream", [False, True])
def test_a_call_of_ours_beside_one_that_breaks_a_rule_is_answered_too(
    wire: Wire, stream: bool
) -> None:
    strict = StrictProvider()
    home = house(strict, wire, SKILL, RULE)
    history: list[Any] = [{"role": "user", "content": "PLAN look-bad good"}]
    response = asyncio.run(home.post(wire, asked(wire, history, stream)))
    _, calls, kept, _ = read_by_sdk(wire, stream, response)
    assert [command for _, command in calls] == STEPS["good"]
    assert BAD not in json.dumps(kept)
    assert in_full(strict.bodies[1][1]) == 1
    turn: Turn = home.book.turns[0]
    assert turn.enforcement is not None
    assert [one.rule for one in turn.enforcement.rules] == ["no-force-push"]


@each("stream", [False, True])
def test_lookups_of_a_model_in_this_process_keep_their_tokens(stream: bool) -> None:
    home = House(Model(), SKILL, has_tools=True)
    history: list[Any] = [{"role": "user", "content": "PLAN look good"}]
    response = asyncio.run(home.post(Wire.CHAT, asked(Wire.CHAT, history, stream)))
    assert response.status_code == 200
    (turn,) = home.book.turns
    assert turn.enforcement is not None
    assert all(one.tokens is not None for one in turn.enforcement.attempts)
    assert turn.stamp.skills == ("deploy-checklist",)


@each("stream", [False, True])
def test_a_model_that_only_looks_up_is_stopped(stream: bool) -> None:
    strict = StrictProvider()
    home = house(strict, Wire.CHAT)
    history: list[Any] = [{"role": "user", "content": f"PLAN {'mute-look ' * 12}"}]
    response = asyncio.run(home.post(Wire.CHAT, asked(Wire.CHAT, history, stream)))
    text, calls, _, _ = read_by_sdk(Wire.CHAT, stream, response)
    assert calls == []
    assert "looked up procedures" in text
    assert len(strict.bodies) == 9
