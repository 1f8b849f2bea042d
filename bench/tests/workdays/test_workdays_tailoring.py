"""Plans made to measure: users, languages, domains and drift by words, and what is refused."""

import pytest

from metaclaw.plugin import ConfigError
from metaclaw_bench.workdays import CONTRADICTING_USERS, TINY, Drift, User, generate
from metaclaw_bench.workdays.tailoring import tailored
from tests.support.cases import each


def test_without_words_the_plan_stays_what_it_was() -> None:
    assert tailored(TINY) == TINY


def test_users_take_turns_and_mean_rules_in_their_own_way() -> None:
    plan = tailored(
        TINY,
        users=["Kim:de", "Robin::times=utc;names=kebab"],
        domains=["kitchen"],
        drift="2:backups=.orig",
    )
    assert plan.users == (
        User("Kim", "de"),
        User("Robin", "en", {"times": "utc", "names": "kebab"}),
    )
    assert plan.domains == ("kitchen",)
    assert plan.drift == Drift(2, "backups", ".orig")
    made = generate(1, plan)
    assert [(day.user, day.language) for day in made.days] == [
        ("Kim", "de"),
        ("Robin", "en"),
        ("Kim", "de"),
    ]
    assert {day.day.title.split(", ")[0].partition(": ")[2] for day in made.days} == {"kitchen"}


def test_two_who_contradict_each_other_have_a_name() -> None:
    assert tailored(TINY, users=["contradicting"]).users == CONTRADICTING_USERS


def test_a_changed_plan_has_another_name_so_that_nobody_takes_it_for_the_plain_one() -> None:
    german, french = (tailored(TINY, languages=[language]) for language in ("de", "fr"))
    assert [user.language for user in german.users] == ["de"]
    assert len({german.name, french.name, TINY.name}) == 3


@each(
    ("given", "says"),
    [
        ({"users": ["Kim"], "languages": ["de"]}, "one of them"),
        ({"users": [":de"]}, "NAME:LANGUAGE"),
        ({"users": ["Kim:de:times"]}, "RULE=VARIANT"),
        ({"drift": "times"}, "DAY:RULE=VARIANT"),
    ],
)
def test_words_that_say_nothing_are_refused(given: dict[str, list[str]], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        tailored(TINY, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given", [{"languages": ["tlh"]}, {"domains": ["moon"]}, {"users": ["Kim:en:times=noon"]}]
)
def test_what_there_is_not_is_refused_when_it_is_made(given: dict[str, list[str]]) -> None:
    with pytest.raises(ConfigError, match="plan"):
        generate(1, tailored(TINY, **given))  # type: ignore[arg-type]
