"""SKILL.md files: what is read, what is refused and in which words, and how they are written."""

import os
import stat
from contextlib import suppress
from datetime import date
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.domain.front_matter import SkillRecord
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import MAX_BODY_CHARS, Authorship, Skill, SkillKind, SkillState
from metaclaw.errors import SkillError
from metaclaw.skills.files import (
    MAX_FILE_BYTES,
    _parse_plain,
    parse_front_matter,
    parse_skill,
    read_skill,
    remove_skill,
    render_front_matter,
    render_skill,
    sweep,
    withdraw_skill,
    write_skill,
)
from tests.support.cases import each

GOOD = (
    "---\nname: flaky-tests\ndescription: When a test fails only sometimes\n---\n\nRun it fifty"
    " times.\n"
)


def put(folder: Path, content: bytes, name: str = "flaky-tests") -> Path:
    home = folder / name
    home.mkdir(parents=True)
    path = home / "SKILL.md"
    path.write_bytes(content)
    return path


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_plain_file_is_read(tmp_path: Path) -> None:
    path = put(tmp_path, GOOD.encode())
    assert read_skill(path) == Skill(
        SkillName("flaky-tests"), "When a test fails only sometimes", "Run it fifty times."
    )
    assert read_skill(path.parent) == read_skill(path)


def test_every_field_has_its_place_and_unknown_ones_are_kept() -> None:
    text = (
        "---\nname: flaky-tests\ndescription: >\n  When a test\n  fails\ncategory: testing\nscope:"
        " user:alice\ncheck: pytest -q\nlicense: MIT\nmetadata: {version: 2, born:"
        " 2026-11-15}\n---\nBody\n"
    )
    skill = parse_skill(text, "here")
    assert (skill.trigger, skill.category, skill.scope) == (
        "When a test fails",
        "testing",
        "user:alice",
    )
    assert skill.check == "pytest -q"
    assert skill.other == {
        "license": "MIT",
        "metadata": {"version": 2, "born": date(2026, 11, 15)},
    }


@each(
    ("lines", "state", "author", "pinned"),
    [
        ("", SkillState.LIVE, Authorship.PERSON, False),
        ("state: canary\nauthor: evolver\n", SkillState.LIVE, Authorship.EVOLVER, False),
        (
            "state: live\nauthor: instruction\npinned: true\n",
            SkillState.LIVE,
            Authorship.INSTRUCTION,
            True,
        ),
        ("pinned: false\nauthor: person\n", SkillState.LIVE, Authorship.PERSON, False),
        ("author: Jane Doe\n", SkillState.LIVE, Authorship.PERSON, False),
    ],
)
def test_state_author_and_pinning_are_read_and_written(
    lines: str, state: SkillState, author: Authorship, pinned: bool
) -> None:
    skill = parse_skill(GOOD.replace("---\n\n", f"{lines}---\n\n"), "here")
    assert (skill.state, skill.author, skill.pinned) == (state, author, pinned)
    assert parse_skill(render_skill(skill), "here") == skill


def test_what_goes_without_saying_is_not_written() -> None:
    wordy = GOOD.replace("---\n\n", "state: live\nauthor: person\npinned: false\n---\n\n")
    assert render_skill(parse_skill(wordy, "here")).splitlines()[1:4] == [
        "name: flaky-tests",
        "description: When a test fails only sometimes",
        "---",
    ]


def test_an_authors_name_is_kept_and_is_a_persons() -> None:
    skill = parse_skill(GOOD.replace("---\n\n", "author: Jane Doe\n---\n\n"), "here")
    assert (skill.author, skill.other) == (Authorship.PERSON, {"author": "Jane Doe"})
    assert "author: Jane Doe" in render_skill(skill)


