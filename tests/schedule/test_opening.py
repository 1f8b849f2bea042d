"""Windows open while the person is away and shut the moment they are back."""

from datetime import timedelta
from pathlib import Path
from time import perf_counter

import anyio
import pytest

from metaclaw.domain.turn import TurnKind
from metaclaw.schedule.forecast import History
from metaclaw.schedule.presence import Presence, Reading
from tests.schedule.stage import NOON, HandClock, Stage, chance_to_last, is_empty


def gaps(minutes: float, count: int = 40) -> History:
    """A person who often leaves for so long."""
    history = History()
    for _ in range(count):
        history.add(minutes * 60, NOON)
    return history


def test_nothing_is_open_at_first_and_idle_minutes_open_it() -> None:
    stage = Stage()
    stage.keyboard.input()
    assert not stage.go(minutes=29)
    assert "nothing says" in stage.windows.shut_because
    assert stage.go(minutes=1.1)
    assert stage.windows.window is not None
    assert stage.windows.window.reason.startswith("input: no input for 30 min")
    assert stage.windows.shut_because == ""


def test_a_key_shuts_it_before_the_report_returns() -> None:
    stage = Stage()
    stage.keyboard.idle(3600)
    assert stage.go(seconds=1)
    stage.keyboard.input()
    assert not stage.is_open
    assert stage.changes == [True, False]
    assert [kind for kind, _ in stage.events] == ["window.opened", "window.shut"]


def test_a_main_turn_shuts_it_before_the_request_goes_on_and_a_side_turn_does_not() -> None:
    stage = Stage()
    stage.keyboard.idle(3600)
    stage.go(seconds=1)
    stage.traffic.began(TurnKind.SIDE)
    stage.traffic.ended()
    assert stage.changes == [True]
    stage.traffic.began(TurnKind.MAIN)
    assert stage.changes == [True, False]
    assert stage.windows.shut_because == "traffic: a main turn"


def test_a_main_turn_that_is_being_answered_keeps_it_shut_however_long_that_takes() -> None:
    stage = Stage(sleep=["00:00-24:00"])
    stage.traffic.began(TurnKind.MAIN)
    assert not stage.go(hours=3)
    assert "being answered" in stage.windows.shut_because
    stage.traffic.ended()
    assert not stage.go(minutes=4.9)
    assert stage.go(minutes=0.3)


def test_typing_at_one_in_the_morning_vetoes_the_hours_of_sleep() -> None:
    stage = Stage(sleep=["23:00-07:00"], clock=HandClock(NOON.replace(hour=0)))
    for _ in range(300):
        stage.keyboard.input()
        assert not stage.go(seconds=8)
    assert stage.go(minutes=5)


def test_a_busy_calendar_opens_it_and_a_meeting_that_means_present_vetoes() -> None:
    stage = Stage()
    stage.keyboard.input()
    stage.calendar.reading = Reading(
        Presence.AWAY, "busy: review", stage.clock.now() + timedelta(hours=1)
    )
    assert not stage.go(minutes=4.9)
    assert stage.go(minutes=0.2)
    stage.calendar.reading = Reading(Presence.PRESENT, "pairing means present")
    assert not stage.go(seconds=1)


def test_a_meeting_that_is_nearly_over_opens_nothing() -> None:
    stage = Stage()
    stage.calendar.reading = Reading(
        Presence.AWAY, "busy", stage.clock.now() + timedelta(seconds=40)
    )
    assert not stage.go(seconds=1)
    assert "would be over in" in stage.windows.shut_because


def test_silence_of_traffic_counts_only_where_no_keyboard_is_heard() -> None:
    heard = Stage()
    heard.traffic.began(TurnKind.MAIN)
    heard.traffic.ended()
    for _ in range(300):
        heard.keyboard.input()
        assert not heard.go(seconds=9)
    headless = Stage(has_keyboard=False)
    assert not headless.go(minutes=29)
    assert headless.go(minutes=2)


@pytest.mark.parametrize("has_keyboard", [True, False])
def test_on_a_desktop_whose_input_is_not_heard_silent_terminals_and_traffic_do_not_mean_away(
    has_keyboard: bool,
) -> None:
    stage = Stage(has_keyboard=has_keyboard, has_screen=True)
    if has_keyboard:
        stage.keyboard.idle(10.0)
    assert not stage.go(hours=3)
    assert stage.windows.shut_because == "nothing says that you are away"
    stage.screen.idle(3600)
    assert stage.go(seconds=1)
    stage.screen.input()
    assert not stage.is_open


def test_on_such_a_desktop_sleep_hours_still_open_it_and_a_terminal_still_shuts_it() -> None:
    stage = Stage(sleep=["00:00-24:00"], has_screen=True)
    assert stage.go(seconds=1)
    stage.keyboard.input()
    assert not stage.is_open


def test_after_it_was_shut_it_cools_down() -> None:
    stage = Stage(cooldown_minutes=15, idle_minutes=2)
    stage.keyboard.idle(3600)
    stage.go(seconds=1)
    stage.keyboard.input()
    assert not stage.go(minutes=14)
    assert "cooling down" in stage.windows.shut_because
    assert stage.go(minutes=1.1)


def test_short_gaps_are_used_once_the_history_knows_them() -> None:
    new, old = Stage(), Stage(history=gaps(10))
    for stage in (new, old):
        stage.keyboard.input()
        stage.go(seconds=11)
    assert (new.is_open, old.is_open) == (False, True)
    assert 60 < old.windows.room_s() < 3600


def test_pauses_of_somebody_who_reads_open_nothing() -> None:
    stage = Stage(history=gaps(0.5, 400))
    stage.keyboard.input()
    assert not stage.go(seconds=60)


