"""Front matter is written as YAML's own writer would, and what is written is read back, typed fields included."""

from contextlib import suppress

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.errors import SkillError
from metaclaw.skills.files import _parse_plain, parse_front_matter, parse_skill, render_front_matter, render_skill

ODD = [
    "null",
    "Yes",
    "y",
    "on",
    "a: b",
    "a #b",
    "#b",
    "x,y",
    "[a]",
    "a - b",
    "it's",
    "%d",
    "a:b",
    "C#",
    "é",
    "a  b",
    "12:30",
    "~",
    "=",
]
WORDS = st.lists(st.sampled_from(ODD) | st.text("ab :#'\"-,[]{}&*!|>?@`%~=\\", max_size=6), min_size=1, max_size=4).map(" ".join)
KEYS = st.sampled_from(["name", "scope", "on", "y", "null", "a-b"])


@given(st.dictionaries(KEYS, WORDS, min_size=1, max_size=3))
def test_plain_lines_are_written_as_yaml_writes_them(fields: dict[str, str]) -> None:
    written = render_front_matter(dict(fields))
    assert written == yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=10_000, default_flow_style=False)
    assert parse_front_matter(written, "here") == fields


@given(KEYS, WORDS)
def test_what_is_read_the_quick_way_is_what_yaml_reads(key: str, value: str) -> None:
    text = f"{key}: {value}\n"
    quick = _parse_plain(text)
    if quick is not None:
        assert yaml.safe_load(text) == quick


@given(
    WORDS.map(lambda text: " ".join(text.split())).filter(bool),
    st.sampled_from([None, "owner", "user:alice #1", "team:back end", "workspace:a: b", "12", "yes"]),
    st.sampled_from([(SkillState.CANARY, False), (SkillState.LIVE, False), (SkillState.LIVE, True)]),
    st.sampled_from(Authorship),
)
def test_every_typed_field_survives_its_file(
    trigger: str, scope: str | None, standing: tuple[SkillState, bool], author: Authorship
) -> None:
    state, pinned = standing
    skill = Skill(SkillName("a"), trigger, "Do.", scope=scope, state=state, author=author, pinned=pinned)
    assert parse_skill(render_skill(skill), "here") == skill


@pytest.mark.parametrize(
    "words",
    [
        "Use when: it rains",
        "`git push` fails",
        "@mentions in a message",
        "Ends with a colon:",
        "(see: the guide)",
        "<tag>: what it holds",
        'Say "no": then stop',
        "été: soleil",
        "a\\b: c",
    ],
)
def test_words_that_yaml_takes_for_more_are_read_as_words(words: str) -> None:
    text = f"name: rain\ndescription: {words}\nmetadata:\n  tags: [a, b]\n"
    assert parse_front_matter(text, "here") == {"name": "rain", "description": words, "metadata": {"tags": ["a", "b"]}}


@given(WORDS, WORDS)
def test_what_yaml_can_read_is_read_as_yaml_reads_it(one: str, other: str) -> None:
    text = f"name: {one}\ndescription: {other}\n"
    try:
        expected = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return
    found = None
    with suppress(SkillError):  # what YAML allows and a skill has no use for
        found = parse_front_matter(text, "here")
    assert found in (None, expected)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("name: rain\ndescription: Use when: it rains\n  and on\n", 3),
        ("name: rain\ndescription: [when: it rains\n", 4),
        ("name: rain\ndescription: Use when: it rains\nother: 'no end\n", 3),
    ],
)
def test_what_cannot_be_read_even_so_is_told_where_it_was_written(text: str, line: int) -> None:
    with pytest.raises(SkillError, match=f"here: line {line}: "):
        parse_front_matter(text, "here")
