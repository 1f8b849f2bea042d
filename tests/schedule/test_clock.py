"""The machine's time zone, while it runs and travels; and clocks that part."""

import shutil
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from metaclaw.schedule.clock import ClockJumps, LocalZone, SystemClock, fixed
from tests.schedule.stage import HandClock

_ZONES = Path("/usr/share/zoneinfo")
SUMMER = datetime(2026, 7, 1, 12)


def test_the_zone_follows_the_system_s_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not _ZONES.is_dir():
        pytest.skip(f"no zones at {_ZONES}: apt-get install tzdata")
    monkeypatch.delenv("TZ", raising=False)
    setting = tmp_path / "localtime"
    shutil.copy(_ZONES / "Europe/Vienna", setting)
    zone = LocalZone(setting)
    assert zone().utcoffset(SUMMER) == timedelta(hours=2)
    assert zone() is zone()
    shutil.copy(_ZONES / "America/New_York", tmp_path / "new")
    (tmp_path / "new").replace(setting)
    assert zone().utcoffset(SUMMER) == timedelta(hours=-4)


def test_a_variable_goes_before_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone = LocalZone(tmp_path / "none")
    monkeypatch.setenv("TZ", ":Asia/Tokyo")
    assert zone().utcoffset(SUMMER) == timedelta(hours=9)
    monkeypatch.setenv("TZ", "CET-1CEST,rubbish")
    assert zone().utcoffset(SUMMER) is not None
    monkeypatch.delenv("TZ")
    assert zone().utcoffset(SUMMER) is not None
    assert fixed("Europe/Vienna")().utcoffset(SUMMER) == timedelta(hours=2)


def test_clocks_that_part_are_noticed_and_those_that_creep_are_not() -> None:
    clock = HandClock()
    jumps = ClockJumps(clock)
    clock.go(hours=3)
    assert jumps.look() is None
    clock.jump(hours=8)
    assert jumps.look() == timedelta(hours=8)
    assert jumps.look() is None
    for _ in range(100):
        clock.jump(seconds=0.5)
        assert jumps.look() is None
    assert ClockJumps(SystemClock()).look() is None
