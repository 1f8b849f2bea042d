"""Sleep hours: days, nights across midnight, and nights in which the clock is changed."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from metaclaw.config import sleep_range
from metaclaw.schedule.presence import Presence, Reading, SleepHours
from tests.schedule.stage import VIENNA
from tests.support.cases import each


def at(text: str, *ranges: str, zone: ZoneInfo = VIENNA) -> Reading:
    now = datetime.fromisoformat(text).replace(tzinfo=zone).astimezone(UTC)
    return SleepHours([sleep_range(one) for one in ranges], lambda: zone).read(now)


@each(
    ("when", "is_asleep"),
    [
        ("2026-03-04 22:59:59", False),
        ("2026-03-04 23:00:00", True),
        ("2026-03-05 00:00:00", True),
        ("2026-03-05 06:59:59", True),
        ("2026-03-05 07:00:00", False),
    ],
)
def test_a_night_goes_over_midnight(when: str, is_asleep: bool) -> None:
    assert (at(when, "23:00-07:00").presence is Presence.AWAY) is is_asleep


def test_a_day_belongs_to_the_weekday_on_which_its_night_begins() -> None:
    friday_night = "2026-03-07 03:00"
    assert at(friday_night, "fri 23:00-07:00").presence is Presence.AWAY
    assert at(friday_night, "sat 23:00-07:00").presence is Presence.UNKNOWN
    assert (
        at("2026-03-07 09:00", "mon-fri 23:00-07:00", "sat,sun 00:00-10:00").presence
        is Presence.AWAY
    )


def test_awake_says_nothing_and_when_sleep_comes() -> None:
    reading = at("2026-03-04 12:00", "23:00-07:00")
    assert reading.presence is Presence.UNKNOWN
    assert reading.until == datetime(2026, 3, 4, 22, 0, tzinfo=UTC)


def test_sleep_ends_where_the_last_of_touching_ranges_ends() -> None:
    reading = at("2026-03-06 23:30", "23:00-00:00", "00:00-07:00")
    assert reading.until == datetime(2026, 3, 7, 6, 0, tzinfo=UTC)
    assert "07:00" in reading.why


def test_a_night_in_which_the_clock_is_put_forward_is_an_hour_shorter() -> None:
    begins = datetime(2026, 3, 28, 23, 0, tzinfo=VIENNA).astimezone(UTC)
    hours = SleepHours([sleep_range("23:00-07:00")], lambda: VIENNA)
    end = hours.read(begins).until
    assert end is not None
    assert end - begins == timedelta(hours=7)


def test_a_night_in_which_the_clock_is_put_back_is_an_hour_longer() -> None:
    begins = datetime(2026, 10, 24, 23, 0, tzinfo=VIENNA).astimezone(UTC)
    end = SleepHours([sleep_range("23:00-07:00")], lambda: VIENNA).read(begins).until
    assert end is not None
    assert end - begins == timedelta(hours=9)


def test_a_time_in_the_skipped_hour_is_an_hour_later() -> None:
    hours = SleepHours([sleep_range("02:30-05:00")], lambda: VIENNA)
    begins = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)  # 02:30, which that night is 03:30
    assert hours.read(begins - timedelta(seconds=1)).presence is Presence.UNKNOWN
    assert hours.read(begins).presence is Presence.AWAY
    assert hours.read(begins).until == datetime(2026, 3, 29, 3, 0, tzinfo=UTC)


def test_hours_follow_the_zone_the_machine_is_in() -> None:
    zones = [VIENNA]
    hours = SleepHours([sleep_range("23:00-07:00")], lambda: zones[-1])
    now = datetime(2026, 3, 4, 23, 0, tzinfo=UTC)
    assert hours.read(now).presence is Presence.AWAY
    zones.append(ZoneInfo("America/New_York"))
    assert hours.read(now).presence is Presence.UNKNOWN


def test_while_some_hours_cannot_be_it_is_unknown_when_the_person_sleeps() -> None:
    reading = SleepHours(
        [sleep_range("00:00-24:00")], lambda: VIENNA, '"25:00-07:00" has 25:00'
    ).read(datetime.now(UTC))
    assert (reading.presence, reading.is_trouble) == (Presence.UNKNOWN, True)
    assert "25:00" in reading.why
