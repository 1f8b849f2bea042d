"""A reminder stands behind everything else, changes nothing else, and is valid in its wire, also
behind a tool's result.
"""

import json
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.domain.chat import Role, Text, ToolResult, Wire
from metaclaw.domain.turn import Anchor, Placement, apply_splices
from metaclaw.proxy.splice import placement_splices
from metaclaw.skills import remove_blocks, render_reminder
from metaclaw.wires import wire_format
from tests.laws.test_splice import Pen
from tests.proxy.test_reminders import rule
from tests.support.depth import tries
from tests.support.splicing import without

TAIL = render_reminder([rule("uv")])
BLOCK = Placement(b"", (), "The block of the system text.")
BESIDE = Placement(b"last", (), "A block beside it.")
# The fourth has the rules of messages (`tests/wires/test_gemini.py`).
THREE = (Wire.CHAT, Wire.MESSAGES, Wire.RESPONSES)
words = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)


def parts(kind: str, text: str) -> list[dict[str, Any]]:
    return [{"type": kind, "text": text}]


@st.composite
def requests(draw: st.DrawFn) -> tuple[Wire, dict[str, Any], bool]:
    """A request that ends with a person's words or a tool's result, and whether it is a tool's."""
    wire, text, is_tool, is_list = (
        draw(st.sampled_from(THREE)),
        draw(words),
        draw(st.booleans()),
        draw(st.booleans()),
    )
    match wire:
        case Wire.CHAT:
            call = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": "{}"}}
            said: Any = parts("text", text) if is_list else text
            last = (
                {"role": "tool", "tool_call_id": "c1", "content": said}
                if is_tool
                else {"role": "user", "content": said}
            )
            before = [
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
            ]
            return wire, {"model": "m", "messages": [*(before if is_tool else []), last]}, is_tool
        case Wire.MESSAGES:
            result = {
                "type": "tool_result",
                "tool_use_id": "c1",
                "content": parts("text", text) if is_list else text,
            }
            cached = {"cache_control": {"type": "ephemeral"}} if draw(st.booleans()) else {}
            spoken: Any = [{**parts("text", text)[0], **cached}] if is_list else text
            use = {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c1", "name": "run", "input": {}}],
            }
            before = [{"role": "user", "content": "go"}, use]
            last = {"role": "user", "content": [{**result, **cached}] if is_tool else spoken}
            return (
                wire,
                {"model": "m", "max_tokens": 9, "messages": [*(before if is_tool else []), last]},
                is_tool,
            )
        case _:
            if not is_tool and draw(st.booleans()):
                return wire, {"model": "m", "input": text}, False
            said = parts("input_text", text) if is_list else text
            call = {"type": "function_call", "call_id": "c1", "name": "run", "arguments": "{}"}
            output = {"type": "function_call_output", "call_id": "c1", "output": said}
            before = [{"role": "user", "content": "go"}, call]
            return (
                wire,
                {
                    "model": "m",
                    "input": [*before, output] if is_tool else [{"role": "user", "content": said}],
                },
                is_tool,
            )


def texts_of(value: Any) -> list[str]:
    match value:
        case str():
            return [value]
        case list():
            return [text for one in value for text in texts_of(one)]
        case dict():
            return [text for one in value.values() for text in texts_of(one)]
        case _:
            return []


@settings(max_examples=tries(300, nightly=5000), deadline=None)
@given(requests(), st.booleans(), st.booleans(), st.integers(), st.booleans())
def test_it_stands_behind_everything_else(
    made: tuple[Wire, dict[str, Any], bool],
    has_block: bool,
    is_beside: bool,
    whim: int,
    is_odd: bool,
) -> None:
    wire, body, is_tool = made
    sent = (
        Pen(Random(whim)).write(body)
        if is_odd
        else json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    ).encode()
    items = body["input" if wire is Wire.RESPONSES else "messages"]
    last = 0 if isinstance(items, str) else len(items) - 1
    is_beside = is_beside and not is_tool
    placements = [*([BLOCK] if has_block else []), *([BESIDE] if is_beside else [])]
    spliced = placement_splices(
        wire, sent, json.loads(sent), placements, [Anchor(last, b"last")], TAIL
    )
    assert spliced.has_tail
    assert list(spliced.placed) == placements
    made_of = apply_splices(sent, spliced.splices)
    assert without(made_of, spliced.splices) == sent
    request = wire_format(wire).parse_request(json.loads(made_of))
    final = request.messages[-1]
    assert final.role is (Role.TOOL if is_tool and wire is not Wire.MESSAGES else Role.USER)
    seen = [text for text in texts_of(json.loads(made_of)) if TAIL in text]
    assert len(seen) == 1
    assert seen[0].endswith(TAIL)
    (said,) = [part for part in final.parts if isinstance(part, Text | ToolResult)][-1:]
    behind = said.parts[-1] if isinstance(said, ToolResult) else said
    assert isinstance(behind, Text)
    assert behind.text.endswith(TAIL)
    if is_tool and wire is Wire.MESSAGES:
        assert isinstance(final.parts[0], ToolResult)  # results come first, and stay as they are
        assert TAIL not in str(final.parts[0])
    if not placements:
        plain = [
            remove_blocks(f"\n\n{text}" if text.startswith("<house_rules") else text)
            for text in texts_of(json.loads(made_of))
        ]
        assert all(text in plain for text in texts_of(items))


def test_an_answer_that_was_begun_is_not_disturbed() -> None:
    for wire in (Wire.CHAT, Wire.MESSAGES):
        body: dict[str, Any] = {
            "messages": [
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": "Well,"},
            ]
        }
        spliced = placement_splices(wire, json.dumps(body).encode(), body, [BLOCK], [], TAIL)
        assert (spliced.has_tail, spliced.placed) == (False, (BLOCK,))
    thought: dict[str, Any] = {
        "input": [
            {"role": "user", "content": "go"},
            {"type": "reasoning", "id": "r1", "summary": []},
        ]
    }
    assert not placement_splices(
        Wire.RESPONSES, json.dumps(thought).encode(), thought, [], [], TAIL
    ).has_tail


def test_a_provider_that_caches_everything_is_not_disturbed() -> None:
    body: dict[str, Any] = {
        "cache_control": {"type": "ephemeral"},
        "messages": [{"role": "user", "content": "go"}],
    }
    assert not placement_splices(
        Wire.MESSAGES, json.dumps(body).encode(), body, [BLOCK], [], TAIL
    ).has_tail
