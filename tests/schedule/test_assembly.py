"""The scheduler put together from the configuration."""

from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest

from metaclaw.config import Config, load
from metaclaw.domain.turn import TurnKind
from metaclaw.schedule import (
    ManualWindows,
    ScheduledWindows,
    Traffic,
    build_windows,
    read_calendars,
)
from metaclaw.schedule.assembly import calendar_query
from tests.schedule.stage import NOON, HandClock


def made(
    config: Config, home: Path, events: list[str] | None = None
) -> ScheduledWindows | ManualWindows:
    def announce(kind: str, facts: Mapping[str, object]) -> None:
        if events is not None:
            events.append(kind)

    return build_windows(config, Traffic(), home=home, announce=announce, sources=[])


def configured(home: Path, text: str) -> Config:
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "config.toml").write_text(text)
    return load(home)


def test_without_training_there_are_no_windows(home: Path) -> None:
    for text in ("", '[policy]\nmode = "skills_only"\n'):
        windows = made(configured(home, text), home)
        assert windows.window is None
        assert windows.shut_because == "mode skills_only trains no weights"


def test_rl_ignores_windows(home: Path) -> None:
    windows = made(configured(home, '[policy]\nmode = "rl"\n'), home)
    assert isinstance(windows, ManualWindows)
    assert windows.window is not None
    assert windows.facts() == {
        "open": True,
        "reason": "mode rl trains whenever a batch is full",
        "signals": [],
    }


@pytest.mark.anyio
async def test_auto_decides_and_keeps_its_habits(home: Path) -> None:
    text = (
        '[policy]\n[schedule]\nsleep = ["00:00-24:00"]\nmax_load = 0\nmax_temperature_c ='
        " 0\non_battery = true\n"
    )
    events: list[str] = []
    windows = made(configured(home, text), home, events)
    assert isinstance(windows, ScheduledWindows)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(windows.run)
            await windows.until_open()
            group.cancel_scope.cancel()
    assert events == ["window.opened", "window.shut"]
    assert (home / "schedule" / "habits.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.anyio
async def test_a_calendar_file_opens_a_window_through_the_whole_program_and_a_main_turn_shuts_it(
    home: Path, tmp_path: Path
) -> None:
    pytest.importorskip(
        "icalendar", reason="iCalendar needs its plugin: pip install ./plugins/caldav"
    )
    from plugins.caldav.tests.test_ics import calendar

    feed = tmp_path / "me.ics"
    feed.write_text(
        calendar("DTSTART:20260304T110000Z\r\nDTEND:20260304T140000Z\r\nSUMMARY:Workshop")
    )
    text = (
        '[policy]\n[schedule]\nsleep = []\nmax_load = 0\ncalendars = [{ kind = "ics", url ='
        f' "{feed}" }}]\n'
    )
    config, traffic = configured(home, text), Traffic()
    windows = build_windows(
        config,
        traffic,
        home=home,
        announce=lambda kind, facts: None,
        clock=HandClock(NOON),
        sources=[],
    )
    assert isinstance(windows, ScheduledWindows)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(windows.run)
            window = await windows.until_open()
            assert window.reason == "calendar 1 (ics): busy: Workshop"
            traffic.began(TurnKind.MAIN)
            assert windows.window is None
            group.cancel_scope.cancel()


def test_secrets_of_calendars_are_read_when_they_are_needed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        '[[schedule.calendars]]\nkind = "caldav"\nurl = "https://example.org/ada/"\nuser ='
        ' "ada"\npassword = "env:DAV_PASSWORD"\n'
    )
    schedule = configured(home, text).schedule
    monkeypatch.setenv("DAV_PASSWORD", "lovelace")
    question = calendar_query(schedule.calendars[0], schedule, home / "tokens", NOON)
    assert (question.kind, question.password, question.needs_titles) == (
        "caldav",
        "lovelace",
        False,
    )
    assert question.begins < NOON < question.ends


def test_terminals_are_heard_and_what_plugins_report(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    broken = tmp_path / "broken-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (broken / "entry_points.txt").write_text("[metaclaw.presence]\nbroken = no_such_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    built = build_windows(
        configured(home, "[policy]\n"), Traffic(), home=home, announce=lambda kind, facts: None
    )
    assert isinstance(built, ScheduledWindows)
    assert [one.name for one in built.inputs] == ["input (terminals)", "session (logind)"]


def test_the_doctor_reads_every_calendar_once_and_hears_what_is_wrong(
    home: Path, tmp_path: Path
) -> None:
    pytest.importorskip(
        "icalendar", reason="iCalendar needs its plugin: pip install ./plugins/caldav"
    )
    from plugins.caldav.tests.test_ics import MEETING, calendar

    good, bad = tmp_path / "good.ics", tmp_path / "bad.ics"
    good.write_text(calendar(MEETING))
    bad.write_text("<html>sign in</html>")
    tables = "".join(
        f'[[schedule.calendars]]\nkind = "ics"\nurl = "{one}"\n' for one in (good, bad)
    )
    google = (
        '[[schedule.calendars]]\nkind = "google"\nclient_id = "id"\nclient_secret ='
        ' "env:NOT_THERE"\n'
    )
    first, second, third = read_calendars(configured(home, tables + google), home)
    assert first == ("calendar 1 (ics)", None)
    assert second[1] is not None
    assert "not an iCalendar file" in second[1]
    assert third[1] is not None
    assert "NOT_THERE" in third[1]
