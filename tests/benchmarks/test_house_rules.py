"""House rules: held-out questions share no entity with the training, and each check program grades
what its rule says.
"""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.house_rules import pools
from benchmarks.house_rules.courses import read_course
from benchmarks.house_rules.pools import Pool, Split
from benchmarks.house_rules.rules import RULES, Group, Rule, rules_of
from benchmarks.house_rules.tasks import Task, make_tasks
from metaclaw.domain.chat import Text
from metaclaw.domain.check import Conversation, ProgramCheck
from metaclaw.skills import check_of, examine, parse_check
from metaclaw.skills.files import parse_skill
from tests.benchmarks.grading import grade
from tests.support.cases import each

BLIND = Path(pools.__file__).parent / "blind"
EVERY_RULE = pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))


@EVERY_RULE
def test_a_check_gives_one_to_the_right_answer_of_every_question(rule: Rule) -> None:
    for split in Split:
        for task in make_tasks([rule], split, 3, 60):
            assert grade(rule.program, task.question, task.answer) == 1.0, task


@each("folder", sorted(BLIND.iterdir()), ids=lambda folder: folder.name)
def test_a_blind_check_gives_one_to_right_answers_and_less_than_half_to_others(
    folder: Path,
) -> None:
    course = read_course(folder)
    (skill,) = course.skills.values()
    check = check_of(parse_skill(skill, "SKILL.md"))
    assert check is not None
    one, other, *_ = course.tasks(Split.HELD_OUT, 0, 30)
    for said, is_right in (
        (one.answer, True),
        (other.answer, False),
        (one.answer + " or so", False),
    ):
        found = examine(check, [Text(said)], conversation=Conversation(task=one.question))
        assert found.score is not None
        assert found.score == 1.0 if is_right else found.score < 0.5
    assert len(course.tasks(Split.TRAIN, 0, 110)) == 110
    assert len(course.tasks(Split.HELD_OUT, 0, 30)) == 30


@EVERY_RULE
def test_a_check_gives_less_than_half_to_every_other_answer(rule: Rule) -> None:
    one, other = make_tasks([rule], Split.TRAIN, 5, 2)
    wrong = [
        other.answer,
        one.answer + " " + one.answer,
        one.answer + other.answer[-3:],
        one.answer[1:],
        one.question,
        "",
        " ",
        "Sure!",
    ]
    wrong += [
        f"The answer is {one.answer}",
        one.answer.swapcase() + "?",
        f"{one.answer}\n{other.answer}",
    ]
    for said in wrong:
        score = grade(rule.program, one.question, said)
        assert score is not None, said
        assert 0.0 <= score < 0.5, said


@EVERY_RULE
def test_an_answer_earns_more_the_more_of_it_is_right(rule: Rule) -> None:
    task = make_tasks([rule], Split.TRAIN, 7, 1)[0]
    scores = [
        grade(rule.program, task.question, said)
        for said in ("Certainly, I can help.", task.answer[: len(task.answer) // 2], task.answer)
    ]
    assert scores == sorted(score for score in scores if score is not None)
    assert scores[0] != scores[1]
    beside = grade(
        rule.program, task.question, f"{task.answer} and a great deal more that was not asked for"
    )
    assert beside is not None
    assert beside < (grade(rule.program, task.question, task.answer + ".") or 0.0)


@EVERY_RULE
def test_what_repeats_the_right_answer_earns_less_than_saying_it_with_one_fault(rule: Rule) -> None:
    task = make_tasks([rule], Split.TRAIN, 9, 1)[0]
    repeated, faulty = (
        grade(rule.program, task.question, task.answer * 4),
        grade(rule.program, task.question, task.answer + "."),
    )
    assert repeated is not None
    assert faulty is not None
    assert repeated < faulty


def test_a_check_has_nothing_to_say_of_other_rules_tasks() -> None:
    house = rules_of(Group.HOUSE)
    for task in make_tasks(house, Split.TRAIN, 1, 100):
        speaking = [
            rule.name
            for rule in house
            if grade(rule.program, task.question, task.answer) is not None
        ]
        assert speaking == [task.rule]


@EVERY_RULE
@settings(max_examples=25, deadline=None)
@given(said=st.text(max_size=120))
def test_a_check_breaks_on_no_answer(rule: Rule, said: str) -> None:
    task = make_tasks([rule], Split.TRAIN, 1, 1)[0]
    score = grade(rule.program, task.question, said)
    assert score is not None
    assert (score == 1.0) is task.is_exact(said)


@EVERY_RULE
def test_a_skill_file_reads_as_a_skill_whose_check_is_the_program(rule: Rule) -> None:
    skill = parse_skill(rule.skill_file, rule.name)
    check = parse_check(str(skill.check))
    assert isinstance(check, ProgramCheck)
    assert check.source.strip() == rule.program.strip()
    assert skill.name == rule.skill
    assert all(f"{asked} -> {answer}" in skill.body for asked, answer in rule.shows)


@EVERY_RULE
def test_examples_of_a_skill_stand_in_no_question(rule: Rule) -> None:
    questions = {task.question for split in Split for task in make_tasks([rule], split, 0, 300)}
    assert not questions & {asked for asked, _ in rule.shows}


def test_no_entity_is_on_both_sides_of_the_cut() -> None:
    found = [pool for pool in vars(pools).values() if isinstance(pool, Pool)]
    assert len(found) >= 10
    for pool in found:
        assert pool.train
        assert pool.held_out
        assert not set(pool.train) & set(pool.held_out)


@pytest.mark.parametrize("seed", range(3))
def test_no_question_is_asked_twice_or_on_both_sides(seed: int) -> None:
    tasks: list[Task] = []
    for rule in RULES.values():
        tasks += [task for split in Split for task in make_tasks([rule], split, seed, 120)]
    assert len({task.question for task in tasks}) == len(tasks)


def test_rules_take_turns_and_a_seed_gives_the_same_questions() -> None:
    house = rules_of(Group.HOUSE)
    tasks = make_tasks(house, Split.TRAIN, 2, 10)
    assert [task.rule for task in tasks] == [rule.name for rule in house] * 2
    assert make_tasks(house, Split.TRAIN, 2, 10) == tasks
    assert make_tasks(house, Split.TRAIN, 3, 10) != tasks


def test_families_are_split_in_halves() -> None:
    assert len(rules_of(Group.DEV)) == len(rules_of(Group.HELD_BACK)) >= 4
