"""The golden set: every reference passes its own check, nothing passes by being empty, and checks
tell right from nearly right.
"""

import json
import math
import os
import random
import subprocess
import sys
from collections import Counter

import pytest

from metaclaw.domain.chat import Text, Tool
from metaclaw.errors import TrainingError
from metaclaw.training.golden import (
    GoldenItem,
    GoldenScore,
    GoldenStanding,
    compare_golden,
    golden_items,
    golden_version,
    likelihood_points,
    read_items,
    reference_pairs,
)
from tests.support.cases import each

ITEMS = golden_items()


def item(name: str) -> GoldenItem:
    return next(item for item in ITEMS if item.name == name)


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_the_set_has_enough_of_every_kind_and_no_name_twice() -> None:
    counts = Counter(item.category for item in ITEMS)
    assert set(counts) == {"format", "tools", "refusals", "knowledge", "arithmetic", "languages"}
    assert min(counts.values()) >= 10
    assert len({item.name for item in ITEMS}) == len(ITEMS) >= 60


def test_every_reference_passes_its_own_check_and_empty_or_foreign_answers_pass_none() -> None:
    assert [item.name for item in ITEMS if not item.passes(item.reference)] == []
    for said in ("", "the the the the"):
        assert [item.name for item in ITEMS if item.passes(said)] == []
    assert sum(item.passes("14:17+05:30+05:30+05:30+05:30") for item in ITEMS) <= 1


def test_one_word_passes_few_items_and_all_options_at_once_pass_none_of_the_choices() -> None:
    assert sum(item.passes("Yes.") for item in ITEMS) < 80
    choices = [item for item in ITEMS if item.name.startswith(("greater-", "is-"))]
    assert len(choices) == 120
    assert not any(item.passes("Yes or no.") for item in choices)


def test_every_item_is_a_greedy_request_of_bounded_length() -> None:
    for item in ITEMS:
        assert item.request.sampling.temperature == 0.0
        assert item.max_tokens <= 96
        assert isinstance(item.request.messages[-1].parts[0], Text)
        if item.wanted.call is not None:
            assert item.wanted.call.name in {
                tool.name for tool in item.request.tools if isinstance(tool, Tool)
            }


def test_most_items_are_generated_and_short_and_no_question_comes_twice() -> None:
    assert len(ITEMS) >= 1_000
    assert sum(item.max_tokens <= 12 for item in ITEMS) >= 900
    assert len({str(item.request.messages) for item in ITEMS}) == len(ITEMS)


def test_the_set_is_the_same_in_every_process_and_its_version_changes_with_a_question() -> None:
    program = "from metaclaw.training.golden import *; print(golden_version(golden_items()))"
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            timeout=60,
            capture_output=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert found == {f"{golden_version(ITEMS)}\n".encode()}
    assert golden_version(ITEMS) != golden_version(ITEMS[1:])


@each(
    ("name", "text", "is_right"),
    [
        ("next-14-2", "22", True),
        ("next-14-2", "14, 16, 18, 20", False),
        ("copy-river", "River.", True),
        ("copy-river", "The word river is repeated.", False),
        ("upper-river", "river", False),
        ("capital-of-Sweden", "The capital of Sweden is Stockholm.", True),
        ("opposite-big-small", "small small small", False),
        ("json-count-3", '{"count": 3}', True),
        ("json-count-3", '{"count": 3, "more": 1}', False),
    ],
)
def test_generated_items_tell_right_from_nearly_right(name: str, text: str, is_right: bool) -> None:
    assert item(name).passes(text) is is_right


@each(
    ("name", "text", "is_right"),
    [
        ("one-word-yes", " no.\n", True),
        ("one-word-yes", "Yes, it is.", False),
        ("upper-case", "hello", False),
        ("upper-case", "HELLO!", True),
        ("json-person", '{"name": "ada", "age": 36.0}', True),
        ("json-person", '```json\n{"name": "Ada", "age": 36}\n```', False),
        ("json-person", '{"name": "Ada", "age": "36"}', False),
        ("json-person", '{"name": "Ada", "age": 36, "city": "London"}', False),
        ("json-list", '["red", "blue", "green"]', False),
        ("json-list", '["red", "green"]', False),
        ("json-keys", '{"title": "x", "author": "y"}', False),
        ("json-keys", '["title", "author", "year"]', False),
        ("three-bullets", "- a\n- b\n- c\n- d", False),
        ("refuse-bomb", "Sure! First take a pipe.", False),
        ("refuse-bomb", "I cannot help with that.", True),
        ("help-cut-onions", "I'm sorry, I can't help with knives and onions.", False),
        ("iso-date", "05.03.2024", False),
        ("six-times-seven", "6 times 7 is 420", False),
    ],
)
def test_words_are_told_right_from_nearly_right(name: str, text: str, is_right: bool) -> None:
    assert item(name).passes(text) is is_right


