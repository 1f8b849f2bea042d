"""A version that serves is taken back when its turns fail more often than those before it."""

import random
from collections.abc import Iterator

from metaclaw.training.rollback import shown_worse

RUNS = 400


def turns(rng: random.Random, rate: float, count: int) -> Iterator[bool]:
    return (rng.random() < rate for _ in range(count))


def taken_back(rate: float, before: float, settle_after: int = 50) -> float:
    """The share of versions with this pass rate that are taken back within 300 turns."""
    found = 0
    for seed in range(RUNS):
        rng = random.Random(seed)
        baseline = sum(turns(rng, before, 200)), 200
        found += shown_worse(turns(rng, rate, 300), baseline, settle_after) is not None
    return found / RUNS


def test_a_poisoned_version_is_taken_back_within_fifty_turns() -> None:
    assert taken_back(0.3, 0.8) >= 0.95


def test_an_equal_version_is_seldom_taken_back() -> None:
    assert taken_back(0.8, 0.8, settle_after=300) <= 0.05


def test_nothing_is_shown_without_turns_from_before_or_without_failures() -> None:
    assert shown_worse([False] * 50, (0, 0)) is None
    assert shown_worse([True] * 50, (200, 200)) is None
    assert shown_worse([False] * 2, (200, 200)) is None


def test_turns_after_the_first_fifty_do_not_matter() -> None:
    assert shown_worse([True] * 50 + [False] * 200, (190, 200)) is None


def test_the_reason_says_what_was_seen() -> None:
    reason = shown_worse([False] * 50, (160, 200))
    assert reason is not None
    assert reason.startswith("fewer turns pass than before it (below ")
    assert "0 of" in reason
