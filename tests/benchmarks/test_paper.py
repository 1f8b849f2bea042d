"""The paper's experiment: new rules and habits are graded as they say, exams share nothing with what
was taught, and tables are made of the records.
"""

import json
import re
from pathlib import Path

import pytest

from benchmarks.house_rules.pools import Split
from benchmarks.paper.__main__ import jobs_of, main, parse, planned
from benchmarks.paper.course import COURSES, make_course
from benchmarks.paper.curve import COUNTS, order_of
from benchmarks.paper.habits import HABITS, Habit, broken, questions
from benchmarks.paper.report import read_runs, write_report
from benchmarks.paper.rules import RULES, NewRule
from benchmarks.paper.scripted import ScriptedModel, in_words, skills_for, told
from benchmarks.paper.workdays import SYSTEM, Answered, Exchange, Writer, corrected, shown
from metaclaw.domain.chat import Text
from metaclaw.domain.check import Conversation, ProgramCheck
from metaclaw.skills import examine, parse_check
from metaclaw.skills.files import parse_skill
from metaclaw_bench.agent.direct import files_in
from metaclaw_bench.simulated.model import Message, Prompt, Purpose, Said
from metaclaw_bench.workdays import Answer, Item, score
from tests.benchmarks.grading import grade
from tests.support.cases import each
from tests.support.tiny import make_opinionated_model

EVERY_RULE = each("rule", RULES, ids=lambda rule: rule.name)


@EVERY_RULE
def test_a_new_rule_grades_parts_of_an_answer_and_knows_its_own_tasks(rule: NewRule) -> None:
    others = [one.tasks(Split.TRAIN, 0, 1)[0].question for one in RULES if one is not rule]
    for split in Split:
        for task in rule.tasks(split, 3, 20):
            assert grade(rule.program, task.question, task.answer) == 1.0, task
            assert rule.name == task.rule
    task, other = rule.tasks(Split.TRAIN, 5, 2)
    scores = [
        grade(rule.program, task.question, said)
        for said in ("Certainly, I can help.", task.answer[:-1], task.answer + " or so")
    ]
    assert all(one is not None and one < 0.5 for one in scores)
    assert (scores[0] or 0.0) < min(one or 0.0 for one in scores[1:])
    assert grade(rule.program, task.question, other.answer) != 1.0
    assert {grade(rule.program, question, "any") for question in others} == {None}


@EVERY_RULE
def test_a_new_rules_skill_shows_answers_and_no_question_that_is_asked(rule: NewRule) -> None:
    skill = parse_skill(rule.skill_file, rule.name)
    assert skill.name == rule.skill
    assert isinstance(parse_check(str(skill.check)), ProgramCheck)
    asked = {task.question for split in Split for task in rule.tasks(split, 0, 10_000)}
    assert len(re.findall(r"^.+ -> .+$", skill.body, re.MULTILINE)) == len(rule.shows)
    assert not any(line.partition(" -> ")[0] in asked for line in skill.body.splitlines())


def test_new_rules_share_neither_words_nor_form() -> None:
    assert len(RULES) >= 12
    assert len({re.sub(r"\w", "", re.sub(r"\{.*?\}", "", rule.form)) for rule in RULES}) == len(
        RULES
    )
    for rule in RULES:
        train, held_out = (
            {task.question for task in rule.tasks(split, 0, 10_000)} for split in Split
        )
        assert train
        assert held_out
        assert not train & held_out


def test_a_seed_draws_which_rules_are_taught_and_which_stay_new() -> None:
    taught, new = order_of(0)
    assert len(taught) == COUNTS[-1]
    assert sorted(rule.name for rule in (*taught, *new)) == sorted(rule.name for rule in RULES)
    assert order_of(0) == (taught, new)
    assert {rule.name for rule in order_of(1)[1]} != {rule.name for rule in new}


@each(
    ("habit", "kept", "near", "far"),
    [
        (HABITS[0], "It is quiet.", "word " * 18, "word " * 80),
        (HABITS[1], "It is quiet and 3.5 kg.", "Two:\nquiet", "1. quiet\n2. cheap\n3. light"),
        (HABITS[2], "It is quiet. (unsure)", "(sure) It is quiet.", "It is quiet."),
    ],
    ids=lambda row: row[0].name,
)
def test_a_habits_check_says_how_far_an_answer_keeps_it(
    habit: Habit, kept: str, near: str, far: str
) -> None:
    check = parse_check(habit.check)
    scores = [
        examine(check, [Text(said)], conversation=Conversation(task="Why?")).score
        for said in (kept, near, far)
    ]
    assert scores[0] == 1.0
    assert 0.5 > (scores[1] or 0.0) > (scores[2] or 0.0)
    assert habit.name not in broken(kept)
    assert habit.name in broken(far)


