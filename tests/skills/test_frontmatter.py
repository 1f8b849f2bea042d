"""Front matter is written as YAML's own writer would, and what is written is read back, typed fields included."""

import yaml
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.skills.files import parse_skill, render_skill
from metaclaw.skills.frontmatter import _parse_plain, parse_front_matter, render_front_matter

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