@each(
    "change",
    [
        ("\n", "\r\n"),
        ("\n", "\r"),
        ("---\nname", "\ufeff---\nname"),
        ("---\n", "---  \n"),
        ("Run", "\n\n\nRun"),
    ],
)
def test_line_ends_byte_order_marks_and_blank_lines_do_not_matter(change: tuple[str, str]) -> None:
    assert parse_skill(GOOD.replace(*change), "here") == parse_skill(GOOD, "here")


def test_a_rule_in_the_body_is_not_the_end_of_the_front_matter() -> None:
    assert (
        parse_skill(GOOD + "\n---\n\nmore\n", "here").body == "Run it fifty times.\n\n---\n\nmore"
    )


@each(
    ("text", "word"),
    [
        ("Run it.", "begin the file with a line `---`"),
        ("---\nname: a\n", "begin the file with a line `---`"),
        ("---\ndescription: x\n---\nbody", "write `name: …`"),
        ("---\nname: a\n---\nbody", "write `description: …`"),
        ("---\nname: a\ndescription: ''\n---\nbody", "`description` is missing or empty"),
        ("---\nname: 12\ndescription: x\n---\nbody", "`name` is read as int"),
        ("---\nname: a\ndescription: yes\n---\nbody", "`description` is read as bool"),
        ("---\nname: a\ndescription: x\nscope: 2026-01-01\n---\nbody", "`scope` is read as date"),
        ("---\nname: a\ndescription: x\ncheck: [a]\n---\nbody", "`check` is read as list"),
        ("---\nname: A b\ndescription: x\n---\nbody", "not a slug"),
        ("---\nname: a\ndescription: x\n---\n \n", "empty body"),
        ("---\nname: a\ndescription: x\n---\n" + "b" * (MAX_BODY_CHARS + 1), "at most 16000"),
        ("---\nname: a\ndescription: " + "x" * 5000 + "\n---\nbody", "in at most 4096"),
        (
            "---\nname: a\ndescription: [use: when: x\n---\nbody",
            "put text with `: ` or ` #` in quotes",
        ),
        ("---\nname: a\nname: b\ndescription: x\n---\nbody", "line 3: `name` is there twice"),
        (
            "---\nname: a\ndescription: x\nlist: [a, {b: c}]\nlist: d\n---\nbody",
            "`list` is there twice",
        ),
        ("---\n- a\n- b\n---\nbody", "not a mapping"),
        ("---\n1: a\n---\nbody", "not a mapping from words"),
        ("---\nname: a\ndescription: 'x\n---\nbody", "unexpected end of stream"),
        ("---\nwhen: 2001-99-99\n---\nbody", "not YAML"),
        (
            "---\nname: a\ndescription: x\nstate: retired\n---\nbody",
            "`state` is 'retired': write `live`, or leave it out",
        ),
        ("---\nname: a\ndescription: x\nstate: on\n---\nbody", "`state` is True"),
        (
            "---\nname: a\ndescription: x\npinned: maybe\n---\nbody",
            "`pinned` is 'maybe': write `true` or `false`",
        ),
        ("---\nname: a\ndescription: x\nscope: 'user:'\n---\nbody", "`scope` names no user"),
        (
            "---\nname: a\ndescription: x\noverrides: {a: b}\n---\nbody",
            "`overrides` is not a skill's name",
        ),
        (
            "---\nname: a\ndescription: x\noverrides: [b, 7]\n---\nbody",
            "`overrides` is not a skill's name",
        ),
        ('---\nname: a\ndescription: "\\ud83d"\n---\nbody', "escape"),
        ("---\nname: a\ndescription: \x07bell\n---\nbody", "not YAML"),
    ],
)
def test_a_fault_is_named_with_its_remedy(text: str, word: str) -> None:
    with pytest.raises(SkillError) as caught:
        parse_skill(text, "skills/a/SKILL.md")
    assert str(caught.value).startswith("skills/a/SKILL.md: ")
    assert word in str(caught.value)


