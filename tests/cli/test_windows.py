"""`metaclaw windows`: the facts in words, and consent to a calendar."""

from pathlib import Path
from typing import Any

import pytest

from metaclaw.cli.checks import FindingState, check_config, check_signals
from metaclaw.config import build
from tests.cli.program import metaclaw
from tests.cli.scripted import scripted

SHUT: dict[str, Any] = {
    "open": False,
    "reason": "input (X11): input 3 s ago",
    "opened_at": None,
    "by_hand": False,
    "signals": [
        {
            "name": "input (X11)",
            "says": "present",
            "why": "input 3 s ago",
            "until": None,
            "trouble": False,
        },
        {
            "name": "calendar 1 (ics)",
            "says": "unknown",
            "why": "example.org \x1b cannot be reached",
            "until": None,
            "trouble": True,
        },
    ],
    "objections": ["on battery"],
    "forecast": {
        "silence_s": 3.0,
        "away_after_s": 1800.0,
        "expected_s": None,
        "room_s": None,
        "from_history": False,
    },
    "next": {"at": "2026-03-04T22:00:00+00:00", "because": "sleep hours"},
}
OPEN = {
    **SHUT,
    "open": True,
    "reason": "sleep hours: asleep until 07:00",
    "opened_at": "2026-03-04T22:00:00+00:00",
    "objections": [],
    "forecast": {
        "silence_s": 900.0,
        "away_after_s": 20.0,
        "expected_s": 21600.0,
        "room_s": 7200.0,
        "from_history": True,
    },
    "next": {"at": None, "because": None},
}


def test_a_shut_window_is_explained_in_words(home: Path) -> None:
    with scripted(home, {"GET /api/windows": (200, SHUT)}):
        said = metaclaw("windows").out
    assert said.startswith("No window is open: input (X11): input 3 s ago.\n")
    assert "calendar 1 (ics)  unknown  example.org \\x1b cannot be reached" in said
    assert "Nothing trains on this machine now: on battery." in said
    assert "After 30 min without activity you count as away, until your habits are known." in said
    assert "The next one is expected at 2026-03-0" in said


def test_an_open_window_says_how_long(home: Path) -> None:
    with scripted(home, {"GET /api/windows": (200, OPEN)}):
        said = metaclaw("windows").out
        facts = metaclaw("windows", "--json").facts
    assert "A window is open since 2026-03-0" in said
    assert "It will very likely last for another 2 h." in said
    assert "After 20 s without activity" in said
    assert "next" not in said
    assert facts == OPEN


def test_without_a_forecast_only_the_reason_is_said(home: Path) -> None:
    with scripted(
        home,
        {
            "GET /api/windows": (
                200,
                {"open": True, "reason": "mode rl trains whenever a batch is full", "signals": []},
            )
        },
    ):
        assert (
            metaclaw("windows").out
            == "A window is open: mode rl trains whenever a batch is full.\n"
        )


@pytest.mark.usefixtures("home")
def test_without_a_proxy_it_says_how_to_start_one() -> None:
    done = metaclaw("windows")
    assert done.code == 1
    assert "metaclaw start" in done.err


def test_consent_needs_a_calendar_that_asks_for_it(home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text('[[schedule.calendars]]\nkind = "ics"\nurl = "/tmp/me.ics"\n')
    for number, words in (
        ("1", "is of kind ics, which needs no consent"),
        ("2", "schedule.calendars has no calendar 2"),
    ):
        done = metaclaw("windows", "connect", number)
        assert done.code == 2
        assert words in done.err


def test_nobody_who_consents_is_said(home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(
        '[[schedule.calendars]]\nkind = "google"\nclient_id = "id"\nclient_secret = "s"\n'
    )
    done = metaclaw("windows", "connect", "--timeout", "1")
    assert done.code == 1
    assert (
        "https://accounts.google.com/o/oauth2/v2/auth?client_id=id&redirect_uri=http%3A%2F%2F127.0.0.1"
        in done.out
    )
    assert "consent was not given" in done.err


def test_the_doctor_tells_what_shows_the_running_proxy_that_you_are_there(home: Path) -> None:
    with scripted(home, {"GET /api/windows": (200, SHUT)}):
        assert list(check_signals(home, build({}, home))) == []  # no weights are trained
        (heard,) = check_signals(home, build({"policy": {}}, home))  # calendars are read anew
    assert (heard.name, heard.state, heard.what) == (
        "input (X11)",
        FindingState.OK,
        "input 3 s ago",
    )
    assert list(check_signals(home, build({"policy": {}}, home))) == []  # no proxy runs


def test_hours_of_sleep_that_cannot_be_are_found_by_the_doctor(home: Path) -> None:
    (finding,) = (
        one
        for one in check_config(home, build({"schedule": {"sleep": ["25:00-07:00"]}}, home))
        if one.state is FindingState.WARN and "schedule.sleep" in one.what
    )
    assert "25:00" in finding.what
    assert "23:00-07:00" in (finding.remedy or "")
    found = check_config(home, build({}, home))
    assert not any("schedule.sleep" in one.what for one in found)