@each(
    ("name", "answer", "is_right"),
    [
        ("weather-paris", call("get_weather", city="Paris"), True),
        ("weather-paris", call("get_weather", city="paris", unit="celsius"), True),
        ("weather-paris", call("get_weather", city="Paris", when="now"), False),
        ("weather-paris", call("get_weather", town="Paris"), False),
        ("weather-paris", call("search", city="Paris"), False),
        (
            "weather-paris",
            '<tool_call>{"name": "get_weather", "arguments": {"city": </tool_call>',
            False,
        ),
        (
            "weather-paris",
            call("get_weather", city="Paris") * 2,
            False,
        ),
        ("weather-paris", 'get_weather(city="Paris")', False),
        ("convert-money", call("convert", **{"amount": 100.0, "from": "usd", "to": "eur"}), True),
        ("convert-money", call("convert", **{"amount": True, "from": "USD", "to": "EUR"}), False),
        (
            "no-tool-for-sum",
            "4" + call("get_weather", city="x"),
            False,
        ),
        ("no-tool-for-sum", "It is four.", True),
    ],
)
def test_calls_are_told_right_from_nearly_right(name: str, answer: str, is_right: bool) -> None:
    assert item(name).passes(answer) is is_right


def test_references_are_given_as_pairs_of_tokens() -> None:
    pairs = reference_pairs(
        ITEMS[:2], lambda request: [len(request.messages)], lambda text: list(text.encode())
    )
    assert pairs == [((1,), tuple(item.reference.encode())) for item in ITEMS[:2]]


def test_a_score_of_nothing_or_of_no_probability_is_refused() -> None:
    with pytest.raises(ValueError, match="has no items"):
        GoldenScore({})
    with pytest.raises(ValueError, match="at or below zero"):
        GoldenScore({"a": True}, {"a": 0.1})


def test_a_set_with_a_call_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"got `str` - at `\$\[0\].call`"):
        read_items(
            '[tools]\n[[items]]\nname = "a"\ncategory = "tools"\nask = "x"\ncall = "get_weather"'
        )


COMPARED_ITEMS = 1000


def score(passed: int, likelihood: float | None = None, items: int = COMPARED_ITEMS) -> GoldenScore:
    names = [f"i{at}" for at in range(items)]
    kept = None if likelihood is None else dict.fromkeys(names, likelihood)
    return GoldenScore({name: at < passed for at, name in enumerate(names)}, kept)


def swapped(score: GoldenScore, *names: str) -> GoldenScore:
    return GoldenScore(
        {name: was != (name in names) for name, was in score.passed.items()}, score.likelihood
    )


@each(
    ("after", "standing"),
    [
        (600, GoldenStanding.HOLDS),
        (700, GoldenStanding.HOLDS),
        (592, GoldenStanding.HOLDS),
        (580, GoldenStanding.LOST),
        (560, GoldenStanding.LOST),
        (0, GoldenStanding.LOST),
    ],
)
def test_a_loss_of_two_points_is_seen(after: int, standing: GoldenStanding) -> None:
    comparison = compare_golden(score(600), score(after))
    assert comparison.standing is standing
    assert comparison.points == pytest.approx(100 * (after - 600) / COMPARED_ITEMS)


def test_what_is_fixed_makes_up_for_what_is_broken() -> None:
    before = score(400)
    comparison = compare_golden(before, swapped(before, "i1", "i500"))
    assert comparison.points == 0.0
    assert (
        comparison.words
        == "general abilities kept (+0.0 points, at worst -0.3, on 1,000 questions)"
    )


def test_many_broken_are_named_only_to_a_point() -> None:
    assert "i4 …" in compare_golden(score(600), score(0)).words


def test_the_first_waves_decide_only_what_is_clear() -> None:
    assert (
        compare_golden(score(60, items=100), score(60, items=100), of=COMPARED_ITEMS).standing
        is GoldenStanding.OPEN
    )
    assert (
        compare_golden(score(200, items=300), score(200, items=300), of=COMPARED_ITEMS).standing
        is GoldenStanding.HOLDS
    )
    assert (
        compare_golden(score(200, items=300), score(100, items=300), of=COMPARED_ITEMS).standing
        is GoldenStanding.LOST
    )
    before = score(200, items=300)
    flipped = swapped(before, *(f"i{at}" for at in range(190, 210)))
    assert compare_golden(before, flipped, of=COMPARED_ITEMS).standing is GoldenStanding.OPEN


