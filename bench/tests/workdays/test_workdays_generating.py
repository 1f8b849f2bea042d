"""What a plan promises of its days: how many questions, which rules from when on, how hard;
held-out days share nothing.
"""

import pickle
import re
from dataclasses import replace
from statistics import mean

import pytest

from bench.tests.workdays.samples import (
    LANGUAGES,
    PLANS,
    choices,
    days_of,
    file_checks,
    held_out_of,
    pairs_of,
)
from metaclaw.plugin import ConfigError
from metaclaw_bench.questions import ChoiceCheck
from metaclaw_bench.workdays import (
    CONTRADICTING_USERS,
    PART_TWO,
    TINY,
    Drift,
    Item,
    Plan,
    User,
    Workdays,
    built_in_rules,
    generate,
    score,
    speaking,
)
from metaclaw_bench.workdays.choices import HOW_TO_ANSWER
from metaclaw_bench.workdays.words import LANGUAGES as WORDS
from tests.support.cases import each

_ALL = [(name, language) for name in ("one", "two") for language in LANGUAGES]


def _variants(item: Item, rule: str) -> set[str]:
    return {variant for part in item.parts for name, variant, _ in part["rules"] if name == rule}


def test_part_one_has_thirty_days_of_ten_to_fifteen_and_346_questions() -> None:
    made = days_of("one")
    counts = [len(day.items) for day in made.days]
    assert (len(counts), sum(counts), min(counts), max(counts)) == (30, 346, 10, 15)
    assert (len(choices(made)), len(file_checks(made))) == (122, 224)


def test_part_two_has_fourteen_days_of_31_choices_and_11_file_checks() -> None:
    made = days_of("two")
    kinds = [
        sum(isinstance(item.round.check, ChoiceCheck) for item in day.items) for day in made.days
    ]
    assert kinds == [31] * 14
    assert [len(day.items) for day in made.days] == [42] * 14


def test_the_tiny_plan_has_three_days_of_six() -> None:
    assert [len(day.items) for day in days_of("tiny").days] == [6, 6, 6]


@each(("name", "language"), _ALL)
def test_choices_have_four_to_eight_options_of_which_one_to_six_are_right(
    name: str, language: str
) -> None:
    for _, item in choices(days_of(name, language=language)):
        check, question = item.round.check, item.round.question
        assert isinstance(check, ChoiceCheck)
        assert 4 <= len(check.options) <= 8
        assert 1 <= len(check.answer) <= 6
        assert question.endswith(f"\n{HOW_TO_ANSWER}")
        assert set(item.round.feedback.options) == set(check.options) == set(item.option_rules)
        assert all(f"\n{letter}. " in question for letter in check.options)


def test_right_answers_are_not_given_away_by_their_place() -> None:
    made = [item.round.check for _, item in choices(days_of("two"))]
    share = {
        letter: mean(letter in check.answer for check in made if isinstance(check, ChoiceCheck))
        for letter in "ABCD"
    }
    assert max(share.values()) - min(share.values()) < 0.15


@each(("name", "language"), _ALL)
def test_no_question_comes_twice_even_on_held_out_days(name: str, language: str) -> None:
    asked = [
        item.round.question
        for made in (days_of(name, 1, language), held_out_of(name, 1, language))
        for item in made.items
    ]
    assert len(set(asked)) == len(asked)


def test_the_same_seed_gives_the_same_and_another_seed_other_questions() -> None:
    again, other = generate(1, speaking(TINY, "en")), days_of("tiny", seed=2)
    assert again == days_of("tiny")
    assert not {item.round.question for item in other.items} & {
        item.round.question for item in again.items
    }


@pytest.mark.parametrize("name", PLANS)
def test_a_rule_is_asked_for_from_its_day_on_and_not_before(name: str) -> None:
    made, plan = days_of(name), PLANS[name]
    first = {
        rule: min(day.number for day, item in pairs_of(made) if rule in item.rules)
        for rule in plan.begins
    }
    assert first == dict(plan.begins)
    first_file = {
        rule: min(day.number for day, item in file_checks(made) if rule in item.rules)
        for rule in plan.begins
    }
    assert all(first_file[rule] - day <= 2 for rule, day in plan.begins.items())