def test_spells_that_are_over_become_history() -> None:
    stage = Stage()
    for _ in range(6):
        stage.keyboard.input()
        stage.go(minutes=10)
    stage.keyboard.input()
    stage.windows.refresh()
    assert stage.habits.patience().away_s < 30 * 60


def test_a_neighbour_shuts_it_and_it_opens_again() -> None:
    stage = Stage()
    stage.keyboard.idle(3600)
    stage.go(seconds=1)
    stage.neighbour.objections = ("on battery",)
    assert not stage.go(seconds=1)
    assert stage.windows.shut_because == "on battery"
    stage.neighbour.objections = ()
    assert stage.go(minutes=1.1)


@pytest.mark.parametrize("jump", [{"hours": 8}, {"hours": -3}, {"seconds": 6}])
def test_a_sleep_of_the_machine_or_a_set_clock_shuts_it_and_counts_anew(
    jump: dict[str, float],
) -> None:
    stage = Stage(idle_minutes=5)
    stage.keyboard.idle(3600)
    assert stage.go(seconds=1)
    stage.clock.jump(**jump)
    stage.windows.refresh()
    assert not stage.is_open
    assert "slept" in str(stage.events[-1][1]["why"])
    assert not stage.go(minutes=4.9)
    assert stage.go(minutes=0.2)
    assert is_empty(stage.habits.history)


def test_a_small_correction_of_the_clock_changes_nothing() -> None:
    stage = Stage()
    stage.keyboard.idle(3600)
    stage.go(seconds=1)
    stage.clock.jump(seconds=-2)
    stage.windows.refresh()
    assert stage.is_open


def test_opened_by_hand_it_stays_open_under_the_opener_s_fingers_until_a_main_turn() -> None:
    stage = Stage()
    stage.keyboard.input()
    stage.windows.open("somebody said train")
    for _ in range(50):
        stage.keyboard.input()
        assert stage.go(seconds=20)
    assert stage.windows.room_s() > 1e6
    assert stage.windows.facts()["by_hand"]
    stage.traffic.began(TurnKind.MAIN)
    assert not stage.is_open


def test_opened_by_hand_it_shuts_when_who_opened_it_had_left_and_is_back() -> None:
    stage = Stage()
    stage.keyboard.input()
    stage.windows.open("somebody said train")
    assert stage.go(minutes=10)
    stage.keyboard.input()
    assert not stage.is_open


def test_by_hand_it_can_be_shut_and_only_one_is_ever_open() -> None:
    stage = Stage()
    stage.keyboard.idle(3600)
    stage.go(seconds=1)
    stage.windows.open("again")
    assert stage.changes == [True]
    stage.windows.shut("enough")
    assert (stage.is_open, stage.windows.shut_because) == (False, "enough")
    assert stage.windows.room_s() == 0


def test_in_sleep_without_history_half_of_what_is_left_is_room() -> None:
    stage = Stage(sleep=["00:00-24:00"], has_keyboard=False)
    assert stage.go(seconds=1)
    assert 4 * 3600 < stage.windows.room_s() < 40 * 3600 * 24


@pytest.mark.anyio
async def test_whoever_waits_goes_on_when_it_opens() -> None:
    stage = Stage()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(stage.windows.until_open)
            await anyio.lowlevel.checkpoint()
            stage.keyboard.idle(3600)
            stage.windows.refresh()
        assert await stage.windows.until_open() == stage.windows.window


@pytest.mark.anyio
async def test_running_it_opens_by_itself_and_stopping_shuts_it_for_good() -> None:
    stage = Stage(sleep=["00:00-24:00"], has_keyboard=False)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(stage.windows.run)
            await stage.windows.until_open()
            group.cancel_scope.cancel()
    assert stage.windows.shut_because == "the program stops"
    assert stage.changes == [True, False]


def test_facts_say_what_each_signal_says_and_when_the_next_is_expected() -> None:
    stage = Stage(sleep=["23:00-07:00"])
    stage.keyboard.input()
    stage.go(seconds=1)
    facts = stage.windows.facts()
    assert facts["open"] is False
    signals = facts["signals"]
    assert isinstance(signals, list)
    assert [one["name"] for one in signals] == ["input", "traffic", "sleep hours", "calendar"]
    assert [one["says"] for one in signals] == ["present", "unknown", "unknown", "unknown"]
    assert facts["next"] == {"at": "2026-03-04T22:00:00+00:00", "because": "sleep hours"}
    stage.go(minutes=31)
    assert stage.windows.facts()["open"] is True
    assert stage.windows.facts()["next"] == {"at": None, "because": None}


def test_a_main_turn_costs_the_request_next_to_nothing() -> None:
    stage = Stage()
    stage.traffic.began(TurnKind.MAIN)
    best = min(_timed(stage) for _ in range(20))
    assert best < 20e-6  # a loose bound for busy machines; the benchmark says how much it is


def _timed(stage: Stage) -> float:
    began = perf_counter()
    for _ in range(100):
        stage.traffic.began(TurnKind.MAIN)
        stage.traffic.ended()
    return (perf_counter() - began) / 100


@pytest.mark.anyio
async def test_habits_are_kept_when_it_stops(tmp_path: Path) -> None:
    from metaclaw.schedule.forecast import keep_history, read_history

    path = tmp_path / "schedule" / "habits.json"
    keep_history(path, gaps(10))
    kept = read_history(path)
    assert chance_to_last(kept, 60, 300) > 0.9
    path.write_text("{")
    assert is_empty(read_history(path))
    path.write_text('{"counts": [1.0], "faded": null}')
    assert is_empty(read_history(path))
    assert is_empty(read_history(tmp_path / "none"))