@each(
    ("front", "word"),
    [
        ("x: !!python/object/apply:os.system [id]", "a YAML tag"),
        ("x: !custom y", "a YAML tag"),
        ("x: &a [1]\ny: *a", "an anchor or alias"),
        ("a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nd: [*c,*c]", "an anchor or alias"),
        ("x: " + "[" * 5000, "nested more than"),
        (
            "x:\n" + "".join(" " * depth + "- \n" for depth in range(1, 40)) + " " * 40 + "y",
            "nested more than",
        ),
        ("x: " + "y" * 20_000, "keep it below"),
        ("? [a]\n: b", "line"),
    ],
)
def test_yaml_is_kept_small_and_harmless(front: str, word: str) -> None:
    with pytest.raises(SkillError, match=word):
        parse_skill(f"---\nname: a\ndescription: x\n{front}\n---\nbody", "here")


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SkillError, match="byte 4 is not UTF-8"):
        read_skill(put(tmp_path, b"---\n\xff", "a"))
    with pytest.raises(SkillError, match="NUL character at 70"):
        read_skill(put(tmp_path, GOOD.encode()[:70] + b"\0", "b"))


def test_a_large_file_is_refused_without_being_parsed(tmp_path: Path) -> None:
    with pytest.raises(SkillError, match=f"at most {MAX_FILE_BYTES}"):
        read_skill(put(tmp_path, b"-" * (MAX_FILE_BYTES + 1)))


def test_the_folder_must_have_the_skills_name(tmp_path: Path) -> None:
    with pytest.raises(SkillError, match="rename the folder, or write `name: other`"):
        read_skill(put(tmp_path, GOOD.encode(), "other"))


def test_a_missing_file_a_folder_and_a_pipe_in_its_place_are_refused(tmp_path: Path) -> None:
    for name in ("missing", "folder", "pipe"):
        (tmp_path / name).mkdir()
    (tmp_path / "folder" / "SKILL.md").mkdir()
    os.mkfifo(tmp_path / "pipe" / "SKILL.md")
    with pytest.raises(SkillError, match=r"write a SKILL\.md there"):
        read_skill(tmp_path / "missing" / "SKILL.md")
    for name in ("folder", "pipe"):
        with pytest.raises(SkillError, match=r"not a regular file|Is a directory"):
            read_skill(tmp_path / name / "SKILL.md")


def test_links_are_followed_inside_the_folder_and_refused_beyond_it(tmp_path: Path) -> None:
    outside = put(tmp_path / "outside", GOOD.encode())
    library = tmp_path / "skills"
    inside = put(library, GOOD.encode().replace(b"flaky-tests", b"original"), "original")
    (library / "flaky-tests").symlink_to(outside.parent)
    with pytest.raises(SkillError, match="leads out of"):
        read_skill(library / "flaky-tests" / "SKILL.md")
    for name, target in (
        ("to-file", outside),
        ("to-nothing", library / "nothing"),
        ("to-itself", library / "to-itself" / "SKILL.md"),
    ):
        (library / name).mkdir()
        (library / name / "SKILL.md").symlink_to(target)
        with pytest.raises(SkillError, match=r"leads out of|leads nowhere"):
            read_skill(library / name / "SKILL.md")
    (library / "alias").mkdir()
    (library / "alias" / "SKILL.md").symlink_to(inside)
    with pytest.raises(SkillError, match="named 'original'"):
        read_skill(library / "alias" / "SKILL.md")


def test_files_and_folders_are_their_owners_alone_and_no_scraps_are_left(tmp_path: Path) -> None:
    path = write_skill(tmp_path / "skills", parse_skill(GOOD, "here"))
    assert path.read_text() == GOOD
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [
        stat.S_IMODE(folder.stat().st_mode) for folder in (path.parent, path.parent.parent)
    ] == [0o700, 0o700]
    write_skill(tmp_path / "skills", Skill(SkillName("flaky-tests"), "When: it # fails", "Look."))
    assert read_skill(path).trigger == "When: it # fails"
    assert names_in(path.parent) == ["SKILL.md"]