def test_on_day_nine_of_part_two_the_offset_changes_and_the_feedback_says_so() -> None:
    for day, item in file_checks(days_of("two")):
        if "times" in item.rules:
            wanted = "+08:00" if day.number < 9 else "+09:00"
            assert _variants(item, "times") == {wanted}
            assert wanted in item.round.feedback.incorrect
            assert ("This has changed." in item.round.feedback.incorrect) is (day.number >= 9)


@pytest.mark.parametrize("name", ["one", "two"])
def test_days_get_harder(name: str) -> None:
    """Hardness is what has to be got right at once: assertions of a file-check, options of a choice
    and rules mixed in it.
    """
    for seed in (1, 2):
        days = days_of(name, seed).days
        thirds = [days[len(days) * at // 3 : len(days) * (at + 1) // 3] for at in range(3)]
        efforts = [mean(item.effort for day in third for item in day.items) for third in thirds]
        assert efforts[0] + 0.5 < efforts[1] < efforts[2] - 0.5


@pytest.mark.parametrize("name", ["one", "two"])
def test_file_checks_of_the_first_half_want_one_small_file_and_later_ones_several(
    name: str,
) -> None:
    made = days_of(name)
    half = len(made.days) // 2
    early = [item for day, item in file_checks(made) if day.number <= half]
    small = [
        item
        for item in early
        if len(item.reference.files) == 1
        and all(text.count("\n") <= 4 for text in item.reference.files.values())
    ]
    assert len(small) > 0.9 * len(early)
    late = [item for day, item in file_checks(made) if day.number > 0.75 * len(made.days)]
    assert mean(len(item.reference.files) for item in late) > 1.5


def test_late_days_of_part_one_ask_to_collect_from_notes_that_are_there() -> None:
    made = days_of("one")
    collected = [
        (day, item, note)
        for day, item in file_checks(made)
        for note in re.findall(r"\w+/notes_\d+\.txt", item.round.question)
    ]
    assert len(collected) >= 3
    for day, item, note in collected:
        assert day.number > 20
        assert any(
            all(held in day.begins_with[note] for held in part["holds"]) for part in item.parts
        )


def _entities(made: Workdays) -> set[str]:
    """Whatever was made up: the facts of the file-checks, the labels, the options, the files a day
    begins with.
    """
    shared = {"state", "kind", "code", "symbol", "word", "year", "ext"}
    facts = {
        value
        for _, item in file_checks(made)
        for part in item.parts
        for _, _, facts in part["rules"]
        for fact in facts
        for key, value in fact.items()
        if key not in shared
    }
    held = {text for _, item in file_checks(made) for part in item.parts for text in part["holds"]}
    options = {
        line
        for _, item in choices(made)
        for line in item.round.question.split("\n")
        if re.match(r"[A-H]\. ", line)
    }
    return {entity for entity in facts | held | {line[3:] for line in options} if entity}


@each(("name", "language"), _ALL)
def test_held_out_days_share_no_fact_name_number_or_thing_with_the_days(
    name: str, language: str
) -> None:
    seen, kept = _entities(days_of(name, 1, language)), _entities(held_out_of(name, 1, language))
    assert len(seen) > 300
    assert len(kept) > 50
    assert not seen & kept


def _gap(name: re.Match[str]) -> str:
    return {"path": r"\S+", "person": r"\w+ \w+"}.get(name[1], r"[^\n]+?")


@each("language", LANGUAGES)
def test_held_out_days_are_worded_otherwise(language: str) -> None:
    words = WORDS[language]
    texts = {
        is_held_out: "\n".join(item.round.question for item in made.items)
        for is_held_out, made in (
            (False, days_of("one", 1, language)),
            (True, held_out_of("one", 1, language)),
        )
    }
    for wordings in (
        words.write,
        words.make,
        words.change,
        words.which_fit,
        words.which_break,
        words.which_says,
        words.signed,
    ):
        for nth, wording in enumerate(wordings):
            form = re.compile(
                r"(?m)(?:^|(?<=[.:] ))" + re.sub(r"\\\{(\w+)\\\}", _gap, re.escape(wording))
            )
            assert (
                form.search(texts[nth == len(wordings) - 1]) is not None
            ) or wordings is words.which_break
            assert form.search(texts[nth != len(wordings) - 1]) is None, wording


def test_numbers_of_held_out_days_come_from_another_pool() -> None:
    def numbers(made: Workdays) -> set[str]:
        return {
            number
            for _, item in file_checks(made)
            for part in item.parts
            for held in part["holds"]
            for number in re.findall(r"\d+", held)
        }

    assert not numbers(days_of("two")) & numbers(held_out_of("two"))


def test_things_of_one_language_are_in_one_trade_only() -> None:
    for language in LANGUAGES:
        things = [
            thing.lower() for pool in WORDS[language].things.values() for thing in pool.split()
        ]
        assert len(set(things)) == len(things)
        assert all(re.fullmatch("[a-z]+", thing) for thing in things)


@pytest.mark.parametrize("name", PLANS)
def test_on_held_out_days_all_rules_are_in_force_as_they_were_meant_at_last(name: str) -> None:
    made, plan = held_out_of(name), PLANS[name]
    assert {rule for item in made.items for rule in item.rules} == set(plan.begins)
    if plan.drift is not None:
        meant = {variant for item in made.items for variant in _variants(item, plan.drift.rule)}
        assert meant <= {plan.drift.variant}


@each(("name", "language"), _ALL)
def test_no_rule_is_told_before_it_was_broken(name: str, language: str) -> None:
    for made in (days_of(name, 1, language), held_out_of(name, 1, language)):
        seen = [*made.shared.values()]
        for day in made.days:
            seen += (
                [said.text for said in day.day.opening]
                + [*day.begins_with.values()]
                + [item.round.question for item in day.items]
            )
        text = "\n".join(seen)
        for rule in built_in_rules():
            assert not any(rule.says(variant, language) in text for variant in rule.variants)


@each("language", LANGUAGES)
def test_what_a_rule_makes_of_a_fact_does_not_stand_in_the_question(language: str) -> None:
    for _, item in file_checks(days_of("one", 1, language)):
        for part in item.parts:
            for name, variant, facts in part["rules"]:
                pieces = [
                    item.book[name].comply(fact, variant) for fact in facts if name != "backups"
                ]
                assert not any(
                    re.search(rf"(?<!\w){re.escape(piece)}(?!\w)", item.round.question)
                    for piece in pieces
                )


def test_users_who_contradict_each_other_take_turns_and_want_different_answers() -> None:
    made = generate(1, replace(PART_TWO, users=CONTRADICTING_USERS))
    assert [day.user for day in made.days[:4]] == ["Alex", "Robin", "Alex", "Robin"]
    for day, item in file_checks(made):
        if "times" in item.rules:
            assert _variants(item, "times") == {"+08:00" if day.user == "Alex" else "utc"}
    assert all(day.user in day.day.opening[0].text for day in made.days)


def test_what_one_user_wants_another_refuses() -> None:
    alex, robin = (replace(TINY, users=(user,)) for user in CONTRADICTING_USERS)
    both = zip(file_checks(generate(1, alex)), file_checks(generate(1, robin)), strict=True)
    timed = [
        (day, one, other)
        for (day, one), (_, other) in both
        if one.rules == other.rules == ("times",)
    ]
    assert timed
    for day, one, other in timed:
        assert one.round.question == other.round.question
        assert score(one, one.reference, day.begins_with).passed
        assert score(other, one.reference, day.begins_with).broken == ("times",)


def test_items_can_be_sent_to_another_process() -> None:
    for day, item in pairs_of(days_of("tiny")):
        copy: Item = pickle.loads(pickle.dumps(item))
        assert score(copy, copy.reference, day.begins_with).passed


@each(
    ("plan", "why"),
    [
        (replace(TINY, begins={"times": 1, "manners": 1}), "no rule 'manners'"),
        (replace(TINY, drift=Drift(2, "times", "+10:00")), "no variant '\\+10:00'"),
        (replace(TINY, users=(User("Alex", variants={"times": "local"}),)), "no variant 'local'"),
        (replace(TINY, users=(User("Alex", "nl"),)), "nobody speaks nl"),
        (replace(TINY, begins={"times": 2}), "from day 1 on"),
        (replace(TINY, domains=("circus",)), "domains out of"),
    ],
)
def test_a_plan_that_cannot_be_kept_is_refused(plan: Plan, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        generate(1, plan)
