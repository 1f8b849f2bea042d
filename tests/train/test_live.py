"""The canary on live evidence: poison is rolled back within fifty turns, an equal policy seldom,
whatever sessions are like.
"""

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
from metaclaw.train.bets import TrialTurn
from metaclaw.train.live import (
    Baseline,
    LiveReport,
    LiveRuling,
    LiveThresholds,
    LiveWatch,
    chance_of_so_few,
    find_lag,
    judge_live,
)
from tests.support.cases import each
from tests.support.depth import tries

NEVER_SETTLED = LiveThresholds(settle_after=1_000_000)
RUNS = tries(40, nightly=120)


def turn(session: int, is_canary: bool, passed: bool | None, share: float = 0.1) -> TrialTurn:
    outcome = {None: Outcome.UNKNOWN, True: Outcome.PASS, False: Outcome.FAIL}[passed]
    return TrialTurn(SessionId(f"s{session}"), is_canary, share, outcome)


def traffic(
    rng: random.Random,
    canary: float,
    serving: float,
    *,
    share: float = 0.1,
    length: int = 1,
    alike: float = 0.0,
) -> Iterator[TrialTurn]:
    """Sessions of some length; with chance `alike` all turns of a session come out the same."""
    session = 0
    while True:
        session += 1
        is_canary = rng.random() < share
        rate = canary if is_canary else serving
        is_alike, same = rng.random() < alike, rng.random() < rate
        for _ in range(length):
            yield turn(session, is_canary, same if is_alike else rng.random() < rate, share)


def watched(
    turns: Iterator[TrialTurn],
    watch: LiveWatch,
    *,
    turns_most: int = 100_000,
    canary_most: int = 100_000,
) -> LiveReport:
    """Until it is decided, or so many turns were seen."""
    report = watch.report()
    for _, one in zip(range(turns_most), turns, strict=False):
        report = watch.see(one)
        if (
            report.ruling is not LiveRuling.WAIT
            or report.canary_passed + report.canary_failed >= canary_most
        ):
            break
    return report


def rolled_back(
    canary: float, *, share: float, length: int, canary_most: int, runs: int = RUNS
) -> float:
    reports = [
        watched(
            traffic(random.Random(seed), canary, 0.8, share=share, length=length),
            LiveWatch(),
            canary_most=canary_most,
        )
        for seed in range(runs)
    ]
    return sum(report.is_worse for report in reports) / runs


@each(("share", "length"), [(0.1, 1), (0.1, 5), (0.2, 1), (0.2, 5), (0.5, 1)])
def test_a_poisoned_policy_is_rolled_back_within_fifty_canary_turns(
    share: float, length: int
) -> None:
    assert rolled_back(0.3, share=share, length=length, canary_most=50) >= 0.95


def test_a_poisoned_policy_that_answers_everybody_is_rolled_back_within_fifty_turns() -> None:
    found = 0
    for seed in range(RUNS):
        rng = random.Random(seed)
        before = Baseline(sum(rng.random() < 0.8 for _ in range(200)), 200)
        watch = LiveWatch(before=before)
        found += watched(
            (turn(at, True, rng.random() < 0.3, 1.0) for at in range(50)), watch
        ).is_worse
    assert found / RUNS >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "length", "alike"), [(0.1, 1, 0.0), (0.1, 5, 0.8), (0.5, 5, 0.8)]
)
def test_an_equal_policy_is_seldom_rolled_back_over_a_thousand_turns(
    share: float, length: int, alike: float
) -> None:
    reports = [
        watched(
            traffic(random.Random(seed), 0.8, 0.8, share=share, length=length, alike=alike),
            LiveWatch(NEVER_SETTLED),
            turns_most=1_000,
        )
        for seed in range(RUNS)
    ]
    assert sum(report.is_worse for report in reports) / RUNS <= 0.05 + 3 * math.sqrt(
        0.05 * 0.95 / RUNS
    )


@pytest.mark.parametrize("length", [1, 4])
def test_a_mildly_worse_policy_is_mostly_rolled_back_within_fifty_canary_turns(length: int) -> None:
    reports = [
        watched(
            traffic(random.Random(seed), 0.6, 0.8, length=length),
            LiveWatch(),
            canary_most=50 + length,
        )
        for seed in range(RUNS)
    ]
    assert sum(report.ruling is LiveRuling.ROLL_BACK for report in reports) / RUNS >= 0.85


