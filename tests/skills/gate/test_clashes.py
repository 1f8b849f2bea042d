"""Duplicates and conflicts: what a candidate repeats, contradicts or overrides."""

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Rule, Skill
from metaclaw.skills import IndexLibrary
from metaclaw.skills.gate.clashes import (
    ClashKind,
    contrary,
    find_clashes,
    is_same_or_wider,
    overlap,
)
from metaclaw.skills.index import SkillIndex
from tests.support.cases import each


def skill(
    name: str,
    trigger: str,
    body: str,
    scope: str | None = None,
    author: Authorship = Authorship.EVOLVER,
) -> Skill:
    return Skill(SkillName(name), trigger, body, scope=scope, author=author)


INDENT = "When indenting Python source code in this repository"
TABS = skill(
    "indent-tabs", INDENT, "1. Indent with tabs.\n2. Set the editor to tabs.\nDo not mix both."
)


def clashes(
    candidate: Skill, *known: Skill, replaces: tuple[str, ...] = ()
) -> list[tuple[ClashKind, str]]:
    library = IndexLibrary(SkillIndex().changed(known))
    found = find_clashes(candidate, library, [SkillName(name) for name in replaces])
    return [(clash.kind, clash.other.name) for clash in found]


def test_the_same_lesson_in_other_words_is_a_duplicate() -> None:
    again = skill(
        "tabs",
        "When indenting Python code in the repository",
        "1. Indent with tabs.\n2. Set your editor to tabs.\nDo not mix.",
    )
    assert clashes(again, TABS) == [(ClashKind.DUPLICATE, "indent-tabs")]


TEMPLATE = (
    "1. Read the request twice and note what is asked.\n2. {}\n3. Look over the finished result"
    " once more.\n4. Compare it with the request, point by point.\n5. Correct what"
    " differs.\n\nAnti-pattern: answering too early."
)


def test_skills_that_share_their_boilerplate_but_ask_different_things_are_no_duplicates() -> None:
    lessons = {
        "iso-dates": ("When writing dates in a changelog", "Write each date as YYYY-MM-DD."),
        "sql-parameters": ("When building SQL statements in Python", "Pass values as parameters."),
        "short-commits": (
            "When writing commit messages",
            "Keep the subject below fifty characters.",
        ),
        "sorted-imports": ("When adding imports to a Python module", "Sort them by package."),
    }
    known = [
        skill(name, trigger, TEMPLATE.format(step)) for name, (trigger, step) in lessons.items()
    ]
    for number, one in enumerate(known):
        assert clashes(one, *known[:number], *known[number + 1 :]) == []
    other = skill(
        "commit-bodies",
        "When writing commit messages",
        TEMPLATE.format("Explain the reason in the body."),
    )
    assert clashes(other, *known) == []
    again = skill(
        "dates-again",
        "When writing dates in a changelog",
        TEMPLATE.format("Write each date as YYYY-MM-DD."),
    )
    assert clashes(again, *known) == [(ClashKind.DUPLICATE, "iso-dates")]


def test_a_skill_is_no_duplicate_of_a_rule() -> None:
    rule = Rule(SkillName("say-tabs"), INDENT, "Indent with tabs. Set the editor to tabs.")
    assert clashes(TABS, rule) == []


def test_another_lesson_is_none() -> None:
    other = skill(
        "docker-layers",
        "When a Dockerfile rebuilds its dependencies",
        "1. Copy the lock file first.\nDo not copy all.",
    )
    assert clashes(other, TABS) == []


def test_contrary_values_in_the_same_situation_are_a_conflict() -> None:
    spaces = skill(
        "indent-spaces",
        INDENT,
        "1. Indent with four spaces.\n2. Set the editor to spaces.\nDo not mix both.",
    )
    assert clashes(spaces, TABS) == [(ClashKind.CONFLICT, "indent-tabs")]


def test_contrary_values_in_another_situation_are_none() -> None:
    spaces = skill(
        "yaml-spaces",
        "When writing Kubernetes manifests",
        "1. Indent with two spaces.\n2. Validate it.\nDo not guess.",
    )
    assert clashes(spaces, TABS) == []


def test_a_more_specific_scope_may_override_a_wider_one_but_not_the_other_way_round() -> None:
    own = skill(
        "indent-spaces",
        INDENT,
        "1. Indent with four spaces.\n2. Set the editor to spaces.",
        scope="user:anna",
    )
    assert clashes(own, TABS) == [(ClashKind.OVERRIDE, "indent-tabs")]
    everyone = skill(
        "indent-tabs-for-all",
        INDENT,
        "1. Indent with tabs.\n2. Set the editor to tabs.\nDo not mix both.",
    )
    library = IndexLibrary(SkillIndex().changed([own]), frozenset({"user:anna"}))
    assert find_clashes(everyone, library) == ()


def test_what_a_proposal_replaces_and_its_own_older_text_are_no_clash() -> None:
    edited = skill(
        "indent-tabs",
        INDENT,
        "1. Indent with tabs.\n2. Set the editor to tabs of width 4.\nDo not mix both.",
    )
    assert clashes(edited, TABS, replaces=("indent-tabs",)) == []


def test_another_users_private_skill_is_never_looked_at() -> None:
    private = skill("indent-bens", INDENT, TABS.body, scope="user:ben")
    assert clashes(skill("indent-annas", INDENT, TABS.body, scope="user:anna"), private) == []


@each(
    ("one", "other"),
    [
        (
            "Always run the integration tests before pushing.",
            "Never run the integration tests before pushing.",
        ),
        (
            "Use the staging database for experiments.",
            "Do not use the staging database for experiments.",
        ),
        ("Answer in JSON.", "Answer in YAML."),
        ("Wrap lines at 80 columns.", "Wrap lines at 120 columns."),
        ("Name functions in snake_case.", "Name functions in camelCase."),
        ("Install packages with npm.", "Install packages with pnpm instead of npm."),
        ("Write answers in German.", "Write answers in English."),
        ("Write dates as DD.MM.YYYY.", "Write dates as YYYY-MM-DD."),
        (
            "Prefer rebasing feature branches.",
            "Use merge commits for feature branches, not a rebase.",
        ),
    ],
)
def test_contrary_texts_are_told_apart(one: str, other: str) -> None:
    assert contrary(one, other)
    assert contrary(other, one)


@each(
    ("one", "other"),
    [
        ("Always run the integration tests before pushing.", "Never push on a Friday."),
        ("Convert JSON to YAML.", "Answer in JSON."),
        ("Use tabs, never spaces.", "Indent with tabs."),
        ("Do not use spaces.", "Never use spaces for indenting."),
        ("Wrap lines at 80 columns.", "Keep lines below 80 columns."),
        ("Write the summary in five sentences.", "Wrap lines at 80 columns."),
        ("1. Copy the lock file.\n2. Install.", "1. Read the log.\n2. Do not guess."),
    ],
)
def test_texts_that_agree_or_speak_of_other_things_are_not_contrary(one: str, other: str) -> None:
    assert contrary(one, other) is None
    assert contrary(other, one) is None


def test_scopes_are_ordered_from_a_user_to_everyone() -> None:
    assert is_same_or_wider(None, "user:anna")
    assert is_same_or_wider("workspace:w", "owner")
    assert is_same_or_wider("user:anna", "user:anna")
    assert not is_same_or_wider("user:ben", "user:anna")
    assert not is_same_or_wider("user:anna", None)


def test_overlap_is_the_share_of_common_terms() -> None:
    assert overlap("abc", "bcd") == 0.5
    assert overlap("", "") == 0.0
