"""The simulator: its books balance, and ours never shares the machine with somebody who is
there.
"""

import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.windows import PIECE_S, Work, _common, failures, fixed_rule, measure
from benchmarks.windows_traces import DAY_S, TRACES, Trace, touches
from tests.support.cases import each


@each("make", TRACES)
def test_presence_and_absence_make_up_the_days(make: object) -> None:
    assert callable(make)
    trace = make(3, random.Random(1))
    assert isinstance(trace, Trace)
    spans = sorted([*trace.present, *trace.away])
    assert all(end <= begin + 1e-6 for (_, end), (begin, _) in itertools.pairwise(spans))
    assert sum(end - begin for begin, end in spans) == pytest.approx(3 * DAY_S)
    seen = [when for when, _ in touches(trace, random.Random(1))]
    assert seen == sorted(seen)


def test_nights_are_used_from_the_first_on_and_nobody_is_disturbed() -> None:
    ours, _, sleeping, oracle = measure(TRACES[0](4, random.Random(0)), 0, stands_still=False)
    assert ours.of_oracle > 0.9
    assert ours.overlap_s == 0.0
    assert sleeping.overlap_s > 0.0
    assert (oracle.of_oracle, oracle.waste) == (1.0, 0.0)
    assert failures([ours]) == []


def test_work_that_is_cut_is_lost_or_stands_still() -> None:
    for stands_still, pieces, wasted_s in ((False, 2, 4.0), (True, 3, 0.0)):
        work = Work(stands_still)
        for begin in (0.0, 100.0):
            work.begin(begin)
            work.until(begin + 1 + PIECE_S + 2)
            work.cut(begin + 1 + PIECE_S + 2)
        work.begin(200.0)
        work.until(202.0)
        assert (work.pieces, work.wasted_s) == (pieces, wasted_s)


@settings(deadline=None)
@given(
    begin=st.floats(0, 1e6),
    carried_s=st.floats(0, 4.9),
    lasts_s=st.floats(0, 500),
    most=st.none() | st.integers(0, 50),
)
def test_many_pieces_at_once_are_those_made_one_by_one(
    begin: float, carried_s: float, lasts_s: float, most: int | None
) -> None:
    together, apart = (Work(True, cursor=begin, carried_s=carried_s) for _ in range(2))
    together.until(begin + lasts_s, most)
    for _ in range(101 if most is None else most):
        apart.until(begin + lasts_s, 1)
    assert (together.pieces, together.carried_s) == (apart.pieces, apart.carried_s)
    assert together.cursor == pytest.approx(apart.cursor)


@each("make", TRACES)
def test_hands_never_rest_long_enough_for_the_fixed_rule(
    make: Callable[[int, random.Random], Trace],
) -> None:
    trace = make(2, random.Random(3))
    moments = [0.0, *(when for when, _ in touches(trace, random.Random(3))), trace.days * DAY_S]
    rests = [(begin, end) for begin, end in itertools.pairwise(moments) if end - begin > 1800]
    opened = list(fixed_rule(trace, 3))
    assert [rest for rest in rests if -(-(rest[0] + 1800) // 60) * 60 < rest[1]] == [
        next(rest for rest in rests if rest[0] <= begin <= rest[1]) for begin, _ in opened
    ]


def test_what_two_people_share_is_counted_without_the_second_of_stopping() -> None:
    assert _common([(0, 10), (20, 30)], ((5, 8), (9, 25)), 0.0) == 3 + 1 + 5
    assert _common([(0, 10), (20, 30)], ((5, 8), (9, 25)), 1.0) == 2 + 0 + 4
