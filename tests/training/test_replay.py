"""The prompt of a recorded turn without one of its skills."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from metaclaw.domain.chat import ChatRequest, Role, Text, Wire
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import Anchor, Placement, Stamp, Turn
from metaclaw.learn.steps import read_request
from metaclaw.proxy.http.body import messages_of, read
from metaclaw.proxy.splice import placement_splices
from metaclaw.skills import Budgets, render_block
from metaclaw.training.replay import UnplayableError, request_without
from metaclaw.wires import encode_json, wire_format
from tests.learn.recordings import Agent

TABS = Skill(SkillName("use-tabs"), "When writing Go", "Indent with tabs, never with spaces.")
BESIDE = Skill(SkillName("be-brief"), "Always", "Be brief.")


def texts(request: ChatRequest) -> list[tuple[str, str]]:
    """Who says what, however it is cut into parts."""
    return [
        (
            str(message.role),
            "\n\n".join(part.text for part in message.parts if isinstance(part, Text)),
        )
        for message in request.messages
    ]


def answered(wire: Wire) -> Turn:
    agent = Agent(wire).hear("Fix the Go test.").answer(Text("Fixed with spaces."))
    return agent.hear("I want tabs there.").answer(Text("Sorry.")).turns[-1].turn


def spliced(turn: Turn, skills: Sequence[Skill], *, is_later: bool = False) -> Turn:
    """The turn as the proxy would have sent it with these skills: in the system text, or behind the
    person's last words.
    """
    text = render_block(skills, 1500).text.removeprefix("\n\n")
    anchor = b"task" if is_later else b""
    placement = Placement(anchor, tuple(skill.name for skill in skills), text)
    body = turn.exchange.request
    items = read(turn.wire, body)
    last = len(messages_of(turn.wire, items)) - 1
    anchors = (Anchor(last, anchor),) if is_later else ()
    placed = placement_splices(turn.wire, body, items, [placement], anchors)
    assert placed.refused is None
    return replace(
        turn,
        placements=placed.placed,
        exchange=replace(turn.exchange, splices=placed.splices),
        stamp=Stamp(1, 0, "h", placement.skills),
    )


def without(turn: Turn, *known: Skill) -> ChatRequest:
    return request_without(turn, {TABS.name}, {one.name: one for one in known}, Budgets())


@pytest.mark.parametrize("is_later", [False, True])
@pytest.mark.parametrize("wire", Wire)
def test_a_skill_is_taken_out_as_if_it_had_never_been_placed(wire: Wire, is_later: bool) -> None:
    turn = answered(wire)
    both = spliced(turn, [BESIDE, TABS], is_later=is_later)
    alone = spliced(turn, [BESIDE], is_later=is_later)
    expected = read_request(wire, alone.exchange.sent)
    assert texts(without(both, BESIDE, TABS)) == texts(expected)
    only = spliced(turn, [TABS], is_later=is_later)
    assert texts(without(only, TABS)) == texts(read_request(wire, turn.exchange.request))


def test_what_was_translated_for_the_provider_is_what_is_read() -> None:
    turn = spliced(answered(Wire.MESSAGES), [TABS])
    asked = read_request(Wire.MESSAGES, turn.exchange.sent)
    body = encode_json(wire_format(Wire.CHAT).render_request(asked))
    exchange = replace(turn.exchange, splices=(), translated=body)
    request = without(replace(turn, provider_wire=Wire.CHAT, exchange=exchange), TABS)
    assert request.wire is Wire.CHAT
    assert TABS.body not in str(texts(request))
    assert [message.role for message in request.messages[:2]] == [Role.SYSTEM, Role.USER]


def test_a_prompt_with_a_skill_that_is_no_longer_known_cannot_be_made() -> None:
    with pytest.raises(UnplayableError, match="be-brief"):
        without(spliced(answered(Wire.CHAT), [BESIDE, TABS]), TABS)
