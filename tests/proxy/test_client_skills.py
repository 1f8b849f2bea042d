"""A skill that a client brings itself is found wherever it stands, however often the rest was searched before."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.domain.chat import Wire
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill
from metaclaw.proxy.http.body import read
from metaclaw.proxy.placement import ClientSkills

PAD = {"role": "user", "content": "x" * 17_000}
SKILLS = [Skill(SkillName(name), f"When asked for {name}", "Do it.") for name in ("bread", "bees", "bows")]


def talk(*contents: str, **fields: Any) -> bytes:
    messages = [PAD, *({"role": "user", "content": content} for content in contents)]
    return json.dumps({"model": "m", "messages": messages, **fields}, separators=(",", ":")).encode()


def names(brought: ClientSkills, body: bytes) -> list[str]:
    return [skill.name for skill in brought.among(SKILLS, body, read(Wire.CHAT, body))]


def test_a_skill_in_a_new_message_is_found_after_the_history_was_searched() -> None:
    brought = ClientSkills()
    assert names(brought, talk("hello")) == []
    assert names(brought, talk("hello", "Read:\n# bees\nDo it.")) == ["bees"]
    assert names(brought, talk("hello", "Read:\n# bees\nDo it.", "go on")) == ["bees"]
    assert names(brought, talk("hello", "go on")) == []


@pytest.mark.parametrize("field", ["aside", "tools"])
def test_a_skill_beside_the_messages_is_found_too(field: str) -> None:
    brought = ClientSkills()
    assert names(brought, talk("hello", **{field: "a"})) == []
    assert names(brought, talk("hello", **{field: "Read:\n## bread\n"})) == ["bread"]


@settings(max_examples=60, deadline=None)
@given(
    talks=st.lists(
        st.lists(st.sampled_from(["hello", "Read:\n# bees\nIt", "bread", "Read:\n# bows and more\nIt", "so"]), max_size=4),
        max_size=6,
    )
)
def test_what_was_searched_before_makes_no_difference(talks: list[list[str]]) -> None:
    brought = ClientSkills()
    for contents in talks:
        body = talk(*contents)
        assert (
            names(brought, body)
            == names(ClientSkills(), body)
            == [one.name for one in ClientSkills().among(SKILLS, body, json.loads(body))]
        )
