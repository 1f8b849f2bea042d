"""Bodies read in part: what is read is what a whole reading gives, and every message is found where
it stands.
"""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.domain.chat import Wire
from metaclaw.errors import WireError
from metaclaw.proxy.http.body import Body, parse_object, read
from metaclaw.wires import wire_format
from tests.support.depth import tries

PAD = "x" * 17_000
KEYS = st.sampled_from(["messages", "input", "a", '"', "b"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def large(fields: dict[str, Any], pad: str = PAD, **how: Any) -> bytes:
    return json.dumps({**fields, "pad": pad}, **how).encode()


def whole(wire: Wire, body: Body) -> dict[str, Any]:
    """Fields and messages together again."""
    return (
        dict(body)
        if body.listed is None
        else {**body, wire_format(wire).list_key: list(body.listed.items)}
    )


@settings(max_examples=tries(50, nightly=750), deadline=None)
@given(
    wire=st.sampled_from(Wire),
    before=st.dictionaries(st.sampled_from(["model", "tools", "metadata"]), VALUES, max_size=2),
    items=VALUES | st.lists(VALUES, min_size=1, max_size=5),
    after=st.dictionaries(
        st.sampled_from(["stream", "system", "instructions"]), VALUES, max_size=2
    ),
    how=st.sampled_from(
        [
            {"separators": (",", ":")},
            {},
            {"indent": 2},
            {"ensure_ascii": False, "separators": (",", ":")},
            {"pad": ""},
        ]
    ),
)
def test_reading_in_part_gives_what_reading_whole_gives(
    wire: Wire, before: dict[str, Any], items: Any, after: dict[str, Any], how: dict[str, Any]
) -> None:
    body = large({**before, wire_format(wire).list_key: items, **after}, **how)
    found = read(wire, body)
    form, fields = wire_format(wire), parse_object(body)
    assert whole(wire, found) == (fields if form.view is None else form.view(fields))
    if found.listed is not None:
        said = [json.loads(body[begin:end]) for begin, end in found.listed.spans]
        assert list(map(form.view_item, said)) == list(found.listed.items)
        assert [body[begin:end] for begin, end in found.listed.spans] == found.listed.raws


def test_the_messages_of_a_large_body_are_read_only_when_somebody_looks() -> None:
    found = read(
        Wire.CHAT,
        large(
            {
                "model": "m",
                "messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
            }
        ),
    )
    assert found.listed is not None
    assert "messages" not in found
    assert len(found.listed.items) == 2
    assert found.listed.items[-1:] == [{"role": "user", "content": "b"}]
    assert found.listed.items[0] is found.listed.items[0]


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[1,2],"messages":[3],"pad":"%b"}',
        b'{"messages":[1,2],"m\\u0065ssages":[3,4],"pad":"%b"}',
        b'{"m\\u0065ssages":[1,2],"messages":[3,4],"pad":"%b"}',
        b'{"a":{"messages":[9]},"messages":[3,4],"pad":"%b"}',
        b'{"a":"\\"messages\\":[9]","messages":[3,4],"pad":"%b"}',
        b'{"messages":[],"pad":"%b"}',
        b'{"messages":null,"pad":"%b"}',
        b'{"pad":"%b"}',
        b'  {"messages" : [ 1 ] , "pad":"%b"}  ',
    ],
)
def test_odd_bodies_are_read_like_any_reader_reads_them(body: bytes) -> None:
    body = body.replace(b"%b", PAD.encode())
    assert whole(Wire.CHAT, read(Wire.CHAT, body)) == parse_object(body)


def test_a_lone_surrogate_in_a_message_is_a_clients_text_like_any_other() -> None:
    body = large({"messages": [{"role": "user", "content": "a"}]}).replace(b'"a"', b'"a \\ud83d b"')
    assert whole(Wire.CHAT, read(Wire.CHAT, body))["messages"] == [
        {"role": "user", "content": "a \ud83d b"}
    ]


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (b'"\xff"', "not valid UTF-8"),
        (b"nope", "not valid JSON"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_wrong_inside_a_message_is_refused_as_it_is_anywhere(
    damage: bytes, word: str
) -> None:
    body = large({"messages": ["here"]}).replace(b'"here"', damage)
    with pytest.raises(WireError, match=word) as caught:
        read(Wire.CHAT, body)
    assert caught.value.status == 400
