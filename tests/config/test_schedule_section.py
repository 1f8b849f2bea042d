"""`[schedule]`: hours, calendars and rules as people write them, and what is refused."""

from datetime import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.config import (
    InvalidConfigError,
    SleepRange,
    build,
    flatten,
    load,
    missing_secrets,
    sleep_range,
    toml_value,
)
from metaclaw.config.training import DAYS
from tests.support.cases import each

ALL = frozenset(range(7))


def refused(home: Path, text: str) -> str:
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(text, "utf-8")
    with pytest.raises(InvalidConfigError) as caught:
        load(home, {})
    return str(caught.value).replace(str(home / "config.toml"), "FILE")


def test_the_defaults_are_those_we_promise(home: Path) -> None:
    schedule = load(home, {}).schedule
    assert schedule.sleep_ranges == (SleepRange(ALL, time(23), time(7)),)
    assert (schedule.timezone, schedule.idle_minutes, schedule.calendars, schedule.rules) == (
        None,
        30.0,
        (),
        (),
    )
    assert (schedule.on_battery, schedule.on_metered) == (False, False)


@each(
    ("text", "found"),
    [
        ("23:00-07:00", SleepRange(ALL, time(23), time(7))),
        ("9:05-24:00", SleepRange(ALL, time(9, 5), time(0))),
        ("00:00-24:00", SleepRange(ALL, time(0), time(0))),
        ("Mon-Fri 22:30-06:00", SleepRange(frozenset(range(5)), time(22, 30), time(6))),
        ("sat,sun 00:00-10:00", SleepRange(frozenset({5, 6}), time(0), time(10))),
        ("fri-mon,wed 01:00-02:00", SleepRange(frozenset({4, 5, 6, 0, 2}), time(1), time(2))),
    ],
)
def test_hours_are_read_as_people_write_them(text: str, found: SleepRange) -> None:
    assert sleep_range(text) == found


@given(
    days=st.frozensets(st.integers(0, 6), min_size=1),
    begins=st.times().map(lambda moment: moment.replace(second=0, microsecond=0)),
    ends=st.times().map(lambda moment: moment.replace(second=0, microsecond=0)),
)
def test_hours_that_are_written_are_the_hours_that_are_read(
    days: frozenset[int], begins: time, ends: time
) -> None:
    text = f"{','.join(DAYS[day] for day in days)} {begins:%H:%M}-{ends:%H:%M}"
    if begins == ends:
        with pytest.raises(ValueError, match="begins when it ends"):
            sleep_range(text)
    else:
        assert sleep_range(text) == SleepRange(days, begins, ends)


def test_calendars_and_rules_are_lists_of_tables_or_lines(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text(
        "[schedule]\nrules = [{ title = 'pairing with agent', means = 'present'"
        " }]\n[[schedule.calendars]]\nkind = 'ics'\nurl ="
        " '{home}/me.ics'\n[[schedule.calendars]]\nkind = 'caldav'\nurl ="
        " 'https://example.org/a/'\nuser = 'ada'\npassword ="
        " 'env:NOT_SET_ANYWHERE'\n[[schedule.calendars]]\nkind = 'google'\nclient_id ="
        " 'id'\nclient_secret = 'hunter2'\n"
    )
    config = load(home, {}, ["schedule.calendars.1.refresh_minutes=5"])
    ics, caldav, google = config.schedule.calendars
    assert ics.url is not None
    assert ics.url.resolve() == f"{home}/me.ics"
    assert (caldav.user, caldav.refresh_minutes, google.calendar) == ("ada", 5.0, "primary")
    assert config.schedule.rules[0].means == "present"
    assert [problem.key for problem in missing_secrets(config, {})] == [
        "schedule.calendars.1.password"
    ]
    shown = {key: toml_value(value) for key, value in flatten(config)}
    assert shown["schedule.calendars.2.client_secret"] == '"********"'
    assert str(config.where("schedule.calendars.1.refresh_minutes")) == "--set"
    assert str(config.where("schedule.calendars.0.url")).endswith("config.toml:5")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sleep = '23:00-07:00'", "FILE:2: schedule.sleep is not a list"),
        (
            "sleep = ['at night']",
            (
                'FILE:2: schedule.sleep has "at night", which is no range of hours; write'
                ' "23:00-07:00"'
            ),
        ),
        ("sleep = ['funday 07:00-08:00']", "which has 'funday', which is no weekday"),
        (
            "timezone = 'Vienna'",
            (
                "FILE:2: schedule.timezone is not the name of a time zone; write, for example,"
                ' timezone = "Europe'
            ),
        ),
        ("timezone = '../etc/passwd'", "schedule.timezone is not the name of a time zone"),
        ("idle_minutes = 0", "FILE:2: schedule.idle_minutes must be greater than 0"),
        ("max_load = nan", "FILE:2: schedule.max_load"),
        (
            "calendars = [{ kind = '' }]",
            "schedule.calendars.0.kind String should have at least 1 character",
        ),
        ("calendars = [{ kind = 'ics' }]", 'schedule.calendars.0 needs url for kind = "ics"'),
        (
            "calendars = [{ kind = 'ics', url = 'me.ics' }]",
            "schedule.calendars.0.url is neither an http:// or https:// address nor",
        ),
        (
            "calendars = [{ kind = 'caldav', url = '/me' }]",
            "schedule.calendars.0.url is neither an http:// or https:// address nor",
        ),
        (
            "calendars = [{ kind = 'google' }]",
            'schedule.calendars.0 needs client_id for kind = "google"',
        ),
        (
            "calendars = [{ kind = 'ics', url = '/a', client_id = 'x' }]",
            "has client_id, which does not apply to",
        ),
        (
            "calendars = [{ kind = 'caldav', url = 'http://x', password = 'x' }]",
            "has password, and so needs user",
        ),
        (
            "calendars = [3]",
            (
                "schedule.calendars.0 is not a section; write [[schedule.calendars]] on a line of"
                " its own"
            ),
        ),
        (
            "calendars = 3",
            (
                "schedule.calendars is not a section; write [[schedule.calendars]] on a line of"
                " its own"
            ),
        ),
        (
            "rules = [{ title = 'x', means = 'asleep' }]",
            "schedule.rules.0.means must be 'away', 'present' or 'nothing'",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_its_place_and_a_remedy(
    home: Path, text: str, words: str
) -> None:
    said = refused(home, f"[schedule]\n{text}\n")
    assert words in said
    assert "FILE:2" in said


def test_many_hours_and_zones_may_be_given_in_code(home: Path) -> None:
    config = build(
        {"schedule": {"sleep": ["mon 00:00-01:00", "12:00-13:00"], "timezone": "Asia/Tokyo"}}, home
    )
    assert len(config.schedule.sleep_ranges) == 2


@pytest.mark.parametrize(
    ("impossible", "why"),
    [
        ("25:00-07:00", "has 25:00, which is no time of day"),
        ("07:00-07:00", "begins when it ends; write 00:00-24:00 for the whole day"),
    ],
)
def test_hours_that_cannot_be_are_the_signals_trouble_and_nothing_else_changes(
    home: Path, impossible: str, why: str
) -> None:
    schedule = build({"schedule": {"sleep": ["12:00-13:00", impossible]}}, home).schedule
    assert schedule.sleep_ranges == (sleep_range("12:00-13:00"),)
    assert schedule.sleep_trouble is not None
    assert f'"{impossible}" {why}' in schedule.sleep_trouble
    assert build({"schedule": {"sleep": ["12:00-13:00"]}}, home).schedule.sleep_trouble is None