def test_the_interval_covers_a_loss_of_two_points_and_equal_versions_mostly_hold() -> None:
    """A twentieth of the items is borderline. With a true loss of two points, at most a twentieth
    of the candidates pass, even with four looks; of equal ones nearly all do."""
    rng = random.Random(5)

    def holds(lost: float) -> bool:
        rates = [0.5 if at % 20 == 0 else 1.0 for at in range(COMPARED_ITEMS)]
        before = {f"i{at}": rng.random() < rate for at, rate in enumerate(rates)}
        after = {f"i{at}": rng.random() < rate * (1 - lost) for at, rate in enumerate(rates)}
        for tried in (300, 600, 900, COMPARED_ITEMS):
            some = [f"i{at}" for at in range(tried)]
            old, new = (GoldenScore({name: one[name] for name in some}) for one in (before, after))
            standing = compare_golden(old, new, of=COMPARED_ITEMS).standing
            if standing is not GoldenStanding.OPEN:
                return standing is GoldenStanding.HOLDS
        raise AssertionError("never decided")

    runs = 200
    assert sum(holds(0.0) for _ in range(runs)) / runs >= 0.95
    # 2 of 97.5 points
    assert sum(holds(0.0205) for _ in range(runs)) / runs <= 0.05 + 3 * math.sqrt(
        0.05 * 0.95 / runs
    )
    assert sum(holds(0.04) for _ in range(runs)) / runs <= 0.01


def test_where_passes_leave_it_open_the_likelihood_of_the_references_decides() -> None:
    flips = [f"i{at}" for at in range(500, 700)]
    before = score(600)
    after = swapped(before, *flips)
    assert compare_golden(before, after).standing is GoldenStanding.UNSURE
    assert compare_golden(before, after).is_worse

    def with_likelihood(likelihood: float) -> GoldenStanding:
        names = dict.fromkeys(before.passed, likelihood)
        old = GoldenScore(before.passed, dict.fromkeys(before.passed, math.log(0.5)))
        return compare_golden(old, GoldenScore(after.passed, names)).standing

    assert with_likelihood(math.log(0.495)) is GoldenStanding.HOLDS
    assert with_likelihood(math.log(0.45)) is GoldenStanding.LOST


def test_a_loss_that_is_shown_is_not_made_up_for_by_likelihoods() -> None:
    assert (
        compare_golden(score(600, math.log(0.5)), score(570, math.log(0.6))).standing
        is GoldenStanding.LOST
    )


def test_a_weak_model_is_held_to_the_likelihood_of_the_references() -> None:
    weak, worse = score(20, likelihood=math.log(0.40)), score(20, likelihood=math.log(0.30))
    comparison = compare_golden(weak, worse)
    assert comparison.likelihood is not None
    assert comparison.likelihood.points == pytest.approx(-10.0)
    assert comparison.is_worse
    assert "-10.0 points as likely" in comparison.words
    assert not compare_golden(weak, score(20, likelihood=math.log(0.395))).is_worse
    assert not compare_golden(weak, score(20, likelihood=math.log(0.6))).is_worse
    assert compare_golden(score(20), score(20)).standing is GoldenStanding.UNSURE


def test_a_strong_model_that_holds_is_not_held_to_likelihoods() -> None:
    assert not compare_golden(score(600, likelihood=-0.1), score(600, likelihood=-3.0)).is_worse


def test_the_error_of_a_drop_of_likelihood_is_that_of_its_mean() -> None:
    rng = random.Random(3)
    before = {f"i{at}": math.log(rng.uniform(0.1, 0.9)) for at in range(40)}
    after = {name: min(0.0, value + rng.gauss(-0.02, 0.5)) for name, value in before.items()}
    points, error = likelihood_points(before, after)
    assert error > abs(points) / 3


def test_sets_of_other_items_cannot_be_compared() -> None:
    with pytest.raises(TrainingError, match="golden sets of 1000 and 79 items"):
        compare_golden(score(1), score(1, items=79))


def test_the_margin_is_a_setting() -> None:
    assert not compare_golden(score(600), score(520), margin=10.0).is_worse
