"""A skill that a client brings itself is found wherever it stands in the request."""

import json
from typing import Any

import pytest

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill
from metaclaw.proxy.placement import brought_by_client

SKILLS = [
    Skill(SkillName(name), f"When asked for {name}", "Do it.") for name in ("bread", "bees", "bows")
]


def brought(*contents: str, **fields: Any) -> list[str]:
    messages = [{"role": "user", "content": content} for content in contents]
    body = json.dumps(
        {"model": "m", "messages": messages, **fields}, separators=(",", ":")
    ).encode()
    return [skill.name for skill in brought_by_client(SKILLS, body)]


def test_a_skill_in_a_message_is_found_and_a_mere_name_is_not() -> None:
    assert brought("hello") == []
    assert brought("hello", "bread and bees, please") == []
    assert brought("hello", "Read:\n# bees\nDo it.", "Read:\n# bows and more\nIt", "go on") == [
        "bees",
        "bows",
    ]


@pytest.mark.parametrize("field", ["aside", "tools"])
def test_a_skill_beside_the_messages_is_found_too(field: str) -> None:
    assert brought("hello", **{field: "a"}) == []
    assert brought("hello", **{field: "Read:\n## bread\n"}) == ["bread"]