def test_habits_are_examined_on_other_things_than_those_of_the_chats() -> None:
    chats, exam = (set(questions(0, 200, is_exam=is_exam)) for is_exam in (False, True))
    assert len(chats) > 100
    assert len(exam) > 60
    assert not chats & exam


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
    assert make_course(name, 0) != make_course(name, 1)


def test_a_reference_in_words_earns_full_marks() -> None:
    for day in make_course("office", 0).days[:3]:
        for item in _files(day.items):
            text, files = files_in(in_words(item.reference))
            assert score(item, Answer(text, files), day.begins_with).passed
            assert not any(score(item, miss, day.begins_with).passed for miss in item.near_misses)
            assert item.round.question in shown(day, item)
            assert item.round.question not in SYSTEM


def test_a_skill_says_the_rule_in_the_persons_words_and_shows_a_task_done_right() -> None:
    items = _files(make_course("small", 0).days[0].items)
    written: set[str] = set()
    (skill,) = skills_for(items, written)
    assert isinstance(skill, dict)
    assert skill["name"] == "house-durations"
    assert told(items[0])[0][1] in str(skill["body"])
    assert any(in_words(item.reference) in str(skill["body"]) for item in items)
    assert skills_for(items, written) == []


def test_the_evolver_writes_a_rule_once_until_it_forgets() -> None:
    day = make_course("small", 0).days[0]
    item = _files(day.items)[0]
    model = ScriptedModel(day.items, {})
    words = f"The task:\n{item.round.question}\nThe person: {item.round.feedback.incorrect}"
    prompt = Prompt((Message("user", words),), purpose=Purpose.EVOLVE)

    def written() -> int:
        said = model.answer(prompt)
        assert isinstance(said, Said)
        return len(json.loads(said.text)["skills"])

    assert [written(), written()] == [1, 0]
    model.forget()
    assert written() == 1


def test_the_person_says_what_is_wrong_until_a_skill_says_it_and_not_for_ever() -> None:
    day = make_course("small", 0).days[0]
    item = _files(day.items)[0]
    wrong = score(item, Answer("I will not."), day.begins_with)
    right = score(item, item.reference, day.begins_with)

    def said(skills: str) -> Answered:
        return Answered(item, "", "t_1", "0", skills, wrong)

    assert corrected([said(""), said("house-names")])
    assert not corrected([said("house-names,house-durations"), said("its-own-skill")])
    assert not corrected([Answered(item, "", "t_1", "0", "", right)])
    assert len(corrected([said("")] * 10)) == 3


