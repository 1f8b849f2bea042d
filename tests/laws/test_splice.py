"""Placing skills changes nothing but the text they are placed in, whatever the client's bytes look
like.
"""

import json
from collections.abc import Sequence
from itertools import takewhile
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.domain.chat import Wire
from metaclaw.domain.turn import Anchor, Placement, Splice, apply_splices
from metaclaw.proxy.splice import Spliced, placement_splices
from tests.support.depth import tries
from tests.support.splicing import LIST_KEYS, anchorable, place_by_rule, without

BLANKS = ["", "", "", " ", "\n  ", "\t", " \r\n"]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [
        '"messages":[',
        '\\"content\\":"',
        '{"role":"system","content":"x"}',
        "]}",
        "\\",
        '"',
        "",
        "é\u2028\U0001f600",
    ]
)
SCALAR = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | TEXT
KEY = (
    st.sampled_from(
        ["messages", "content", "role", "system", "input", "instructions", "cache_control", "x"]
    )
    | TEXT
)
ANYTHING = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEY, inner, max_size=3),
    max_leaves=6,
)


class Pen:
    """Writes JSON the way some client somewhere might: odd blanks, odd escapes, any of the
    spellings of a string.
    """

    def __init__(self, whim: Random) -> None:
        self._whim = whim

    def write(self, value: Any) -> str:
        match value:
            case dict():
                return self.join(
                    "{}",
                    [
                        f"{self.string(key)}{self.blank()}:{self.blank()}{self.write(value[key])}"
                        for key in value
                    ],
                )
            case list():
                return self.join("[]", [self.write(item) for item in value])
            case str():
                return self.string(value)
            case _:
                return json.dumps(value)

    def join(self, brackets: str, parts: Sequence[str]) -> str:
        inner = (
            ",".join(self.blank() + part + self.blank() for part in parts)
            if parts
            else self.blank()
        )
        return brackets[0] + inner + brackets[1]

    def string(self, text: str) -> str:
        style = self._whim.choice(["utf8", "utf8", "ascii", "escaped"])
        if style == "escaped" and len(text) < 20:
            units = text.encode("utf-16-be")
            return (
                '"'
                + "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
                + '"'
            )
        return json.dumps(text, ensure_ascii=style == "ascii").replace(
            "/", self._whim.choice(["/", "\\/"])
        )

    def blank(self) -> str:
        return self._whim.choice(BLANKS)


def content(part_type: str) -> st.SearchStrategy[Any]:
    marked = st.just({"type": "ephemeral"})
    part = st.fixed_dictionaries(
        {"type": st.just(part_type), "text": TEXT}, optional={"cache_control": marked}
    )
    return TEXT | st.lists(part, min_size=1, max_size=3)


def message(role: st.SearchStrategy[str], part_type: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"role": role, "content": content(part_type)},
        optional={"x": ANYTHING, "messages": ANYTHING},
    )


USER, SYSTEM, OTHER = (
    st.just("user"),
    st.sampled_from(["system", "developer"]),
    st.sampled_from(["assistant", "tool", "user"]),
)


GEMINI_OTHER = st.sampled_from(["model", "user"])


def gemini_parts(least: int) -> st.SearchStrategy[list[Any]]:
    call = st.fixed_dictionaries({"functionCall": ANYTHING})
    return st.lists(st.fixed_dictionaries({"text": TEXT}) | call, min_size=least, max_size=3)