def test_an_equal_policy_that_answers_everybody_is_seldom_rolled_back() -> None:
    found = 0
    for seed in range(RUNS):
        rng = random.Random(seed)
        before = Baseline(sum(rng.random() < 0.8 for _ in range(200)), 200)
        turns = (turn(at, True, rng.random() < 0.8, 1.0) for at in range(300))
        found += watched(turns, LiveWatch(NEVER_SETTLED, before)).is_worse
    assert found / RUNS <= 0.05


def test_an_equal_policy_is_promoted_as_not_worse_and_a_poisoned_one_never() -> None:
    def share(canary: float) -> float:
        reports = [
            watched(traffic(random.Random(seed), canary, 0.8, length=3), LiveWatch())
            for seed in range(40)
        ]
        return sum(report.ruling is LiveRuling.PROMOTE for report in reports) / len(reports)

    assert share(0.8) >= 0.9
    assert share(0.3) == 0.0


@pytest.mark.parametrize("is_canary", [True, False])
def test_a_bet_on_a_session_is_fair_if_the_weights_make_no_difference(is_canary: bool) -> None:
    """Over how the coin falls: the wealth after any session is as much as before, on average,
    whatever its turns were.
    """
    for outcomes in ([True], [False, False], [True, False, True, False, False]):
        after = 0.0
        for falls_on in (True, False):
            watch = LiveWatch()
            for at, passed in enumerate((False, True, False)):
                watch.see(turn(at, is_canary, passed, 0.25))
            before = watch.report().e_worse
            for passed in outcomes:
                watch.see(turn(9, falls_on, passed, 0.25))
            after += (0.25 if falls_on else 0.75) * watch.report().e_worse
        assert after == pytest.approx(before)


def test_one_session_alone_never_decides() -> None:
    report = judge_live([turn(1, True, False) for _ in range(500)], NEVER_SETTLED)
    assert report.ruling is LiveRuling.WAIT
    assert report.e_worse == pytest.approx(10.0)


def test_nothing_is_taken_back_that_has_not_failed_however_well_the_others_do() -> None:
    report = judge_live([turn(at, False, True, 0.5) for at in range(100)])
    assert report.ruling is LiveRuling.WAIT
    assert report.e_worse > 25


def test_a_canary_of_which_alone_the_outcomes_are_known_is_not_taken_back() -> None:
    report = judge_live([turn(at, True, False, 0.5) for at in range(40)])
    assert report.ruling is LiveRuling.WAIT
    assert report.e_worse > 25


def test_what_came_after_the_decision_does_not_matter() -> None:
    bad = [turn(at, at % 2 == 0, at % 2 == 1, 0.5) for at in range(60)]
    good = [turn(at, True, True, 0.5) for at in range(100, 200)]
    assert judge_live([*bad, *good]) == judge_live(bad)
    assert judge_live(bad).ruling is LiveRuling.ROLL_BACK
    assert "worse than the serving version: canary passed 0 of" in judge_live(bad).reason


def test_unknown_outcomes_are_counted_and_not_guessed() -> None:
    report = judge_live([turn(at, True, None) for at in range(100)])
    assert (report.ruling, report.unknown, report.canary_failed) == (LiveRuling.WAIT, 100, 0)


def test_nothing_seen_is_nothing_decided() -> None:
    assert judge_live([]).ruling is LiveRuling.WAIT


