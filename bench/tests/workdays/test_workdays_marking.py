"""Every generated question accepts its reference answer and refuses every near miss, an empty
answer and empty files.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.tests.workdays.samples import (
    LANGUAGES,
    choices,
    days_of,
    file_checks,
    held_out_of,
    pairs_of,
)
from metaclaw_bench.questions import ChoiceCheck
from metaclaw_bench.scoring import score_choice
from metaclaw_bench.workdays import Answer, Workdays, score
from tests.support.cases import each
from tests.support.depth import tries

_CASES = [(name, 1, language) for name in ("one", "two") for language in LANGUAGES] + [
    ("one", 2, "en"),
    ("two", 2, "en"),
]


def _both(name: str, seed: int, language: str) -> tuple[Workdays, Workdays]:
    return days_of(name, seed, language), held_out_of(name, seed, language)


@each(("name", "seed", "language"), _CASES)
def test_every_reference_is_accepted_and_every_near_miss_refused(
    name: str, seed: int, language: str
) -> None:
    for made in _both(name, seed, language):
        for day, item in pairs_of(made):
            right = score(item, item.reference, day.begins_with)
            assert (right.score, right.passed, right.partial, right.broken) == (
                1.0,
                True,
                1.0,
                (),
            ), item.round.question
            assert len(item.near_misses) >= 2
            for miss in item.near_misses:
                marks = score(item, miss, day.begins_with)
                assert not marks.passed, (item.round.question, miss)
                assert 0 <= marks.partial < 1


@pytest.mark.parametrize("name", ["one", "two"])
def test_a_near_miss_breaks_the_one_rule_it_is_made_for_or_the_task_itself(name: str) -> None:
    for day, item in file_checks(days_of(name)):
        broken = [score(item, miss, day.begins_with).broken for miss in item.near_misses]
        single = {rules[0] for rules in broken if len(rules) == 1}
        assert single >= set(item.rules), item.round.question
        # Where a file's name is free and its content is not what was asked for, there is no such
        # file: only then is more broken.
        assert sum(len(rules) > 1 for rules in broken) <= len(item.parts)


@each(("name", "seed", "language"), _CASES)
def test_doing_nothing_and_writing_nothing_passes_no_file_check(
    name: str, seed: int, language: str
) -> None:
    for made in _both(name, seed, language):
        for day, item in file_checks(made):
            for text in ("", "\n", "{}", "[]", "null\n"):
                hollow = Answer(files=dict.fromkeys(item.reference.files, text))
                assert not score(item, hollow, day.begins_with).passed
            assert not score(item, Answer("Done."), day.begins_with).passed
            assert not score(item, Answer("Done."), {}).passed


@pytest.mark.parametrize(("name", "language"), [("one", "en"), ("two", "de")])
def test_somebody_who_knows_the_rules_passes_the_whole_day_and_one_miss_costs_one_round(
    name: str, language: str
) -> None:
    for day in days_of(name, 1, language).days:
        clean, spoilt = dict(day.begins_with), dict(day.begins_with)
        missed = next(item for item in day.items if item.parts)
        for item in day.items:
            assert score(item, item.reference, clean).passed
            given = item.near_misses[0] if item is missed else item.reference
            assert score(item, given, spoilt).passed is (item is not missed)
            clean |= item.reference.files
            spoilt |= given.files


def test_a_log_that_is_only_added_to_is_as_good_as_one_that_is_written_anew() -> None:
    logged = [
        (day, item)
        for day, item in file_checks(days_of("two"))
        if "done.log" in item.reference.files
    ]
    assert logged
    for day, item in logged:
        log = (
            "[DONE] 2025-01-01 | T-1 | earlier\nnot a line of the log\n"
            + item.reference.files["done.log"]
        )
        assert score(
            item, Answer(files={**item.reference.files, "done.log": log}), day.begins_with
        ).passed


def test_a_path_may_be_written_with_a_dot_before_it() -> None:
    day, item = file_checks(days_of("tiny"))[0]
    dotted = Answer(files={f"./{path}": text for path, text in item.reference.files.items()})
    assert score(item, dotted, day.begins_with).passed


def test_writing_it_in_every_form_at_once_is_refused() -> None:
    for day, item in file_checks(days_of("tiny")):
        if item.rules == ("times",):
            forms = "\n".join(
                [
                    *item.reference.files.values(),
                    *(text for miss in item.near_misses for text in miss.files.values()),
                ]
            )
            assert not score(
                item, Answer(files=dict.fromkeys(item.reference.files, forms)), day.begins_with
            ).passed


@settings(max_examples=tries(20, nightly=200), deadline=None)
@given(st.text(alphabet="ABCDEFGHXabz,{}\\ \n", max_size=20), st.integers(0, 433))
def test_choices_are_scored_as_published(inside: str, at: int) -> None:
    day, item = choices(days_of("two"))[at]
    assert isinstance(item.round.check, ChoiceCheck)
    for text in (inside, rf"I think \bbox{{{inside}}}", rf"\boxed{{{inside}}} and \bbox{{A}}"):
        marks, published = (
            score(item, Answer(text), {}),
            score_choice(day.day.id, item.round.id, item.round.check, text),
        )
        assert (marks.score, marks.passed) == (published.score, published.passed)
        assert 0 <= marks.partial <= 1
        assert set(marks.broken) <= set(item.rules)


@settings(max_examples=tries(20, nightly=200), deadline=None)
@given(
    st.integers(0, 223),
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=4),
    st.text(max_size=10),
)
def test_whatever_is_written_gets_marks_that_agree_with_each_other(
    at: int, mixed: list[tuple[int, int]], noise: str
) -> None:
    day, item = file_checks(days_of("one"))[at]
    answers = [item.reference, *item.near_misses]
    paths = ["done.log", *(path for answer in answers for path in answer.files)]
    texts = [noise, *(text for answer in answers for text in answer.files.values())]
    marks = score(
        item,
        Answer(files={paths[one % len(paths)]: texts[other % len(texts)] for one, other in mixed}),
        day.begins_with,
    )
    assert 0 <= marks.partial <= 1
    assert marks.passed is (marks.score == 1.0) is (marks.partial == 1.0)
    assert not (marks.passed and marks.broken)
