"""Rules can be learned from what is said after a miss, by this program; and their files stand alone."""

import ast
import sys

import pytest

from bench.tests.workdays.samples import LANGUAGES, days_of
from metaclaw.skills.evolve.instructions import find_instructions
from metaclaw_bench.questions import ChoiceCheck
from metaclaw_bench.scoring import comment
from metaclaw_bench.workdays import Item, built_in_rules
from metaclaw_bench.workdays.demands import Rule

_RULES = pytest.mark.parametrize("rule", built_in_rules(), ids=lambda rule: rule.id)


@_RULES
@pytest.mark.parametrize("language", LANGUAGES)
def test_what_a_user_says_of_a_rule_is_recognised_as_a_standing_instruction(rule: Rule, language: str) -> None:
    for variant in rule.variants:
        said = rule.says(variant, language)
        assert [(found.words, found.language) for found in find_instructions(said)] == [(said, language)]


def _heard(item: Item) -> set[str]:
    wrong = next(miss for miss in reversed(item.near_misses))
    return {found.words for found in find_instructions(comment(item.round, wrong.text, passed=False))}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", ["one", "two"])
def test_the_comment_on_a_miss_gives_the_rules_and_nothing_else(name: str, language: str) -> None:
    # Every fifth day and every third question: reading a comment takes a millisecond, and there are thousands.
    for day in days_of(name, 1, language).days[::5]:
        for item in day.items[::3]:
            said = {rule.says(variant, language) for rule in built_in_rules() if rule.id in item.rules for variant in rule.variants}
            heard = _heard(item)
            assert heard <= said
            assert heard
            if not isinstance(item.round.check, ChoiceCheck):
                assert len(heard) == len(item.rules)


def test_praise_teaches_nothing() -> None:
    for language in LANGUAGES:
        said = {item.round.feedback.correct for item in days_of("tiny", 1, language).items}
        assert not any(find_instructions(praise) for praise in said)


@_RULES
def test_a_rules_file_needs_nothing_but_the_standard_library(rule: Rule) -> None:
    tree = ast.parse(rule.source.read_text(encoding="utf-8"))
    imported = {node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in tree.body if isinstance(node, ast.Import) for name in node.names}
    assert {module.split(".")[0] for module in imported} <= sys.stdlib_module_names


@_RULES
def test_the_ways_a_rule_can_be_meant_exclude_each_other(rule: Rule) -> None:
    assert len(rule.variants) >= 2
    assert len({rule.says(variant, "en") for variant in rule.variants}) == len(rule.variants)
