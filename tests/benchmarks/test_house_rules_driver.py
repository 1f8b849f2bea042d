"""House rules against the real program with a model in miniature: chats, training, the gate, and
held-out questions.
"""

import json
from pathlib import Path

import pytest

from benchmarks.house_rules.__main__ import courses_of, main, parse, settings_of
from benchmarks.house_rules.driver import Condition
from benchmarks.house_rules.pools import Split
from benchmarks.house_rules.rules import Group, rules_of
from tests.support.tiny import make_opinionated_model


def test_rules_are_taught_together_and_families_alone() -> None:
    (house,) = courses_of(parse([]))
    assert house.rules == tuple(rule.name for rule in rules_of(Group.HOUSE))
    assert house.knows_chats
    assert house.skills == {rule.skill: rule.skill_file for rule in rules_of(Group.HOUSE)}
    (two,) = courses_of(parse(["--rules", "dates", "names"]))
    assert two.rules == ("dates", "names")
    assert [task.rule for task in two.tasks(Split.TRAIN, 0, 2)] == [
        "dates",
        "names",
        "dates",
        "names",
    ]
    alone = courses_of(parse(["--families", "dev", "times"]))
    assert [course.rules for course in alone] == [(rule.name,) for rule in rules_of(Group.DEV)]
    assert [course.name for course in courses_of(parse(["--families", "held-back"]))] == [
        rule.name for rule in rules_of(Group.HELD_BACK)
    ]


def test_a_rule_of_ones_own_is_read_from_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "crates"
    folder.mkdir()
    (folder / "SKILL.md").write_text(
        "---\nname: house-crates\ndescription: When a crate needs a label.\n---\n\nWrite qv:.\n"
    )
    (folder / "chats.txt").write_text("Label 3 kg of nuts.\n\nLabel 4 kg of figs.\n")
    (folder / "questions.jsonl").write_text(
        '{"ask": "Label 5 kg of dates.", "answer": "qv:dates/5"}\n'
    )
    (course,) = courses_of(parse(["--own", str(folder)]))
    assert (course.name, course.rules, list(course.skills)) == (
        "crates",
        ("crates",),
        ["house-crates"],
    )
    assert not course.knows_chats
    chats = {task.question for task in course.tasks(Split.TRAIN, 0, 110)}
    assert chats == {"Label 3 kg of nuts.", "Label 4 kg of figs."}
    (question,) = course.tasks(Split.HELD_OUT, 0, 30)
    assert question.is_exact(" qv:dates/5\n")


def test_what_is_given_becomes_the_settings() -> None:
    settings = settings_of(
        parse(
            [
                "--chats",
                "7",
                "--set",
                "policy.steps=2",
                "--set",
                "policy.temperature=0.9",
                "--device",
                "cpu",
            ]
        )
    )
    assert (settings.chats, settings.sets, settings.device) == (
        7,
        ("policy.steps=2", "policy.temperature=0.9"),
        "cpu",
    )


@pytest.mark.slow
@pytest.mark.nightly
def test_a_run_goes_from_chats_to_held_out_answers(tmp_path: Path) -> None:
    model = make_opinionated_model(tmp_path / "miniature")
    sets = (
        "base_model=" + str(model),
        "batch_turns=4",
        "steps=2",
        "group_size=4",
        "prompts_per_step=2",
        "lora_rank=4",
        "rehearsal=0",
    )
    few = [
        "--chats",
        "8",
        "--questions",
        "3",
        "--max-tokens",
        "8",
        "--minutes",
        "3",
        "--device",
        "cpu",
        "--threads",
        "1",
    ]
    options = [word for one in sets for word in ("--set", f"policy.{one}")]
    places = ["--model", str(model), "--out", str(tmp_path / "out")]
    assert main(["--rules", "tags", "--conditions", Condition.FULL, *few, *options, *places]) == 0
    lines = [
        json.loads(line)
        for line in (tmp_path / "out" / "tags-full-0.jsonl").read_text().splitlines()
    ]
    kinds = [line["kind"] for line in lines]
    assert kinds[:3] == ["begin", "started", "chats"]
    assert kinds[-1] == "end"
    assert kinds.count("answer") == 3
    assert next(line for line in lines if line["kind"] == "chats")["with_skill"] == 8
    train = next(line for line in lines if line["kind"] == "train")
    assert train["said"]["turns"] > 0, train