def gemini_message(role: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"role": role, "parts": gemini_parts(1)}, optional={"x": ANYTHING, "contents": ANYTHING}
    )


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Wire, dict[str, Any], list[Any]]:
    """A request, and messages that a later request of the same conversation has in addition."""
    wire = draw(st.sampled_from(list(Wire)))
    kind = "input_text" if wire is Wire.RESPONSES else "text"
    leading = [] if wire is Wire.MESSAGES else draw(st.lists(message(SYSTEM, kind), max_size=2))
    rest = [draw(message(USER, kind)), *draw(st.lists(message(OTHER, kind), max_size=3))]
    body: dict[str, Any] = draw(
        st.dictionaries(st.sampled_from(["model", "tools", "metadata", "y"]), ANYTHING, max_size=3)
    )
    items: Any = leading + rest
    if wire is Wire.GEMINI:
        items = [
            draw(gemini_message(USER)),
            *draw(st.lists(gemini_message(GEMINI_OTHER), max_size=3)),
        ]
        if draw(st.booleans()):
            body["systemInstruction"] = {"parts": draw(gemini_parts(0)), "x": draw(ANYTHING)}
    if wire is Wire.MESSAGES and draw(st.booleans()):
        body["system"] = draw(content("text"))
    if wire is Wire.RESPONSES:
        if draw(st.booleans()):
            body["instructions"] = draw(st.none() | TEXT)
        if draw(st.integers(0, 4)) == 0:
            items = draw(TEXT)
    body[LIST_KEYS[wire]] = items
    order = draw(st.permutations(list(body)))
    later = gemini_message(GEMINI_OTHER) if wire is Wire.GEMINI else message(OTHER, kind)
    more = draw(st.lists(later, min_size=1, max_size=2))
    return wire, {key: body[key] for key in order}, more


PLACEMENTS = st.lists(
    st.builds(Placement, st.sampled_from([b"", b"a"]), st.just(()), TEXT.filter(bool)),
    min_size=1,
    max_size=3,
)


def splice(wire: Wire, raw: bytes, placements: Sequence[Placement], index: int) -> Spliced:
    spliced = placement_splices(wire, raw, json.loads(raw), placements, [Anchor(index, b"a")])
    assert spliced.refused is None
    assert spliced.placed == tuple(placements)
    return spliced


@settings(max_examples=tries(50, nightly=750), deadline=None)
@given(conversations(), PLACEMENTS, st.randoms(use_true_random=False))
def test_nothing_changes_but_the_placed_text(
    conversation: tuple[Wire, dict[str, Any], list[Any]], placements: list[Placement], whim: Random
) -> None:
    wire, body, _ = conversation
    pen = Pen(whim)
    raw = (pen.blank() + pen.write(body) + pen.blank()).encode()
    index = anchorable(wire, body)
    assert index is not None
    spliced = splice(wire, raw, placements, index)
    sent = apply_splices(raw, spliced.splices)
    assert without(sent, spliced.splices) == raw
    assert sent[: spliced.splices[0].offset] == raw[: spliced.splices[0].offset]
    assert json.loads(sent) == place_by_rule(wire, body, placements, index)
    assert breakpoints(json.loads(sent)) == breakpoints(body)


def breakpoints(value: Any) -> int:
    """How often something is marked for caching."""
    if isinstance(value, dict):
        return ("cache_control" in value) + sum(map(breakpoints, value.values()))
    return sum(map(breakpoints, value)) if isinstance(value, list) else 0


def common(one: bytes, other: bytes) -> int:
    """How many bytes two bodies share from their beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def reach(splices: Sequence[Splice], offset: int) -> int:
    """Where the client's byte at `offset` stands in what is sent."""
    return offset + sum(len(splice.inserted) for splice in splices if splice.offset < offset)


@settings(max_examples=tries(33, nightly=500), deadline=None)
@given(conversations(), PLACEMENTS, st.randoms(use_true_random=False))
def test_a_growing_conversation_keeps_its_prefix_up_to_the_clients_own_first_difference(
    conversation: tuple[Wire, dict[str, Any], list[Any]], placements: list[Placement], whim: Random
) -> None:
    wire, body, more = conversation
    key = LIST_KEYS[wire]
    pen = Pen(whim)
    shared = {name: pen.write(value) for name, value in body.items() if name != key}
    names = {name: pen.string(name) for name in body}
    items = [pen.write(item) for item in body[key]] if isinstance(body[key], list) else None
    spoken = pen.write(body[key])

    def write(extra: list[str]) -> bytes:
        grown = "[" + ", ".join([*items, *extra]) + "]" if items is not None else spoken
        return (
            "{" + ",".join(f"{names[name]}:{shared.get(name, grown)}" for name in body) + "}"
        ).encode()

    first, second = write([]), write([pen.write(item) for item in more])
    index = anchorable(wire, body)
    assert index is not None
    before, after = splice(wire, first, placements, index), splice(wire, second, placements, index)
    difference = common(first, second)
    sent = common(apply_splices(first, before.splices), apply_splices(second, after.splices))
    assert sent >= reach(before.splices, difference) == reach(after.splices, difference)