def test_a_canary_is_not_promoted_before_the_other_side_was_seen_in_some_sessions() -> None:
    turns = [turn(at // 10, True, True) for at in range(60)]
    assert judge_live(turns).ruling is LiveRuling.WAIT
    others = [turn(1_000 + at, False, True) for at in range(5)]
    assert judge_live([*turns, *others]).ruling is LiveRuling.PROMOTE


def test_a_suspect_canary_is_rolled_back_once_enough_is_seen_though_nothing_is_proven() -> None:
    rules = LiveThresholds(alpha=1e-9, settle_after=20)
    turns = [turn(at, at % 2 == 0, at % 2 == 1 or at % 4 == 0, 0.5) for at in range(80)]
    report = judge_live(turns, rules)
    assert report.ruling is LiveRuling.ROLL_BACK
    assert not report.is_worse
    assert report.reason.startswith("not shown harmless")


def test_a_canary_that_lags_without_proof_is_rolled_back_once_enough_is_seen_and_without_another_side_nobody_lags() -> (
    None
):
    rules = LiveThresholds(alpha=1e-9, suspicion=1e9, settle_after=20)
    lagging = [turn(at, at % 2 == 0, at % 2 == 1 or at % 4 == 0, 0.5) for at in range(80)]
    assert judge_live(lagging, rules).reason.startswith("not shown harmless")
    assert (
        judge_live([turn(at % 2, True, at % 4 == 0, 0.5) for at in range(80)], rules).ruling
        is LiveRuling.WAIT
    )


def test_a_canary_for_everybody_is_promoted_against_the_time_before_and_without_one_on_its_word() -> (
    None
):
    turns = [turn(at, True, at % 5 > 0, 1.0) for at in range(50)]
    assert judge_live(turns, before=Baseline(80, 100)).ruling is LiveRuling.PROMOTE
    assert judge_live(turns).ruling is LiveRuling.PROMOTE
    assert judge_live(turns[:49]).ruling is LiveRuling.WAIT


@pytest.mark.parametrize(("share", "is_canary"), [(0.0, True), (1.1, True), (1.0, False)])
def test_a_share_that_does_not_fit_is_refused(share: float, is_canary: bool) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        turn(1, is_canary, True, share)


SKILLS = tuple(SkillName(f"skill-{number}") for number in range(5))
UNEVEN = (0.98, 0.9, 0.8, 0.6, 0.42)
LAG_RUNS = 150

Told = tuple[int, tuple[bool, ...]]
"""A skill, and how the turns of a session with it came out."""


def turns_of(told: Sequence[Told], coins: Sequence[bool], share: float) -> list[TrialTurn]:
    return [
        TrialTurn(
            SessionId(f"s{number}"),
            coin,
            share,
            Outcome.PASS if passed else Outcome.FAIL,
            (SKILLS[skill],),
        )
        for number, ((skill, outcomes), coin) in enumerate(zip(told, coins, strict=True))
        for passed in outcomes
    ]


@given(
    told=st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.booleans(), min_size=1, max_size=4).map(tuple)),
        min_size=1,
        max_size=6,
    ),
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
def test_the_chance_of_so_few_passes_is_what_counting_says(
    passes: int, failures: int, others: int, failed: int
) -> None:
    mine, theirs, passed = passes + failures, others + failed, passes + others
    ways = sum(
        comb(mine, some) * comb(theirs, passed - some)
        for some in range(max(0, passed - theirs), passes + 1)
    )
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


def live(
    chance: random.Random, canary: Sequence[float], serving: Sequence[float], alike: float
) -> Iterator[TrialTurn]:
    """Conversations about one skill each; with chance `alike` all turns of one come out the
    same.
    """
    number = 0
    while True:
        number += 1
        skill, is_canary = chance.randrange(5), chance.random() < 0.1
        rate = (canary if is_canary else serving)[skill]
        same = chance.random() < rate if chance.random() < alike else None
        while True:
            passed = chance.random() < rate if same is None else same
            yield TrialTurn(
                SessionId(f"s{number}"),
                is_canary,
                0.1,
                Outcome.PASS if passed else Outcome.FAIL,
                (SKILLS[skill],),
            )
            if chance.random() < 0.25:
                break


def taken_back(canary: Sequence[float], alike: float = 0.0) -> float:
    """How many are taken back at the first look, or before."""
    found = 0
    for seed in range(LAG_RUNS):
        watch = LiveWatch(LiveThresholds(least_of_skill=0))
        turns = live(random.Random(seed), canary, UNEVEN, alike)
        ruling = next(
            report.ruling
            for turn in turns
            if (report := watch.see(turn)).ruling is not LiveRuling.WAIT
        )
        found += ruling is LiveRuling.ROLL_BACK
    return found / LAG_RUNS


@pytest.mark.slow
@pytest.mark.parametrize("alike", [0.0, 0.5])
def test_an_equal_canary_is_seldom_taken_back_though_skills_differ_and_turns_resemble_each_other(
    alike: float,
) -> None:
    most = 0.04 + 0.08 + 0.05
    assert taken_back(UNEVEN, alike) <= most + 2 * math.sqrt(most * (1 - most) / LAG_RUNS)


@pytest.mark.slow
def test_a_canary_that_is_seventeen_points_worse_mostly_goes_at_the_first_look_though_skills_differ() -> (
    None
):
    assert taken_back([rate - 0.17 for rate in UNEVEN]) >= 0.85
