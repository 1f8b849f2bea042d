"""The scripted evolver: it writes after two failures of a rule, shows them done right, and takes back what is said otherwise."""

from collections.abc import Iterator

import pytest

from benchmarks.workdays.asking import questions_of
from benchmarks.workdays.course import make_course
from benchmarks.workdays.evolver import ENOUGH, Evolver
from benchmarks.workdays.house import House, Session
from benchmarks.workdays.settings import PRESETS, Days
from benchmarks.workdays.turns import Asked, Question, in_words
from metaclaw.domain.candidate import Proposal
from metaclaw.domain.turn import Scope, Stamp
from metaclaw_bench.workdays.model import Workday


def _answered(question: Question, *, passed: bool = False) -> Asked:
    return Asked(question, (), Stamp(0, 0, "", ()), "", (), True, passed, float(passed))


def _files(day: Workday) -> list[Question]:
    return [question for question in questions_of(day, 99) if not question.is_choice]


def _all_failing(evolver: Evolver, days: Days, seed: int = 4) -> Iterator[tuple[int, Proposal]]:
    for day in make_course(seed, days).days:
        for question in questions_of(day, 99):
            for proposal in evolver.hear(_answered(question)):
                yield day.number, proposal


def test_a_rule_broken_once_is_no_kind_yet_and_broken_twice_it_is_written_down_with_a_task_done_right() -> None:
    first, second, *_ = _files(make_course(0, Days.TWO_RULES).days[0])
    evolver = Evolver()
    assert evolver.hear(_answered(first)) == ()
    (proposal,) = evolver.hear(_answered(second))
    assert set(proposal.support) == {first.turn, second.turn}
    shown = [one for one in (first, second) if f"{one.text} -> {in_words(one.item.reference)}" in proposal.skill.body]
    assert len(shown) == 1
    assert "Always write times like" in proposal.skill.body


def test_what_passed_and_choices_teach_it_nothing() -> None:
    day = make_course(0, Days.TWO_RULES).days[0]
    evolver = Evolver()
    assert all(evolver.hear(_answered(question, passed=True)) == () for question in _files(day))
    choices = [question for question in questions_of(day, 99) if question.is_choice]
    assert len(choices) >= ENOUGH
    assert all(evolver.hear(_answered(question)) == () for question in choices)


def test_every_rule_is_written_once_and_on_the_day_it_begins() -> None:
    written = [(day, str(proposal.skill.name)) for day, proposal in _all_failing(Evolver(), Days.TWO_RULES)]
    assert written == [(1, "house-times"), (4, "house-names")]


def test_a_rule_that_is_meant_otherwise_from_some_day_on_takes_the_place_of_what_was_written() -> None:
    changed = {str(proposal.skill.name): (day, proposal) for day, proposal in _all_failing(Evolver(), Days.PART_TWO)}
    day, anew = changed["house-times-anew"]
    assert (day, anew.replaces) == (9, ("house-times",))
    assert "+09:00" in anew.skill.body
    assert "+08:00" not in anew.skill.body


def test_what_it_wrote_stands_in_every_prompt_of_the_house_whatever_the_task_says() -> None:
    house, evolver = House(), Evolver()
    for _, proposal in _all_failing(evolver, Days.TWO_RULES):
        house.take([proposal])
    assert house.view.generation == 2
    placed = Session(house, Scope(user="Alex")).place("What a fine day.")
    assert {str(skill.name) for skill in placed} == {"house-times", "house-names"}


@pytest.mark.parametrize("days", Days)
def test_a_course_has_the_days_its_preset_asks_for_and_reference_answers_that_fit(days: Days) -> None:
    settings, course = PRESETS[days], make_course(3, days)
    assert settings.course is days
    assert len(course.days) >= settings.days
    assert len(course.held_out) >= settings.held_out_days
    for day in (*course.days, *course.held_out):
        for question in questions_of(day, 99):
            assert course.score(question.item, question.item.reference, question.before).passed


def test_nothing_in_a_held_out_task_says_that_it_is_an_exam() -> None:
    course = make_course(0, Days.TWO_RULES)
    text = " ".join(question.text for day in course.held_out for question in questions_of(day, 99))
    assert "held" not in text
    assert "day35/" in text