def test_a_plan_runs_several_calls_at_once(tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    plan.write_text(
        "--parts table --arms nobody scripted --seeds 0 1 --steps 4\n"
        "# a comment\n"
        "--parts curve habits --seeds 5 --name small\n"
    )
    model = tmp_path / "large"
    model.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        (model / name).touch()
    calls = planned(["--model", str(model), "--minutes", "3"], plan)
    runs = [
        (job.course, job.condition, job.seed, job.file)
        for call in calls
        for job, _ in jobs_of(call, Exchange())
    ]
    assert runs == [
        ("table large", Writer.NOBODY, 0, "table"),
        ("table large", Writer.NOBODY, 1, "table"),
        ("table large", Writer.SCRIPTED, 0, "table"),
        ("table large", Writer.SCRIPTED, 1, "table"),
        ("curve small", "curve", 5, "curve"),
        ("habits small", "habits", 5, "habits"),
    ]
    assert [call.steps for call in calls] == [4, parse([]).steps]
    assert {call.minutes for call in calls} == {3.0}


def _exam(condition: str, seed: int, weights: str, skills: str, marks: list[float]) -> list[str]:
    head = {"course": "table 1b", "condition": condition, "seed": seed, "at_s": 1.0}
    lines: list[dict[str, object]] = [{"kind": "begin"}]
    lines += [
        {
            "kind": "answer",
            "when": "exam",
            "weights": weights,
            "skills": skills,
            "day": 31 + number % 2,
            "question": f"r{number}",
            "is_file": number < 2,
            "score": mark,
            "is_passed": mark == 1.0,
            "is_placed": skills != "none",
        }
        for number, mark in enumerate(marks)
    ]
    lines += [{"kind": "exam", "weights": weights, "skills": skills}]
    return [json.dumps({**head, **line}) for line in lines]


def test_a_report_has_a_row_for_each_exam_and_their_differences_in_pairs(tmp_path: Path) -> None:
    lines: list[str] = []
    for seed in range(3):
        lines += _exam("nobody", seed, "untrained", "none", [1.0, 1.0, 1.0, 1.0])
        lines += _exam("nobody", seed, "untrained", "none", [0.0, 0.0, 0.5, 0.5])
        lines += _exam("scripted", seed, "untrained", "scripted", [1.0, 0.0, 0.5, 0.5])
    lines += _exam("itself", 0, "untrained", "itself", [1.0])[:-1]  # not whole
    (tmp_path / "table.jsonl").write_text("\n".join([*lines, '{"kind": "ans']))
    text = write_report(read_runs(tmp_path))
    assert "| baseline | 3 | 25.0 % (25.0 to 25.0) | 0.0 % (0.0 to 0.0) | 25, 25 |" in text
    assert "| skills only, scripted | 3 | 50.0 %" in text
    assert "| skills for untrained weights | 25.0 %" in text
    assert "the model itself" not in text
    assert "| table 1b, nobody, seed 0 | killed |" in text


def _answers(kind: str, **facts: object) -> str:
    head = {"course": f"{kind} 1b", "condition": kind, "seed": 0, "at_s": 1.0}
    return "\n".join(
        json.dumps({**head, **line})
        for line in ({"kind": "begin"}, {"kind": "answer", **facts}, {"kind": "end"})
    )


def test_a_report_tells_new_rules_from_taught_ones_and_counts_violations(tmp_path: Path) -> None:
    fact = {"rule": "hives", "is_placed": True, "is_exact": True}
    (tmp_path / "curve.jsonl").write_text(_answers("curve", count=0, group="new", **fact))
    said = {"weights": "untrained", "is_said": False, "broken": ["short"]}
    (tmp_path / "habits.jsonl").write_text(_answers("habits", **said))
    text = write_report(read_runs(tmp_path))
    assert "| 0 | 100.0 % | 1 | 100 | – | 100 % |" in text
    assert "| hives | 100 % of 1 | – |" in text
    assert "| rules not in the prompt, untrained | 1 | 100.0 % |" in text


@pytest.mark.slow
@pytest.mark.nightly
def test_the_experiment_goes_to_its_end_with_a_model_in_miniature(tmp_path: Path) -> None:
    model = make_opinionated_model(tmp_path / "miniature")
    sets = ("batch_turns=2", "group_size=4", "prompts_per_step=2", "lora_rank=4", "rehearsal=0")
    words = [word for one in sets for word in ("--set", f"policy.{one}")]
    words += ["--device", "cpu", "--threads", "1", "--course", "small", "--max-tokens", "8"]
    words += ["--days", "2", "--days-after", "1", "--chats", "6", "--questions", "2"]
    words += ["--steps", "2", "--counts", "1", "--minutes", "10", "--exam-seconds", "5"]
    places = ["--model", str(model), "--out", str(tmp_path / "out")]
    assert main([*words, *places, "--parallel", "3"]) == 0
    runs = read_runs(tmp_path / "out")
    assert [(run.course, run.condition) for run in runs] == [
        ("curve miniature", "curve"),
        ("habits miniature", "habits"),
        ("table miniature", "itself"),
        ("table miniature", "nobody"),
        ("table miniature", "scripted"),
    ]
    for run in runs:
        assert run.of("end")
        assert not run.of("stopped")
        # Exams teach nothing: a night takes from the chats alone.
        assert all(line["said"]["turns"] <= 16 for line in run.of("train"))
    cells = {
        (line["weights"], line["skills"]) for line in runs[3].of("answer") if line["when"] == "exam"
    }
    assert {("untrained", "none"), ("trained", "none"), ("trained", "scripted")} <= cells
    assert ("trained", "scripted, of trained") in cells
    placed = [line["placed"] for line in runs[3].of("answer") if line.get("skills") == "scripted"]
    assert any(placed)
