"""Skills stand where the rules say, in the client's own bytes, or nowhere at all."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.domain.chat import Json, Wire
from metaclaw.domain.ids import SkillName
from metaclaw.domain.turn import Anchor, Placement, apply_splices
from metaclaw.proxy.http.body import JsonDocument, read
from metaclaw.proxy.splice import Spliced, placement_splices
from tests.support.cases import each
from tests.support.depth import tries
from tests.support.splicing import anchorable, place_by_rule, without

SKILL = Placement(b"", (SkillName("s"),), 'Say "hi"\n\\o/ é')
LATER = Placement(b"later", (SkillName("t"),), "Later.")


def splice(wire: Wire, body: str, *placements: Placement, index: int = 0) -> Spliced:
    raw = body.encode()
    return placement_splices(wire, raw, json.loads(raw), placements, [Anchor(index, b"later")])


def sent(wire: Wire, body: str, *placements: Placement, index: int = 0) -> str:
    """What the provider gets."""
    spliced = splice(wire, body, *placements, index=index)
    assert spliced.refused is None
    assert spliced.placed == placements
    result = apply_splices(body.encode(), spliced.splices)
    assert without(result, spliced.splices) == body.encode()
    return result.decode()


_WORDS = st.text(max_size=6)
_CONTENT = (
    _WORDS
    | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": _WORDS}), max_size=2)
    | st.none()
)
_MESSAGE = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": _CONTENT}),
    st.fixed_dictionaries({"content": _CONTENT, "role": st.just("user"), "name": _WORDS}),
    st.fixed_dictionaries({"role": st.just("user")}),
)


@settings(max_examples=tries(66, nightly=1000), deadline=None)
@given(
    wire=st.sampled_from(Wire),
    messages=st.lists(_MESSAGE, min_size=1, max_size=4),
    index=st.integers(0, 4),
    is_compact=st.booleans(),
)
def test_skills_stand_in_the_same_place_whether_or_not_the_body_is_written_as_we_would(
    wire: Wire, messages: list[dict[str, Json]], index: int, is_compact: bool
) -> None:
    fields = {"model": "m", "input" if wire is Wire.RESPONSES else "messages": messages}
    body = json.dumps(fields, separators=(",", ":") if is_compact else None).encode()
    anchors = [Anchor(index, b"later")]
    known = placement_splices(wire, body, read(wire, body), (SKILL, LATER), anchors)
    assert known == placement_splices(wire, body, json.loads(body), (SKILL, LATER), anchors)


ESCAPED = '\\n\\nSay \\"hi\\"\\n\\\\o/ é'
BARE = ESCAPED[4:]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            '{"messages":[{"role":"system","content":"A"},{"role":"user","content":"u"}]}',
            '"content":"A' + ESCAPED + '"},{"role":"user"',
        ),
        (
            '{"messages":[{"role":"system","content":""},{"role":"user","content":"u"}]}',
            '"content":"' + BARE + '"},{"role":"user"',
        ),
        (
            '{"messages":[{"role":"user","content":"u"}]}',
            '[{"role":"system","content":"' + BARE + '"},{"role":"user"',
        ),
        (
            (
                '{"messages": [{"role": "system", "content": "A"}, {"role": "developer", "content":'
                ' "B\\\\"}, {"role": "user"}]}'
            ),
            '"B\\\\' + ESCAPED + '"}, {"role": "user"}',
        ),
        (
            (
                '{"messages":[{"role":"system","content":[ {"type":"text","text":"A"}'
                ' ]},{"role":"system2"}]}'
            ),
            '"A"},{"type":"text","text":"' + BARE + '"} ]},{"role":"system2"}',
        ),
        (
            '{"messages":[{"content":[ ],"role":"system"}]}',
            '[{"type":"text","text":"' + BARE + '"} ],"role":"system"}',
        ),
    ],
)
def test_chat_system_text_goes_to_the_last_leading_system_message(before: str, after: str) -> None:
    assert after in sent(Wire.CHAT, before, SKILL)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"system":"A","messages":[]}', '{"system":"A' + ESCAPED + '","messages":[]}'),
        (
            '{"system":[{"type":"text","text":"A","cache_control":{"type":"ephemeral"}}\n],"messages":[]}',
            '"cache_control":{"type":"ephemeral"}},{"type":"text","text":"' + BARE + '"}\n],',
        ),
        (
            '{"system":[],"messages":[]}',
            '{"system":[{"type":"text","text":"' + BARE + '"}],"messages":[]}',
        ),
        ('{"messages":[] }\n', '{"messages":[],"system":"' + BARE + '" }\n'),
    ],
)
def test_messages_system_text_is_a_block_behind_the_last(before: str, after: str) -> None:
    assert after in sent(Wire.MESSAGES, before, SKILL)


ITEM = (
    '{"type":"message","role":"developer","content":[{"type":"input_text","text":"' + BARE + '"}]}'
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"instructions":"A","input":"u"}', '"instructions":"A' + ESCAPED + '","input":"u"'),
        ('{"input":"u"}', '{"input":"u","instructions":"' + BARE + '"}'),
        (
            '{"instructions":null,"input":"u"}',
            '"input":[' + ITEM + ',{"type":"message","role":"user","content":"u"}]}',
        ),
        ('{"instructions":null,"input":[]}', '"input":[' + ITEM + "]}"),
        (
            '{"input":[{"role":"user","content":"u"}]}',
            '{"input":[' + ITEM + ',{"role":"user","content":"u"}]}',
        ),
        (
            (
                '{"input":[{"type":"additional_tools","role":"developer"},{"role":"system","content":"A"}'
                ' ,{"role":"user"}]}'
            ),
            '"content":"A"},' + ITEM + ' ,{"role":"user"}]}',
        ),
        ('{"input":[{"role":"developer","content":"A"}]}', '"content":"A"},' + ITEM + "]}"),
    ],
)
def test_responses_system_text_is_instructions_or_a_developer_item(before: str, after: str) -> None:
    assert after in sent(Wire.RESPONSES, before, SKILL)


@pytest.mark.parametrize(
    ("wire", "before", "after"),
    [
        (Wire.CHAT, '{"messages":[{"role":"user","content":"u"}]}', '"content":"u\\n\\nLater."}]}'),
        (
            Wire.CHAT,
            '{"messages":[{"role":"user","content":[{"a":1}]}]}',
            '[{"a":1},{"type":"text","text":"Later."}]}]}',
        ),
        (
            Wire.MESSAGES,
            '{"messages":[{"role":"user","content": "u" }]}',
            '"content": [{"type":"text","text":"u"},{"type":"text","text":"Later."}] }]}',
        ),
        (
            Wire.MESSAGES,
            '{"messages":[{"role":"user","content":[{"type":"text","text":"u"}]}]}',
            '"content":[{"type":"text","text":"u"},{"type":"text","text":"Later."}]}]}',
        ),
        (
            Wire.RESPONSES,
            '{"input":[{"role":"user","content":"u"}]}',
            '"content":"u\\n\\nLater."}]}',
        ),
        (
            Wire.RESPONSES,
            '{"input":[{"role":"user","content":[{"a":1}]}]}',
            '{"a":1},{"type":"input_text","text":"Later."}]}]}',
        ),
        (Wire.RESPONSES, '{"input":"u"}', '{"input":"u\\n\\nLater."}'),
    ],
)
def test_a_later_placement_ends_its_user_message(wire: Wire, before: str, after: str) -> None:
    assert after in sent(wire, before, LATER)


def test_a_string_made_a_list_can_be_extended_too() -> None:
    result = json.loads(sent(Wire.RESPONSES, '{"input":"u","instructions":null}', SKILL, LATER))
    assert result["input"][1] == {"type": "message", "role": "user", "content": "u\n\nLater."}


def test_placements_of_one_place_follow_each_other() -> None:
    second = Placement(b"", (), "Second.")
    result = json.loads(
        sent(Wire.CHAT, '{"messages":[{"role":"user","content":"u"}]}', SKILL, second)
    )
    assert result["messages"][0]["content"] == SKILL.text + "\n\nSecond."


def test_a_placement_whose_history_is_gone_is_left_out() -> None:
    lost = Placement(b"lost", (SkillName("x"),), "Lost.")
    spliced = splice(Wire.CHAT, '{"messages":[{"role":"user","content":"u"}]}', lost, LATER)
    assert spliced.placed == (LATER,)
    assert splice(Wire.CHAT, '{"messages":[{"role":"user","content":"u"}]}', lost) == Spliced()


def test_nothing_to_place_is_nothing_to_do() -> None:
    assert placement_splices(Wire.CHAT, b"not even JSON", {}, (), ()) == Spliced()


@each(
    ("wire", "body"),
    [
        (
            Wire.CHAT,
            '{"messages":[{"role":"system","content":"A"}],"messages":[{"role":"system","content":"A"}]}',
        ),
        (
            Wire.CHAT,
            '{"messages":[{"role":"system","content":"A"}],"m\\u0065ssages":[{"role":"system","content":"B"}]}',
        ),
        (Wire.CHAT, '{"messages":[{"role":"system","content":"A","content":"B"}]}'),
        (Wire.CHAT, '{"messages":[{"role":"system","content":"A","content":"A"}]}'),
        (Wire.CHAT, '{"messages":[{"role":"system","content":"A","cont\\u0065nt":"B"}]}'),
        (Wire.CHAT, '{"messages":[{"role":"system","content":null}]}'),
        (Wire.CHAT, '{"messages":[{"role":"system"}]}'),
        (Wire.CHAT, '{"messages":[]}'),
        (Wire.CHAT, '{"messages":{}}'),
        (Wire.CHAT, "{}"),
        (Wire.MESSAGES, '{"system":null,"messages":[]}'),
        (Wire.MESSAGES, '{"system":{},"messages":[]}'),
        (Wire.MESSAGES, '{"system":"A","system":"B","messages":[]}'),
        (Wire.RESPONSES, '{"input":3}'),
        (Wire.RESPONSES, '{"instructions":"A","instructions":"B","input":3}'),
    ],
)
def test_where_it_cannot_be_done_beyond_doubt_nothing_is_done_and_said_why(
    wire: Wire, body: str
) -> None:
    spliced = splice(wire, body, SKILL)
    assert spliced.refused
    assert (spliced.splices, spliced.placed) == ((), ())


@pytest.mark.parametrize(
    ("wire", "body", "index"),
    [
        (Wire.CHAT, '{"messages":[{"role":"user","content":"u"}]}', 1),
        (Wire.CHAT, '{"messages":[{"role":"user"}]}', 0),
        (Wire.CHAT, '{"messages":["u"]}', 0),
        (Wire.RESPONSES, '{"input":"u"}', 1),
        (Wire.RESPONSES, '{"input":[{"type":"item_reference","id":"x"}]}', 0),
    ],
)
def test_a_message_that_cannot_be_extended_refuses_everything(
    wire: Wire, body: str, index: int
) -> None:
    spliced = splice(wire, body, SKILL, LATER, index=index)
    assert spliced.refused
    assert spliced.splices == ()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  ",
        b"[]",
        b"nonsense",
        b'\xef\xbb\xbf{"messages":[{"role":"user","content":"u"}]}',
        b'{"messages":[{"role',
    ],
)
def test_bytes_that_do_not_hold_what_was_decoded_are_refused(body: bytes) -> None:
    parsed: dict[str, Json] = {"messages": [{"role": "user", "content": "u"}]}
    assert placement_splices(Wire.CHAT, body, parsed, [SKILL], ()).refused
    assert placement_splices(Wire.MESSAGES, body, parsed, [SKILL], ()).refused


def test_a_text_that_is_no_unicode_is_refused() -> None:
    spliced = splice(
        Wire.CHAT, '{"messages":[{"role":"user","content":"u"}]}', Placement(b"", (), "\ud800")
    )
    assert spliced.refused


def test_a_key_of_the_same_name_further_in_does_not_mislead() -> None:
    nested = '"tools":[{"messages":[{"role":"system","content":"no"}]}],"x":"\\"messages\\":["'
    body = "{" + nested + ',"messages":[{"role":"system","content":"A"}]}'
    assert sent(Wire.CHAT, body, SKILL) == body.replace('"A"', '"A' + ESCAPED + '"')


def test_the_spans_of_fields_hold_their_values() -> None:
    body = b' {"a" : 1,\n"b\\u0062":[ ] , "c":"x" } '
    document = JsonDocument(body)
    assert [body[slice(*document.field(key))] for key in ("a", "bb", "c")] == [b"1", b"[ ]", b'"x"']


def captured(folder: Path) -> Iterator[tuple[str, Wire, dict[str, Json]]]:
    wires = {
        "/chat/completions": Wire.CHAT,
        "/responses": Wire.RESPONSES,
        "/messages": Wire.MESSAGES,
    }
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        route = record["path"].split("?")[0].removeprefix("/v1")
        if route in wires and isinstance(record["body"], dict):
            yield path.stem, wires[route], record["body"]


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_every_captured_request_takes_a_skill_and_keeps_its_bytes(
    shared: Path, separators: tuple[str, str]
) -> None:
    seen = 0
    for name, wire, body in captured(shared / "captures"):
        raw = json.dumps(body, separators=separators, ensure_ascii=False).encode()
        index = anchorable(wire, body)
        assert index is not None, name
        placements = (SKILL, LATER)
        spliced = placement_splices(wire, raw, body, placements, [Anchor(index, b"later")])
        assert spliced.refused is None, name
        result = apply_splices(raw, spliced.splices)
        assert without(result, spliced.splices) == raw, name
        assert json.loads(result) == place_by_rule(wire, body, placements, index), name
        assert result.count(b'"cache_control"') == raw.count(b'"cache_control"'), name
        seen += 1
    assert seen > 30


@pytest.mark.parametrize(
    "written", ["caf\\u00e9", "a \\/ b", "\\u0061", "é", 'a \\"content\\":\\"b\\"']
)
def test_a_text_may_be_written_in_any_way_that_json_allows(written: str) -> None:
    body = (
        '{"messages":[{"role":"user","content":"a"},{"role":"user","content":"' + written + '"}]}'
    )
    assert sent(Wire.CHAT, body, LATER, index=1).endswith(written + '\\n\\nLater."}]}')