def test_what_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(SkillError, match="in at most"):
        write_skill(tmp_path, Skill(SkillName("a"), "x" * 5000, "body"))
    assert names_in(tmp_path) == []


def test_a_skill_is_not_written_through_a_link_that_leads_out(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    library = tmp_path / "skills"
    library.mkdir()
    (library / "flaky-tests").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SkillError, match="leads out of"):
        write_skill(library, parse_skill(GOOD, "here"))
    assert names_in(tmp_path / "elsewhere") == []


def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "skills").write_text("a file in the way")
    with pytest.raises(SkillError, match="File exists"):
        write_skill(tmp_path / "skills", parse_skill(GOOD, "here"))


def test_removing_takes_the_whole_folder_and_nothing_else(tmp_path: Path) -> None:
    path = write_skill(tmp_path, parse_skill(GOOD, "here"))
    (path.parent / "notes.txt").write_text("x")
    write_skill(tmp_path, Skill(SkillName("other"), "When", "How"))
    remove_skill(tmp_path, "flaky-tests")
    assert names_in(tmp_path) == ["other"]


@pytest.mark.parametrize("name", ["missing", "", ".", "..", "../skills", "a/b"])
def test_removing_what_is_not_a_skill_is_refused(tmp_path: Path, name: str) -> None:
    library = tmp_path / "skills"
    write_skill(library, Skill(SkillName("a"), "When", "How"))
    with pytest.raises(SkillError, match="no skill of this name"):
        remove_skill(library, name)
    assert names_in(library) == ["a"]


def test_removing_a_link_leaves_its_target(tmp_path: Path) -> None:
    path = write_skill(tmp_path, Skill(SkillName("a"), "When", "How"))
    (tmp_path / "b").symlink_to(path.parent)
    remove_skill(tmp_path, "b")
    assert path.exists()


def test_rendering_keeps_the_order_and_quotes_what_needs_it() -> None:
    skill = Skill(SkillName("a"), "yes", "How", "x: y", check="true", other={"tags": ["p", "q"]})
    assert (
        render_skill(skill)
        == "---\nname: a\ndescription: 'yes'\ncategory: 'x: y'\ncheck: 'true'\ntags:\n- p\n-"
        " q\n---\n\nHow\n"
    )


def test_a_number_sign_behind_a_space_ends_the_value_as_it_does_in_yaml() -> None:
    assert (
        parse_skill(GOOD.replace("only sometimes", "once #twice"), "here").trigger
        == "When a test fails once"
    )
    assert (
        parse_skill(GOOD.replace("only sometimes", "in C#"), "here").trigger
        == "When a test fails in C#"
    )


def test_withdrawing_what_is_not_there_is_no_fault(tmp_path: Path) -> None:
    withdraw_skill(tmp_path, "nothing")
    put(tmp_path, GOOD.encode())
    withdraw_skill(tmp_path, "flaky-tests")
    withdraw_skill(tmp_path, "flaky-tests")
    assert not (tmp_path / "flaky-tests").exists()
    sweep(tmp_path)
    assert names_in(tmp_path) == []


def test_what_was_set_aside_twice_is_kept_twice(tmp_path: Path) -> None:
    for number in range(2):
        path = put(tmp_path, GOOD.encode())
        (path.parent / "notes.txt").write_text(str(number))
        withdraw_skill(tmp_path, "flaky-tests")
    assert sorted(path.read_text() for path in tmp_path.rglob("notes.txt")) == ["0", "1"]
    assert not list(tmp_path.rglob("SKILL.md"))


