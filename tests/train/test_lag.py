"""One look at a canary: it stays within its chance of error whatever skills and sessions are like, and sees what lags."""

import math
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.verdict import Outcome
from metaclaw.train.coin import LiveTurn
from metaclaw.train.lag import chance_of_so_few, find_lag
from metaclaw.train.live import LiveRules, LiveRuling, LiveWatch
from tests.support.depth import tries

SKILLS = tuple(SkillName(f"skill-{number}") for number in range(5))
UNEVEN = (0.98, 0.9, 0.8, 0.6, 0.42)
RUNS = tries(50, nightly=150)

Told = tuple[int, tuple[bool, ...]]
"""A skill, and how the turns of a session with it came out."""


def turns_of(told: Sequence[Told], coins: Sequence[bool], share: float) -> list[LiveTurn]:
    return [
        LiveTurn(SessionId(f"s{number}"), coin, share, Outcome.PASS if passed else Outcome.FAIL, (SKILLS[skill],))
        for number, ((skill, outcomes), coin) in enumerate(zip(told, coins, strict=True))
        for passed in outcomes
    ]


@given(
    told=st.lists(st.tuples(st.integers(0, 2), st.lists(st.booleans(), min_size=1, max_size=4).map(tuple)), min_size=1, max_size=6),
    share=st.sampled_from([0.1, 0.25, 0.5]),
)
def test_over_all_ways_the_coins_may_fall_the_lag_is_none_on_average_and_as_uncertain_as_it_says(
    told: list[Told], share: float
) -> None:
    mean = square = 0.0
    for coins in product([True, False], repeat=len(told)):
        weight = math.prod(share if coin else 1.0 - share for coin in coins)
        z = find_lag(turns_of(told, coins, share)).z
        mean += weight * z
        square += weight * z * z
    assert mean == pytest.approx(0.0, abs=1e-9)
    assert square == pytest.approx(1.0) or square == 0.0


@given(st.integers(0, 8), st.integers(0, 8), st.integers(0, 12), st.integers(0, 12))
def test_the_chance_of_so_few_passes_is_what_counting_says(passes: int, failures: int, others: int, failed: int) -> None:
    mine, theirs, passed = passes + failures, others + failed, passes + others
    ways = sum(comb(mine, some) * comb(theirs, passed - some) for some in range(max(0, passed - theirs), passes + 1))
    expected = float(Fraction(ways, comb(mine + theirs, passed)))
    assert chance_of_so_few([passes, failures], [others, failed]) == pytest.approx(expected)


def test_turns_of_one_session_that_are_all_alike_count_as_few() -> None:
    chance = random.Random(2)
    alike = [(0, (chance.random() < 0.5,) * 6) for _ in range(200)]
    strangers = [(0, tuple(chance.random() < 0.5 for _ in range(6))) for _ in range(200)]
    coins = [False] * 200
    assert find_lag(turns_of(alike, coins, 0.1)).likeness == pytest.approx(6.0, rel=0.05)
    assert find_lag(turns_of(strangers, coins, 0.1)).likeness == pytest.approx(1.0, rel=0.25)


def test_without_a_failure_or_without_a_turn_nobody_lags() -> None:
    assert find_lag([]).z == 0.0
    assert find_lag(turns_of([(0, (True,)), (1, (True, True))], [True, False], 0.5)).z == 0.0


def live(chance: random.Random, canary: Sequence[float], serving: Sequence[float], alike: float) -> Iterator[LiveTurn]:
    """Conversations about one skill each; with chance `alike` all turns of one come out the same."""
    number = 0
    while True:
        number += 1
        skill, is_canary = chance.randrange(5), chance.random() < 0.1
        rate = (canary if is_canary else serving)[skill]
        same = chance.random() < rate if chance.random() < alike else None
        while True:
            passed = chance.random() < rate if same is None else same
            yield LiveTurn(SessionId(f"s{number}"), is_canary, 0.1, Outcome.PASS if passed else Outcome.FAIL, (SKILLS[skill],))
            if chance.random() < 0.25:
                break


def taken_back(canary: Sequence[float], alike: float = 0.0) -> float:
    """How many are taken back at the first look, or before."""
    found = 0
    for seed in range(RUNS):
        watch = LiveWatch(LiveRules(least_of_skill=0))
        turns = live(random.Random(seed), canary, UNEVEN, alike)
        ruling = next(report.ruling for turn in turns if (report := watch.see(turn)).ruling is not LiveRuling.WAIT)
        found += ruling is LiveRuling.ROLL_BACK
    return found / RUNS


@pytest.mark.slow
@pytest.mark.parametrize("alike", [0.0, 0.5])
def test_an_equal_canary_is_seldom_taken_back_though_skills_differ_and_turns_resemble_each_other(alike: float) -> None:
    most = 0.04 + 0.08 + 0.05
    assert taken_back(UNEVEN, alike) <= most + 2 * math.sqrt(most * (1 - most) / RUNS)


@pytest.mark.slow
def test_a_canary_that_is_seventeen_points_worse_mostly_goes_at_the_first_look_though_skills_differ() -> None:
    assert taken_back([rate - 0.17 for rate in UNEVEN]) >= 0.85
