"""The text of a check: read, written, and refused with a remedy."""

import json
import textwrap

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from metaclaw.domain.check import Check, PatternCheck, Place, ProgramCheck, SchemaCheck, Where
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.errors import SkillError
from metaclaw.skills import check_of, parse_check, parse_skill, render_skill, waits_for_person
from tests.support.cases import each

_PROGRAM = (
    "import json, sys\n\nanswer = json.load(sys.stdin)\nsys.exit(0 if answer['text'] else 1)\n"
)


@pytest.mark.parametrize(
    ("text", "check"),
    [
        (r"pattern: \d{4}-\d{2}-\d{2}", PatternCheck(r"\d{4}-\d{2}-\d{2}")),
        ("not: (?i)as an ai", PatternCheck("(?i)as an ai", must_match=False)),
        (
            "not in calls: git push .* main",
            PatternCheck("git push .* main", False, Where(Place.CALLS)),
        ),
        (
            "pattern in calls of bash: ^set -e",
            PatternCheck("^set -e", True, Where(Place.CALLS, "bash")),
        ),
        (
            "not in calls of shell as written: ^pip",
            PatternCheck("^pip", False, Where(Place.CALLS, "shell", is_as_written=True)),
        ),
        ("pattern in answer: a: b", PatternCheck("a: b")),
        ("pattern: |\n  a+b\n", PatternCheck("a+b")),
        ('schema: {"type": "object"}', SchemaCheck({"type": "object"})),
        (
            'schema in calls of save: |\n  {"type":\n   "object"}',
            SchemaCheck({"type": "object"}, Where(Place.CALLS, "save")),
        ),
        (
            "program: |\n  import sys\n  sys.exit(1)",
            ProgramCheck("import sys\nsys.exit(1)", approved=True),
        ),
    ],
)
def test_a_check_is_read(text: str, check: Check) -> None:
    assert parse_check(text) == check


@each(
    ("text", "fault"),
    [
        ("", "begins with"),
        ("must contain a date", "begins with"),
        ("pattern:", "1 to 2000 characters"),
        ("pattern: (", "not a regular expression"),
        ("pattern: " + "a" * 2001, "not 2001"),
        ("pattern in tea: x", "write `in answer`"),
        ("pattern in answer of bash: x", "only calls have a tool"),
        ("pattern: |\n  a\n  b", "one line"),
        ("schema: [1]", "not a JSON object"),
        ("schema: {", "not JSON"),
        ('schema: {"type": "objekt"}', "not a JSON Schema"),
        ('schema: {"$ref": "https://example.com/schema.json"}', "points outside"),
        ('schema: {"items": {"$ref": "file:///etc/passwd"}}', "points outside"),
        ('schema: {"minimum": NaN}', "NaN is no JSON"),
        ("schema: " + '{"not": ' * 400 + "{}" + "}" * 400, "nested too deeply"),
        ("program:", "1 to 8000 characters"),
        ("program in calls: x", "sees the whole answer"),
    ],
)
def test_what_is_no_check_is_refused_with_a_remedy(text: str, fault: str) -> None:
    with pytest.raises(SkillError, match=fault):
        parse_check(text)


_wheres = st.sampled_from(
    [Where(), Where(Place.CALLS), Where(Place.CALLS, "mcp__fs__write"), Where(Place.CALLS, "Bash")]
)
_patterns = st.text(max_size=40).filter(lambda text: _is_pattern(text))
_schemas = st.dictionaries(
    st.sampled_from(["title", "description", "$comment"]), st.text(max_size=20)
)
_checks = st.one_of(
    st.builds(PatternCheck, _patterns, st.booleans(), _wheres),
    st.builds(SchemaCheck, _schemas, _wheres),
    st.sampled_from(
        [ProgramCheck(_PROGRAM, approved=True), ProgramCheck("x = ' '", approved=True)]
    ),
)


def _is_pattern(text: str) -> bool:
    try:
        PatternCheck(text)
    except ValueError:
        return False
    return True


def render_check(check: Check) -> str:
    """The text of a check."""
    match check:
        case PatternCheck():
            head = f"{'pattern' if check.must_match else 'not'}{_render_where(check.where)}: "
            # A pattern that looks like the sign `|` is written on the line below.
            return head + (f"|\n  {check.pattern}" if check.pattern[0] in "|>" else check.pattern)
        case SchemaCheck():
            return (
                f"schema{_render_where(check.where)}:"
                f" {json.dumps(dict(check.schema), ensure_ascii=False)}"
            )
        case ProgramCheck():
            return "program: |\n" + textwrap.indent(check.source, "  ")


def _render_where(where: Where) -> str:
    if where.place is Place.ANSWER:
        return ""
    return " in calls" if where.tool is None else f" in calls of {where.tool}"


@given(_checks)
@example(PatternCheck(">", must_match=False))
@example(PatternCheck("|", where=Where(Place.CALLS)))
@example(PatternCheck(">-"))
def test_a_check_survives_its_text(check: Check) -> None:
    assert parse_check(render_check(check)) == check


@given(st.text(max_size=200))
def test_any_text_is_a_check_or_an_error(text: str) -> None:
    try:
        check = parse_check(text)
    except SkillError:
        return
    assert parse_check(render_check(check)) == check


def _skill(check: str, **more: object) -> Skill:
    return Skill(
        SkillName("dates"),
        "When dates are written",
        "Use ISO dates.",
        check=check,
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "check",
    [
        PatternCheck(r"\d{4}: #x"),
        SchemaCheck({"a": ["b: c", "#"]}),
        ProgramCheck(_PROGRAM, approved=True),
    ],
)
def test_a_check_survives_the_skills_file(check: Check) -> None:
    skill = parse_skill(render_skill(_skill(render_check(check))), "here")

    assert check_of(skill) == check


def test_a_skill_without_a_check_has_none() -> None:
    assert check_of(Skill(SkillName("dates"), "When dates are written", "Use ISO dates.")) is None


@pytest.mark.parametrize(
    ("author", "state", "is_approved", "waits"),
    [
        (Authorship.PERSON, SkillState.DRAFT, True, False),
        (Authorship.INSTRUCTION, SkillState.DRAFT, True, False),
        (Authorship.EVOLVER, SkillState.DRAFT, False, True),
        (Authorship.EVOLVER, SkillState.LIVE, True, True),
    ],
)
def test_a_models_program_needs_a_persons_word(
    author: Authorship, state: SkillState, is_approved: bool, waits: bool
) -> None:
    skill = _skill(f"program: |\n  {json.dumps('x')}", author=author, state=state)

    check = check_of(skill)
    assert isinstance(check, ProgramCheck)
    assert check.approved is is_approved
    assert (waits_for_person(skill) is not None) is waits


def test_a_models_pattern_needs_nobodys_word() -> None:
    assert (
        waits_for_person(_skill("pattern: x", author=Authorship.EVOLVER, state=SkillState.DRAFT))
        is None
    )
