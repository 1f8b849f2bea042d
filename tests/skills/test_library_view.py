"""Which rules are selected if not all of them fit their budget."""

from datetime import date

import pytest

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Rule, Skill
from metaclaw.skills import Budgets, LibraryView, Selection, rule_line
from metaclaw.skills.block import estimate_tokens


def selected(count: int, query: str, rules_tokens: int = 800) -> Selection:
    rules = [
        Rule(
            SkillName(f"rule-{number:03}"),
            f"When instrument {number} is tuned",
            f"Write down the pitch of string {number} in the green book before you go on.",
        )
        for number in range(count)
    ]
    view = LibraryView.of(
        1,
        [
            *rules,
            Rule(
                SkillName("bow"),
                "When rehairing a violin bow",
                "Use horse hair.",
            ),
        ],
    )
    return view.select(query, Budgets(rules_tokens=rules_tokens), today=date(2026, 11, 16))


@pytest.mark.parametrize("query", ["rehair the violin bow", "what is the capital of Peru"])
def test_rules_somewhat_over_their_budget_fill_it_with_the_best_ranked_first(query: str) -> None:
    found = selected(40, query)
    taken = sum(estimate_tokens(rule_line(rule)) for rule in found.rules)
    assert 0.9 * 800 <= taken <= 800
    assert len(found.rules) < 41
    assert ("bow" in {rule.name for rule in found.rules}) >= ("bow" in query)


def test_of_rules_far_over_their_budget_none_are_placed_where_none_matches() -> None:
    assert "bow" in {rule.name for rule in selected(300, "rehair the violin bow").rules}
    assert not selected(300, "what is the capital of Peru").rules


def test_a_held_rule_is_placed_however_many_rules_there_are() -> None:
    rules = [
        Rule(
            SkillName(f"r-{n}"),
            f"When tuning instrument {n}",
            "Write the pitch down.",
        )
        for n in range(300)
    ]
    held = Rule(
        SkillName("no-sudo"),
        "When in a shell",
        "Never use sudo.",
        enforce="hold",
    )
    found = LibraryView.of(1, [*rules, held]).select(
        "what is the capital of Peru", Budgets(rules_tokens=800), today=date(2026, 11, 16)
    )
    assert [rule.name for rule in found.rules] == ["no-sudo"]


def test_a_rule_of_a_project_holds_in_its_directories_too() -> None:
    rule = Rule(
        SkillName("bazel"),
        "always",
        "Build with bazel.",
        workspace="/home/ann/shop",
    )
    assert rule.is_for_workspace("/home/ann/shop")
    assert rule.is_for_workspace("/home/ann/shop/web")
    assert not rule.is_for_workspace("/home/ann/shop-2")
    assert not rule.is_for_workspace(None)


def test_the_embedded_model_is_given_rules_whose_condition_nobody_knows() -> None:
    words = "From now on, always answer in one sentence."
    view = LibraryView.of(
        1,
        [
            Rule(
                SkillName("one-sentence"),
                words,
                words,
            )
        ],
    )
    found = view.select(
        "what is the capital of Peru", Budgets(is_brief=True), today=date(2026, 11, 16)
    )
    assert [rule.name for rule in found.rules] == ["one-sentence"]


def test_requests_that_differ_only_in_a_number_share_one_selection() -> None:
    view = LibraryView.of(
        1, [Skill(SkillName("bow"), "When rehairing a violin bow", "Use horse hair.")]
    )

    def select(query: str) -> Selection:
        return view.select(query, Budgets(), today=date(2026, 11, 16))

    first = select("ticket 12345678: rehair the violin bow")
    assert [skill.name for skill in first.full] == ["bow"]
    assert select("ticket 87654321: rehair the violin bow") is first
    assert select("ticket 12345678: tune the piano") is not first
    assert not select("ticket 12345678: tune the piano").full
