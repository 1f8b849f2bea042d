"""Rules can be learned from what is said after a miss, by this program; and their files stand
alone.
"""

import ast
import sys
from dataclasses import replace

from bench.tests.workdays.samples import LANGUAGES, days_of
from metaclaw_bench.questions import ChoiceCheck
from metaclaw_bench.scoring import comment
from metaclaw_bench.simulated.listener import laid_down
from metaclaw_bench.workdays import TINY, Item, built_in_rules, generate
from metaclaw_bench.workdays.corrections import wordings
from metaclaw_bench.workdays.demands import Rule
from tests.support.cases import each

_RULES = each("rule", built_in_rules(), ids=lambda rule: rule.id)


@_RULES
@each("language", LANGUAGES)
def test_what_a_user_says_of_a_rule_is_recognised_as_a_standing_instruction(
    rule: Rule, language: str
) -> None:
    for variant in rule.variants:
        said = rule.says(variant, language)
        assert laid_down(said) == [said]


def _said(item: Item) -> str:
    return comment(item.round, item.near_misses[-1].text, passed=False)


@each("language", LANGUAGES)
@each("name", ["one", "two"])
def test_a_miss_is_corrected_in_many_wordings_and_seldom_by_a_standing_instruction(
    name: str, language: str
) -> None:
    # Every fifth day and every third question: reading a comment takes a millisecond, and there are
    # thousands.
    items = [item for day in days_of(name, 1, language).days[::5] for item in day.items[::3]]
    standing, used = 0, set[int]()
    for item in items:
        said = _said(item)
        told = {
            (rule.id, number)
            for rule in built_in_rules()
            if rule.id in item.rules
            for variant in rule.variants
            for number, words in enumerate(wordings(rule, variant, language))
            if words in said
        }
        used |= {number for _, number in told}
        if not isinstance(item.round.check, ChoiceCheck):
            assert {rule for rule, _ in told} == set(item.rules), (
                "every rule that was missed is told"
            )
        standing += bool(laid_down(said))
    assert used == set(range(9)), "all wordings occur"
    assert standing < 0.5 * len(items), (
        "most corrections have to be understood by whoever writes skills"
    )


def test_with_plain_corrections_every_miss_gives_the_rule_as_a_standing_instruction() -> None:
    for item in generate(1, replace(TINY, is_plain=True)).items:
        heard = set(laid_down(_said(item)))
        assert heard
        assert heard <= {
            rule.says(variant, "en") for rule in built_in_rules() for variant in rule.variants
        }


def test_how_corrections_are_worded_changes_no_question() -> None:
    plain, varied = (generate(1, replace(TINY, is_plain=is_plain)) for is_plain in (True, False))
    assert [item.round.question for item in plain.items] == [
        item.round.question for item in varied.items
    ]


def test_praise_teaches_nothing() -> None:
    for language in LANGUAGES:
        said = {item.round.feedback.correct for item in days_of("tiny", 1, language).items}
        assert not any(laid_down(praise) for praise in said)


@_RULES
def test_a_rules_file_needs_nothing_but_the_standard_library(rule: Rule) -> None:
    tree = ast.parse(rule.source.read_text(encoding="utf-8"))
    imported = {node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)}
    imported |= {
        name.name for node in tree.body if isinstance(node, ast.Import) for name in node.names
    }
    assert {module.split(".")[0] for module in imported} <= sys.stdlib_module_names


@_RULES
def test_the_ways_a_rule_can_be_meant_exclude_each_other(rule: Rule) -> None:
    assert len(rule.variants) >= 2
    assert len({rule.says(variant, "en") for variant in rule.variants}) == len(rule.variants)
