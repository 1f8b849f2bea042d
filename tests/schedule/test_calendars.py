"""A calendar as a signal: rules, what comes next, and trouble."""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest

from metaclaw.config import RuleConfig
from metaclaw.schedule.calendar_plugins import CalendarError, CalendarEvent
from metaclaw.schedule.calendars import Calendar
from metaclaw.schedule.presence import Presence
from tests.schedule.stage import NOON
from tests.support.cases import each

HOUR = timedelta(hours=1)
RULES = [
    RuleConfig(title="Pairing with agent", means="present"),
    RuleConfig(title="lunch", means="nothing"),
    RuleConfig(title="pairing", means="away"),
]


class Feed:
    """A calendar in the test's hands."""

    def __init__(self, *events: CalendarEvent) -> None:
        self.events: Sequence[CalendarEvent] = events
        self.trouble: str | None = None
        self.now = NOON
        self.heard = 0

    async def __call__(self, now: datetime) -> Sequence[CalendarEvent]:
        if self.trouble is not None:
            raise CalendarError(self.trouble)
        return self.events

    def hear(self) -> None:
        self.heard += 1


def signal(feed: Feed) -> Calendar:
    return Calendar(
        "calendar 1 (ics)",
        feed,
        rules=RULES,
        every=timedelta(minutes=15),
        now=lambda: feed.now,
        hear=feed.hear,
    )


@pytest.mark.anyio
@each(
    ("title", "presence"),
    [
        ("Review", Presence.AWAY),
        ("", Presence.AWAY),
        ("PAIRING WITH AGENT, part 2", Presence.PRESENT),
        ("pairing with Bob", Presence.AWAY),
        ("Lunch", Presence.UNKNOWN),
    ],
)
async def test_busy_means_away_unless_a_rule_says_otherwise(title: str, presence: Presence) -> None:
    calendar = signal(Feed(CalendarEvent(NOON - HOUR, NOON + HOUR, title)))
    assert calendar.read(NOON).presence is Presence.UNKNOWN
    await calendar.look()
    assert calendar.read(NOON).presence is presence


@pytest.mark.anyio
async def test_meetings_without_a_pause_are_one_and_the_next_is_known() -> None:
    feed = Feed(
        CalendarEvent(NOON + HOUR, NOON + 2 * HOUR, "b"),
        CalendarEvent(NOON, NOON + HOUR, "a"),
        CalendarEvent(NOON + 3 * HOUR, NOON + 4 * HOUR, "c"),
    )
    calendar = signal(feed)
    await calendar.look()
    assert feed.heard == 1
    assert calendar.read(NOON).until == NOON + 2 * HOUR
    feed.now = NOON + timedelta(minutes=30)
    later = calendar.read(NOON - timedelta(0))
    assert later.presence is Presence.AWAY
    before = Feed(CalendarEvent(NOON + HOUR, NOON + 2 * HOUR, "b"))
    calendar = signal(before)
    await calendar.look()
    assert (calendar.read(NOON).presence, calendar.read(NOON).until) == (
        Presence.UNKNOWN,
        NOON + HOUR,
    )


@pytest.mark.anyio
async def test_presence_wins_over_a_meeting_at_the_same_time() -> None:
    calendar = signal(
        Feed(
            CalendarEvent(NOON, NOON + HOUR, "Review"),
            CalendarEvent(NOON, NOON + HOUR, "pairing with agent"),
        )
    )
    await calendar.look()
    assert calendar.read(NOON).presence is Presence.PRESENT


@pytest.mark.anyio
async def test_trouble_makes_it_unknown_is_logged_once_and_passes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    feed = Feed(CalendarEvent(NOON, NOON + HOUR, "Review"))
    calendar = signal(feed)
    await calendar.look()
    feed.trouble = "example.org cannot be reached"
    with caplog.at_level(logging.WARNING):
        await calendar.look()
        await calendar.look()
    assert [record.message for record in caplog.records] == [
        "calendar_unreadable calendar=calendar 1 (ics) reason=example.org cannot be reached"
    ]
    reading = calendar.read(NOON)
    assert (reading.presence, reading.why, reading.is_trouble) == (
        Presence.UNKNOWN,
        feed.trouble,
        True,
    )
    feed.trouble = None
    await calendar.look()
    assert calendar.read(NOON).presence is Presence.AWAY


@pytest.mark.anyio
async def test_what_was_read_too_long_ago_says_nothing() -> None:
    calendar = signal(Feed(CalendarEvent(NOON, NOON + 5 * HOUR, "Review")))
    await calendar.look()
    assert calendar.read(NOON + timedelta(minutes=45)).presence is Presence.AWAY
    assert calendar.read(NOON + timedelta(minutes=46)).presence is Presence.UNKNOWN
    assert calendar.read(NOON - timedelta(minutes=1)).is_trouble


@pytest.mark.anyio
async def test_after_trouble_it_is_read_again_sooner() -> None:
    feed = Feed()
    feed.trouble = "no"
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        feed.trouble = None
        if len(pauses) == 2:
            raise TimeoutError

    calendar = Calendar(
        "c", feed, rules=(), every=timedelta(minutes=15), now=lambda: NOON, sleep=sleep
    )
    with pytest.raises(TimeoutError):
        await calendar.follow()
    assert pauses == [60.0, 900.0]