def test_a_file_says_whether_it_is_a_rule_a_fact_or_a_skill() -> None:
    text = (
        "---\nname: {0}\ndescription: d\nkind: {0}\nexpires: 2027-01-31\nexamples: [deploy"
        " it]\n---\n\nWords.\n"
    )
    for kind in SkillKind:
        skill = parse_skill(text.format(kind), "here")
        assert (skill.kind, skill.expires, skill.examples) == (
            kind,
            date(2027, 1, 31),
            ("deploy it",),
        )
        assert parse_skill(render_skill(skill), "again") == skill


def test_what_was_written_down_from_words_before_kinds_existed_is_a_rule() -> None:
    assert (
        parse_skill(
            "---\nname: a\ndescription: d\nauthor: instruction\n---\n\nWords.\n", "here"
        ).kind
        is SkillKind.RULE
    )
    assert (
        parse_skill("---\nname: a\ndescription: d\n---\n\nWords.\n", "here").kind is SkillKind.SKILL
    )


@each("line", ["kind: law", "examples: one", "examples: [1]", "expires: tomorrow"])
def test_a_kind_an_example_or_a_date_that_cannot_be_is_refused_with_the_remedy(line: str) -> None:
    with pytest.raises(SkillError, match="write"):
        parse_skill(f"---\nname: a\ndescription: d\n{line}\n---\n\nWords.\n", "here")


@each("written", ["off", "'off'", "false", "no"])
def test_a_bare_off_is_read_as_the_word_and_written_so_that_it_stays_one(written: str) -> None:
    skill = parse_skill(GOOD.replace("---\n\n", f"enforce: {written}\n---\n\n"), "here")
    assert skill.enforce == "off"
    assert parse_skill(render_skill(skill), "here") == skill


@each(
    ("line", "remedy"),
    [
        ("enforce: on", "`off`, `remind` or `hold`"),
        ("on_error: stop", "`pass` or `hold`"),
        ("on_break: stop", "`text` or `call`"),
        ("check_state: sure", "`proposed` or `confirmed`"),
    ],
)
def test_what_happens_to_a_broken_rule_is_one_of_few_words(line: str, remedy: str) -> None:
    with pytest.raises(SkillError, match=remedy):
        parse_skill(GOOD.replace("---\n\n", f"{line}\n---\n\n"), "here")


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
WORDS = st.lists(
    st.sampled_from(ODD) | st.text("ab :#'\"-,[]{}&*!|>?@`%~=\\", max_size=6),
    min_size=1,
    max_size=4,
).map(" ".join)
KEYS = st.sampled_from(["name", "scope", "on", "y", "null", "a-b"])


@given(st.dictionaries(KEYS, WORDS, min_size=1, max_size=3))
def test_plain_lines_are_written_as_yaml_writes_them(fields: dict[str, str]) -> None:
    written = render_front_matter(dict(fields))
    assert written == yaml.safe_dump(
        fields, sort_keys=False, allow_unicode=True, width=10_000, default_flow_style=False
    )
    assert parse_front_matter(written, "here") == fields


@given(KEYS, WORDS)
def test_what_is_read_the_quick_way_is_what_yaml_reads(key: str, value: str) -> None:
    text = f"{key}: {value}\n"
    quick = _parse_plain(text)
    if quick is not None:
        assert yaml.safe_load(text) == quick


@given(
    WORDS.map(lambda text: " ".join(text.split())).filter(bool),
    st.sampled_from(
        [None, "owner", "user:alice #1", "team:back end", "workspace:a: b", "12", "yes"]
    ),
    st.booleans(),
    st.sampled_from(Authorship),
)
def test_every_typed_field_survives_its_file(
    trigger: str, scope: str | None, pinned: bool, author: Authorship
) -> None:
    record = SkillRecord(SkillName("a"), trigger, "Do.", scope=scope, author=author, pinned=pinned)
    skill = record.read()
    assert parse_skill(render_skill(skill), "here") == skill


@each(
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
    assert parse_front_matter(text, "here") == {
        "name": "rain",
        "description": words,
        "metadata": {"tags": ["a", "b"]},
    }


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
