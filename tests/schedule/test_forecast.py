"""How long the person stays away, from their own idle spells."""

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.schedule.forecast import ENOUGH, History
from tests.schedule.stage import NOON, chance_to_last, is_empty

MINUTE_S = 60.0


def history(*lengths_s: float) -> History:
    made = History()
    for length_s in lengths_s:
        made.add(length_s, NOON)
    return made


def test_a_silence_that_has_outlasted_the_short_ones_is_a_long_one() -> None:
    known = history(*[10 * MINUTE_S] * 10, *[480 * MINUTE_S] * 10)
    assert chance_to_last(known, MINUTE_S, 30 * MINUTE_S) == pytest.approx(0.5, abs=0.05)
    assert chance_to_last(known, 20 * MINUTE_S, 30 * MINUTE_S) > 0.9


def test_without_history_a_spell_lasts_as_long_again_with_even_chance() -> None:
    assert chance_to_last(History(), 600, 600) == 0.5
    assert is_empty(History())


def test_what_is_added_later_is_seen_as_if_it_had_been_there() -> None:
    early = history(10 * MINUTE_S)
    early.evidence(60)
    early.add(30 * MINUTE_S, NOON)
    late = history(10 * MINUTE_S, 30 * MINUTE_S)
    assert [early.evidence(one) for one in (5, 700, 1700, 1e9)] == [
        late.evidence(one) for one in (5, 700, 1700, 1e9)
    ]
    assert (early.evidence(5), early.evidence(1e9)) == (2, 0)


def test_habits_fade_by_half_in_five_weeks() -> None:
    known = history(*[10 * MINUTE_S] * 8)
    known.add(10 * MINUTE_S, NOON + timedelta(weeks=5))
    assert known.evidence(60) == pytest.approx(5)


def test_pauses_too_short_to_matter_are_not_kept() -> None:
    assert is_empty(history(4.9))


def test_patience_is_short_where_gaps_are_long_and_waits_out_the_pauses_of_a_reader() -> None:
    bounds = {"first_s": 10.0, "last_s": 1800.0, "least_s": 60.0}
    gaps = history(*[10 * MINUTE_S] * 20)
    reading = history(*[0.5 * MINUTE_S] * 200, *[10 * MINUTE_S] * 20)
    assert gaps.patience_s(**bounds) == 10.0
    assert 30 < reading.patience_s(**bounds) < 60
    assert History().patience_s(**bounds) == 1800.0
    assert history(*[10 * MINUTE_S] * int(ENOUGH - 1)).patience_s(**bounds) == 1800.0


def test_a_spell_longer_than_any_known_still_has_room() -> None:
    known = history(*[10 * MINUTE_S] * 20)
    for hours in (1, 30, 60, 24 * 30):
        assert known.room_s(hours * 3600, 0.9) == pytest.approx(hours * 400, rel=0.1)


SPELLS = st.lists(st.floats(5, 200_000), max_size=60)


@settings(deadline=None)
@given(
    spells=SPELLS,
    idle_s=st.floats(0, 100_000),
    more_s=st.floats(0, 100_000),
    further_s=st.floats(0, 100_000),
)
def test_a_longer_stay_is_never_likelier(
    spells: list[float], idle_s: float, more_s: float, further_s: float
) -> None:
    known = history(*spells)
    assert (
        0
        <= chance_to_last(known, idle_s, more_s + further_s)
        <= chance_to_last(known, idle_s, more_s) + 1e-12
        <= 1 + 1e-9
    )


@settings(deadline=None)
@given(spells=SPELLS, idle_s=st.floats(0, 50_000), chance=st.sampled_from([0.6, 0.9]))
def test_room_is_where_the_chance_falls_below(
    spells: list[float], idle_s: float, chance: float
) -> None:
    known = history(*spells)
    room_s = known.room_s(idle_s, chance)
    assert room_s >= 0
    assert room_s == 0 or chance_to_last(known, idle_s, room_s) >= chance - 1e-9
    coarseness_s = 0.02 * (idle_s + room_s) + 2
    assert room_s > 300_000 or chance_to_last(known, idle_s, room_s + coarseness_s) < chance
