"""The benchmark of what people say: its data is complete, its model knows it, and a small run of it
measures something.
"""

import json
from itertools import chain
from pathlib import Path

import pytest

from benchmarks.reach.__main__ import main
from benchmarks.reach.data import DEV, HELD_OUT, load
from benchmarks.reach.distractors import rules, skills
from benchmarks.reach.figures import Figure, share, table
from benchmarks.reach.lessons import LESSONS, agent_prompt
from benchmarks.reach.model import ScriptedModel, section
from benchmarks.reach.text import carries, overlap

LEAST = {
    "rules": 20,
    "facts": 12,
    "skills": 40,
    "unrelated": 80,
    "corrections": 40,
    "harmless": 40,
    "retractions": 24,
    "no_rules": 60,
    "injections": 40,
    "quoted": 40,
    "projects": 12,
}
HELD = load(HELD_OUT)
MODEL = ScriptedModel(HELD, LESSONS)


def _prompt(message: str, rules: str = "(none)") -> str:
    return (
        f"== Rules in force\n{rules}\n\n== What it answers\nAll right.\n\n== The"
        f" message\n{message}\n"
    )


def _texts(message: str) -> list[str]:
    return [item["text"] for item in MODEL.listen(_prompt(message))["items"]]


def test_the_held_out_set_is_as_large_as_its_figures_need() -> None:
    assert {name: len(records) for name, records in HELD.items()} == LEAST
    assert all(len(rule["should"]) == 8 for rule in HELD["rules"])
    assert all(len(fact["asks"]) == 4 for fact in HELD["facts"])
    sizes = {
        (len(skill["examples"]), len(skill["natural"]), len(skill["paraphrases"]))
        for skill in HELD["skills"]
    }
    assert sizes == {(6, 4, 2)}
    assert sum(record["wanted"] is None for record in HELD["corrections"]) == 10
    assert sum(change["after"] == "unchanged" for change in HELD["retractions"]) == 5
    languages = {
        record["language"]
        for name in ("rules", "facts", "corrections", "quoted")
        for record in HELD[name]
    }
    assert languages == {"de", "en", "es", "fr", "ja", "pt", "ru", "zh"}


def test_nothing_held_out_is_in_the_set_for_development() -> None:
    dev = load(DEV)
    assert not set(_sentences(dev)) & set(_sentences(HELD))


def _sentences(data: object) -> list[str]:
    if isinstance(data, str):
        return [data] if " " in data else []
    values = data if isinstance(data, list) else ()
    if isinstance(data, dict):
        values = list(data.values())
    return list(chain.from_iterable(map(_sentences, values)))


def test_the_model_understands_every_rule_fact_and_correction() -> None:
    assert [_texts(rule["rule"]) for rule in HELD["rules"]] == [
        [rule["rule"]] for rule in HELD["rules"]
    ]
    assert [_texts(fact["said"]) for fact in HELD["facts"]] == [
        [fact["said"]] for fact in HELD["facts"]
    ]
    for record in HELD["corrections"]:
        assert _texts(record["said"]) == ([record["wanted"]] if record["wanted"] else [])
        assert MODEL.listen(_prompt(record["said"]))["correction"] == record["said"]


def test_the_model_understands_a_rule_beside_pasted_material_and_alone() -> None:
    for record in HELD["quoted"]:
        assert record["rule"] in _texts(record["message"])
        assert _texts(record["rule"]) == [record["rule"]]


def test_the_model_takes_nothing_from_words_that_are_no_rules() -> None:
    said = [*HELD["no_rules"], *HELD["unrelated"], *(record["said"] for record in HELD["harmless"])]
    assert [words for words in said if _texts(words)] == []


def test_the_model_repeats_every_injected_order_that_it_is_shown() -> None:
    for record in HELD["injections"]:
        assert record["payload"] in record["message"]
        assert record["payload"] in _texts(record["message"])


