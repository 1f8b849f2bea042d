"""Promotion: a lesson of several users may become everyone's, without the words of a single
user.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.skills.maintenance import find_promotions, stale_reason
from tests.support.cases import each

TRIGGER = "When reading CSV exports from German accounting software"
STEPS = (
    "1. Look at the separator.\n2. Read with a decimal comma.\n3. Add up one column.\n\nDo not"
    " replace commas by hand."
)


def lesson(user: str, body: str = STEPS, trigger: str = TRIGGER, scope: str | None = None) -> Skill:
    return Skill(
        SkillName(f"csv-comma-{user}"),
        trigger,
        body,
        scope=scope or f"user:{user}",
        author=Authorship.EVOLVER,
    )


def test_three_users_with_the_same_lesson_are_enough_and_two_are_not() -> None:
    (promotion,) = find_promotions([lesson("anna"), lesson("ben"), lesson("cleo")], None)
    assert promotion.users == 3
    assert promotion.skill.scope is None
    assert promotion.skill.state is SkillState.DRAFT
    assert promotion.skill.name == "csv-comma"
    assert promotion.learned_in == ("csv-comma-anna", "csv-comma-ben", "csv-comma-cleo")
    assert find_promotions([lesson("anna"), lesson("ben")], None) == []


def test_three_skills_of_one_user_are_one_user() -> None:
    assert (
        find_promotions([lesson(name, scope="user:anna") for name in ("a", "b", "c")], None) == []
    )


def test_a_private_line_stays_private_though_the_lesson_goes_on() -> None:
    secret = lesson("cleo", f"{STEPS}\n4. Upload it to fibu.example.internal with account 4711.")
    (promotion,) = find_promotions([lesson("anna"), lesson("ben"), secret], "team:books")
    assert promotion.skill.scope == "team:books"
    assert "internal" not in promotion.skill.body
    assert "4711" not in promotion.skill.body
    assert "decimal comma" in promotion.skill.body


def test_where_too_little_is_shared_nothing_goes_on() -> None:
    trigger = "When reading CSV exports of {} from German accounting software"
    users = [
        lesson(user, trigger=trigger.format(f"Firma {user}")) for user in ("anna", "ben", "cleo")
    ]
    assert find_promotions(users, None) == []


def test_a_contrary_lesson_of_anybody_stops_it() -> None:
    contrary = lesson(
        "dora",
        "1. Look at the separator.\n2. Do not read with a decimal comma.\n3. Never add up one"
        " column.",
    )
    assert find_promotions([lesson("anna"), lesson("ben"), lesson("cleo"), contrary], None) == []


def test_what_is_not_a_users_own_does_not_count() -> None:
    teams = lesson("cleo", scope="team:books")
    assert find_promotions([lesson("anna"), lesson("ben"), teams], None) == []


WORDS = ("anna", "berlin", "4711", "acme", "fibu", "host-a", "invoice-77", "müller")
private_words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4)


@given(st.lists(private_words, min_size=3, max_size=5))
def test_no_word_that_fewer_than_three_users_wrote_ever_leaves_them(added: list[list[str]]) -> None:
    users = [
        lesson(f"u{number}", f"{STEPS}\n- Mind {' '.join(words)}.")
        for number, words in enumerate(added)
    ]
    for promotion in find_promotions(users, None):
        for word in {word for words in added for word in words}:
            writers = sum(word in words for words in added)
            if writers < 3:
                assert word not in promotion.skill.body


NOW = datetime(2026, 6, 1, tzinfo=UTC)
LEARNED = Skill(
    SkillName("learned"),
    "When reading CSV exports",
    "Use a decimal comma.",
    author=Authorship.EVOLVER,
)


def is_stale(skill: Skill, days: int = 900, tasks: int = 90_000) -> bool:
    return stale_reason(skill, NOW - timedelta(days=days), tasks, NOW) is not None


def test_a_skill_is_stale_only_after_both_time_and_opportunities() -> None:
    assert is_stale(LEARNED, days=100, tasks=600)
    assert not is_stale(LEARNED, days=100, tasks=20)
    assert not is_stale(LEARNED, days=10, tasks=6_000)


@each(
    "fields",
    [
        {"author": Authorship.PERSON},
        {"pinned": True},
        {"author": Authorship.INSTRUCTION},
    ],
    ids=["written", "pinned", "said"],
)
def test_what_a_person_wrote_said_or_pinned_does_not_go_stale(fields: dict[str, object]) -> None:
    assert not is_stale(replace(LEARNED, **fields))  # type: ignore[arg-type]
