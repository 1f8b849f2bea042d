"""Workdays: the scripted model writes each rule once and well, and the person's days share nothing
with the held-out ones.
"""

import json

import pytest

from benchmarks.house_rules.report import Records, interval, write_report
from benchmarks.workdays.course import COURSES, make_course
from benchmarks.workdays.driver import SYSTEM, Answered, is_corrected, shown
from benchmarks.workdays.scripted import ScriptedModel, in_words, skills_for, told
from metaclaw_bench.agent.direct import files_in
from metaclaw_bench.simulated.model import Message, Prompt, Purpose, Said
from metaclaw_bench.workdays import Answer, Item, score


def _files(items: tuple[Item, ...]) -> list[Item]:
    return [item for item in items if item.parts]


@pytest.mark.parametrize("name", COURSES)
def test_no_question_of_the_days_is_asked_on_the_held_out_ones(name: str) -> None:
    course = make_course(name, 0)
    days, exams = (
        {item.round.question for day in part for item in day.items}
        for part in (course.days, course.held_out)
    )
    assert days
    assert exams
    assert not days & exams
    assert make_course(name, 0) == course != make_course(name, 1)


def test_a_reference_in_words_earns_full_marks() -> None:
    course = make_course("two-rules", 0)
    for day in course.days[:2]:
        for item in _files(day.items):
            text, files = files_in(in_words(item.reference))
            assert score(item, Answer(text, files), day.begins_with).passed
            assert item.round.question in shown(day, item)
            assert item.round.question not in SYSTEM


def test_a_skill_says_the_rule_in_the_persons_words_and_shows_a_task_done_right() -> None:
    day = make_course("one-rule", 0).days[0]
    items = _files(day.items)
    written: set[str] = set()
    (skill,) = skills_for(items, written)
    assert isinstance(skill, dict)
    assert skill["name"] == "house-times"
    assert told(items[0])[0][1] in str(skill["body"])
    assert any(in_words(item.reference) in str(skill["body"]) for item in items)
    assert skills_for(items, written) == []


def test_the_evolver_reads_what_went_wrong_from_its_prompt_and_writes_once() -> None:
    day = make_course("one-rule", 0).days[0]
    item = _files(day.items)[0]
    model = ScriptedModel(day.items, {})
    words = f"The task:\n{item.round.question}\nThe person: {item.round.feedback.incorrect}"
    prompt = Prompt((Message("user", words),), purpose=Purpose.EVOLVE)
    first, again = model.answer(prompt), model.answer(prompt)
    assert isinstance(first, Said)
    assert isinstance(again, Said)
    assert len(json.loads(first.text)["skills"]) == 1
    assert json.loads(again.text) == {"skills": []}


def test_the_person_says_what_is_wrong_until_a_skill_for_the_rule_stands_in_the_prompt() -> None:
    day = make_course("one-rule", 0).days[0]
    item = _files(day.items)[0]
    wrong = score(item, Answer("I will not."), day.begins_with)
    right = score(item, item.reference, day.begins_with)
    assert is_corrected(Answered(item, "", "t_1", "0", "", wrong))
    assert is_corrected(Answered(item, "", "t_1", "0", "house-names", wrong))
    assert not is_corrected(Answered(item, "", "t_1", "0", "house-names,house-times", wrong))
    assert not is_corrected(Answered(item, "", "t_1", "0", "", right))


def _records(condition: str, seed: int, exact: float) -> Records:
    head = {"course": "two-rules", "condition": condition, "seed": seed}
    end = {
        "exact": exact,
        "versions": ["1"] if condition == "full" else ["0"],
        "total_s": 60.0,
        "by_rule": {"times": exact},
    }
    return Records(({"kind": "begin", **head}, {"kind": "end", **head, **end}))


def test_a_report_has_a_row_for_each_condition_with_its_interval() -> None:
    runs = [_records("baseline", seed, 0.1) for seed in range(3)] + [
        _records("full", seed, 0.8 + 0.05 * seed) for seed in range(3)
    ]
    text = write_report(
        [
            *runs,
            Records(({"kind": "begin", "course": "two-rules", "condition": "skills", "seed": 0},)),
        ]
    )
    assert (
        "| two-rules, baseline | 0, 1, 2 | 10.0 % (10.0–10.0) | 10.0, 10.0, 10.0 | 0 of 3 | 60 |"
        in text
    )
    assert (
        "| two-rules, full | 0, 1, 2 | 85.0 % (72.6–97.4) | 80.0, 85.0, 90.0 | 3 of 3 | 60 |"
        in text
    )
    assert "Not at their end, and in no table: two-rules, skills, seed 0." in text


def test_an_interval_needs_two_seeds() -> None:
    assert interval([0.5]).half is None
    assert str(interval([0.5])) == "50.0 %"