def test_the_model_names_the_rule_that_is_taken_back_or_replaced() -> None:
    for change in HELD["retractions"]:
        items = MODEL.listen(
            _prompt(change["then"], f"other: something else\nmine: {change['first']}")
        )["items"]
        expected = {
            "gone": [("retract", ["mine"])],
            "replaced": [("replace", ["mine"])],
            "unchanged": [],
        }
        assert [(item["op"], item["targets"]) for item in items] == expected[change["after"]], (
            change
        )


def test_the_agent_does_a_lesson_right_once_its_skill_is_in_the_prompt() -> None:
    for lesson in LESSONS:
        asked = {"role": "user", "content": lesson.task}
        told = {"role": "system", "content": str(lesson.skill["body"])}
        assert MODEL.answer("", [asked]) == lesson.wrong
        assert MODEL.answer("replay", [told, asked]) == lesson.right
        votes = [
            MODEL.answer("judge", [{"content": f"== The answer\n{text}"}])
            for text in (lesson.wrong, lesson.right)
        ]
        assert [json.loads(vote)["outcome"] for vote in votes] == ["fail", "pass"]
        evolved = json.loads(
            MODEL.answer("evolve", [{"content": f"the person said: {lesson.correction}"}])
        )
        assert [skill["name"] for skill in evolved["skills"]] == [lesson.name]


def test_distractors_are_distinct() -> None:
    assert len({rule["name"] for rule in rules(280, "user:ann")}) == 280
    assert len({rule["text"] for rule in rules(280, "user:ann")}) == 280
    assert len({skill["name"] for skill in skills(460)}) == 460


@pytest.mark.parametrize("tokens", [500, 12_000])
def test_an_agent_prompt_has_about_the_size_asked_for(tokens: int) -> None:
    assert len(agent_prompt(tokens)) / 4 == pytest.approx(tokens, rel=0.05)
    assert agent_prompt(tokens, 1) == agent_prompt(tokens, 1)


def test_words_are_compared_in_languages_with_and_without_spaces() -> None:
    assert carries("## Rules\n- 界面文案里统一用“你”，别用“您”\n", "界面文案里统一用“你”，别用“您”")
    assert not carries("## Rules\n- 变量名用驼峰", "变量名一律用下划线")
    assert carries("Preise in FRANKEN angeben!", "preise in franken angeben")
    assert overlap("something else", "preise in franken angeben") == 0


def test_a_section_of_a_prompt_ends_where_the_next_begins() -> None:
    assert section(_prompt("use bun", "a: b"), "Rules in force") == "a: b"
    assert section(_prompt("use bun"), "The message") == "use bun"
    assert section("nothing of the kind", "The message") == ""


def test_a_figure_says_whether_its_goal_is_met() -> None:
    assert share("reached", [True] * 19 + [False], least=0.95).is_met
    assert share("injected", [True] + [False] * 39, most=0.0).is_met is False
    assert share("nothing tried", [], least=0.9).is_met is None
    assert Figure("p50", value=None, most=2.0).is_met is False
    assert "19 of 20: 95% (76%–99%) | ≥ 95 % | met |" in table(
        [share("reached", [True] * 19 + [False], least=0.95)]
    )


@pytest.mark.slow
def test_a_small_run_measures_rules_and_projects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "reach.json"
    only = ["--only", "rules,projects", "--most", "3", "--data", str(DEV), "--json", str(report)]
    assert main(only) == 0
    found = json.loads(report.read_text())
    counted = {
        figure["label"]: figure.get("of")
        for part in found["parts"].values()
        for figure in part["figures"]
    }
    assert counted["rules reached, 3 in force"] == 12
    assert counted["project rules reached in their project"] == 2
    assert (
        found["spent"]["rules"]["traffic"]["calls"] == 18
    )  # two turns that lay down each rule, and twelve requests
    assert "| rules reached, 3 in force |" in capsys.readouterr().out
