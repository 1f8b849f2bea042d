"""How long the person stays away, from their own idle spells."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.schedule.forecast import ENOUGH, Habits, History, Survival, hour_of_week
from tests.schedule.stage import VIENNA, HandClock, add_spell, chance_to_last, is_empty, survival_of

MONDAY_TEN = datetime(2026, 3, 2, 10, 30)
SUNDAY_NIGHT = datetime(2026, 3, 8, 23, 10)
MINUTE = timedelta(minutes=1)


def history(*spells: tuple[datetime, timedelta]) -> History:
    made = History()
    for began, length in spells:
        add_spell(made, began, length)
    return made


def test_hours_of_the_week_begin_on_monday() -> None:
    assert (hour_of_week(MONDAY_TEN), hour_of_week(SUNDAY_NIGHT)) == (10, 167)


def test_nights_are_long_and_coffee_is_short_by_their_own_hour() -> None:
    known = history(*[(MONDAY_TEN, 10 * MINUTE)] * 10, *[(SUNDAY_NIGHT, 480 * MINUTE)] * 10)
    assert chance_to_last(survival_of(known, MONDAY_TEN), 60, 1800) < 0.2
    assert chance_to_last(survival_of(known, SUNDAY_NIGHT), 60, 1800) > 0.85
    assert chance_to_last(survival_of(known, SUNDAY_NIGHT + timedelta(hours=1)), 60, 1800) > 0.85


def test_another_day_at_the_same_hour_counts_less_and_another_hour_hardly() -> None:
    known = history(*[(MONDAY_TEN, 10 * MINUTE)] * 10)
    tuesday, evening = MONDAY_TEN + timedelta(days=1), MONDAY_TEN + timedelta(hours=9)
    assert survival_of(known, MONDAY_TEN).evidence(60) == pytest.approx(10)
    assert survival_of(known, tuesday).evidence(60) == pytest.approx(3)
    assert survival_of(known, evening).evidence(60) == pytest.approx(0.2)


def test_without_history_a_spell_lasts_as_long_again_with_even_chance() -> None:
    assert chance_to_last(survival_of(History(), MONDAY_TEN), 600, 600) == 0.5
    assert is_empty(History())


def test_what_is_added_later_is_seen_as_if_it_had_been_there() -> None:
    early = history((MONDAY_TEN, 10 * MINUTE))
    survival_of(early, MONDAY_TEN)
    add_spell(early, MONDAY_TEN, 30 * MINUTE)
    late = history((MONDAY_TEN, 10 * MINUTE), (MONDAY_TEN, 30 * MINUTE))
    assert list(survival_of(early, MONDAY_TEN).reached) == list(survival_of(late, MONDAY_TEN).reached)


def test_habits_fade_by_half_in_five_weeks() -> None:
    known = history(*[(MONDAY_TEN, 10 * MINUTE)] * 8)
    add_spell(known, MONDAY_TEN + timedelta(weeks=5), 10 * MINUTE)
    assert survival_of(known, MONDAY_TEN).evidence(60) == pytest.approx(5)


def test_pauses_too_short_to_matter_are_not_kept() -> None:
    assert is_empty(history((MONDAY_TEN, timedelta(seconds=4.9))))


def test_patience_is_short_where_gaps_are_long_and_waits_out_the_pauses_of_a_reader() -> None:
    bounds = {"first_s": 10.0, "last_s": 1800.0, "least_s": 60.0}
    gaps = history(*[(MONDAY_TEN, 10 * MINUTE)] * 20)
    reading = history(*[(MONDAY_TEN, 0.5 * MINUTE)] * 200, *[(MONDAY_TEN, 10 * MINUTE)] * 20)
    assert survival_of(gaps, MONDAY_TEN).patience_s(**bounds) == 10.0
    assert 30 < survival_of(reading, MONDAY_TEN).patience_s(**bounds) < 60
    assert survival_of(History(), MONDAY_TEN).patience_s(**bounds) == 1800.0
    few = history(*[(MONDAY_TEN, 10 * MINUTE)] * int(ENOUGH - 1))
    assert survival_of(few, MONDAY_TEN).patience_s(**bounds) == 1800.0


def test_a_spell_longer_than_any_known_still_has_room() -> None:
    known = survival_of(history(*[(MONDAY_TEN, 10 * MINUTE)] * 20), MONDAY_TEN)
    for hours in (1, 30, 60, 24 * 30):
        assert known.room_s(hours * 3600, 0.9) == pytest.approx(hours * 400, rel=0.1)


SPELLS = st.lists(st.floats(5, 200_000), max_size=60)


@settings(deadline=None)
@given(spells=SPELLS, idle_s=st.floats(0, 100_000), more_s=st.floats(0, 100_000), further_s=st.floats(0, 100_000))
def test_a_longer_stay_is_never_likelier(spells: list[float], idle_s: float, more_s: float, further_s: float) -> None:
    survival = _survival(spells)
    assert 0 <= chance_to_last(survival, idle_s, more_s + further_s) <= chance_to_last(survival, idle_s, more_s) + 1e-12 <= 1 + 1e-9


@settings(deadline=None)
@given(spells=SPELLS, idle_s=st.floats(0, 50_000), chance=st.sampled_from([0.6, 0.9]))
def test_room_is_where_the_chance_falls_below(spells: list[float], idle_s: float, chance: float) -> None:
    survival = _survival(spells)
    room_s = survival.room_s(idle_s, chance)
    assert room_s >= 0
    assert room_s == 0 or chance_to_last(survival, idle_s, room_s) >= chance - 1e-9
    coarseness_s = 0.02 * (idle_s + room_s) + 2  # a bin's width, halved a few times
    assert room_s > 300_000 or chance_to_last(survival, idle_s, room_s + coarseness_s) < chance


@settings(max_examples=15, deadline=None)
@given(pauses=st.lists(st.one_of(st.floats(1, 60), st.floats(600, 30_000), st.floats(80_000, 100_000)), max_size=20))
def test_spells_taken_up_together_teach_what_they_teach_one_by_one(pauses: list[float]) -> None:
    clock = HandClock()
    habits = [Habits(idle_s=1800, least_s=60, zone=lambda: VIENNA, clock=clock) for _ in range(2)]
    for pause_s in (1.0, *pauses):
        clock.go(seconds=pause_s)
        for one in habits:
            one.active()
        habits[0].learn()
    habits[1].learn()
    first, second = (one.history for one in habits)
    assert first.faded == second.faded
    assert second.counts == [pytest.approx(row) for row in first.counts]
    for hour in (0, 60, 100):
        assert second.survival_at(hour).reached == pytest.approx(History(first.counts).survival_at(hour).reached)


def _survival(spells: list[float]) -> Survival:
    return survival_of(history(*[(MONDAY_TEN, timedelta(seconds=length)) for length in spells]), MONDAY_TEN)
