"""The draft check: objections to a skill's text."""

from dataclasses import replace

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Lesson, Skill
from metaclaw.skills.gate.gate import changed_lines, count_words, lint
from tests.support.cases import each

GOOD = Skill(
    SkillName("csv-decimal-comma"),
    "When reading CSV exports from German accounting software",
    "1. Look at the first lines for the separator.\n2. Read with a decimal comma.\n3. Add up one"
    " column.\n\nDo not replace commas by hand.",
    author=Authorship.EVOLVER,
)


def objections(**changes: str) -> str:
    return " | ".join(lint(replace(GOOD, **changes)))  # type: ignore[arg-type]


def test_a_good_skill_has_no_objection() -> None:
    assert lint(GOOD) == ()


@each(
    ("trigger", "objection"),
    [
        ("Reading CSV", "2 words"),
        ("When " + "reading semicolon exports " * 25, "76 words"),
        ("When working on any task with German CSV exports", "vague ('any task')"),
        ("Use this whenever needed for accounting software", "vague ('whenever needed')"),
        ("When the user asks to change a file", "vague"),
    ],
)
def test_a_trigger_must_tell_one_situation_from_another(trigger: str, objection: str) -> None:
    assert objection in objections(trigger=trigger)


@each(
    ("body", "objection"),
    [
        ("Read it with a decimal comma and never by hand.", "no steps"),
        ("1. Read it.\n2. Add it up.", "what not to do"),
        ("1. Read it.\n2. Do not stop.\n" + "Look at the separator of each line. " * 120, "tokens"),
        ("1. %%%% 0000\n2. #### 1111\n{}[]();:;:!!!! 22222 33333 4444 do not", "not prose"),
        ("1. I tried the comma first.\n2. Do not use it.", "'I tried'"),
        ("1. The user said to use commas.\n2. Do not use points.", "'The user said'"),
        ("1. Read it as in this session.\n2. Never guess.", "'this session'"),
        ("1. Read /home/anna/export.csv.\n2. Never guess.", "'/home/anna'"),
        ("1. Read C:\\Users\\Anna\\export.csv.\n2. Never guess.", "folder"),
        ("1. Look at run 3f2504e0-4f89-41d3-9a0c-0305e82c3301.\n2. Never guess.", "identifier"),
        ("1. Look at t_0192ab34cd560192ab34cd560192.\n2. Never guess.", "identifier"),
        ("1. Take the result of call_9fK2mQ81ab.\n2. Never guess.", "identifier"),
        ("1. Check out 1f3c9ab27de45f.\n2. Never guess.", "content hash"),
        ("1. It failed on 2026-03-04 10:22.\n2. Never guess.", "point in time"),
        ("1. Send the key <API_KEY:openai>.\n2. Never guess.", "secret"),
        ("1. Send YOUR_API_KEY.\n2. Never guess.", "secret"),
        ("1. Read it.\u202e\n2. Never guess.", "U+202E"),
        ("1. Read it.\u200b\n2. Never guess.", "U+200B"),
    ],
)
def test_a_body_must_be_steps_and_nothing_of_one_session(body: str, objection: str) -> None:
    assert objection in objections(body=body)


@each(
    "body",
    [
        "1. Write dates in the format 2026-03-04T10:22.\n2. Never write them otherwise.",
        "1. Use ids such as 3f2504e0-4f89-41d3-9a0c-0305e82c3301.\n2. Avoid counters.",
        "1. Ask `what did I do` in the log.\n2. Avoid guessing: `the user said` is a marker.",
        "- 先看分隔符。\n- 不要手工替换逗号。",
        "- Zuerst das Trennzeichen ansehen.\n- Niemals Kommas von Hand ersetzen.",
        "- Regarder le séparateur.\n- Ne remplacez pas les virgules.",
        "1. Use a family emoji 👨‍👩‍👧 in the greeting.\n2. Do not use two.",
    ],
)
def test_examples_code_and_other_languages_are_no_leftovers(body: str) -> None:
    assert lint(replace(GOOD, body=body)) == ()


def test_changed_lines_count_a_change_once_and_blank_lines_never() -> None:
    assert changed_lines("a\nb\nc", "a\nB\nc") == 1
    assert changed_lines("a\nb", "a\n\n\nb") == 0
    assert changed_lines("a", "a\nb\nc") == 2


def test_words_are_counted_in_every_script() -> None:
    assert count_words("When reading CSV files") == 4
    assert count_words("用户要求撰写周报时") == 5


def test_a_lesson_that_says_nothing_in_particular_is_refused() -> None:
    def lesson(text: str) -> Lesson:
        return Lesson(SkillName("l"), "Always", text, author=Authorship.EVOLVER)

    assert "nothing in particular" in lint(lesson("Be careful."))[0]
    assert lint(lesson("Put configuration into conf.d/; config/ is generated.")) == ()
