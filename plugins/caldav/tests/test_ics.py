"""iCalendar files: what takes the person's time, and what does not; and everything that is no
calendar.
"""

import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("icalendar", reason="iCalendar needs its plugin: pip install ./plugins/caldav")

from metaclaw.schedule.calendar_plugins import (
    CalendarError,
    CalendarQuery,
    answer_to,
    read_in_child,
)
from tests.schedule.stage import VIENNA

BEGINS = datetime(2026, 3, 23, tzinfo=UTC)


def calendar(*events: str, head: str = "") -> str:
    body = "\r\n".join(
        f"BEGIN:VEVENT\r\nUID:{number}\r\nDTSTAMP:20260101T000000Z\r\n{one}\r\nEND:VEVENT"
        for number, one in enumerate(events)
    )
    return (
        f"BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//test//EN\r\n{head}{body}\r\nEND:VCALENDAR\r\n"
    )


def ask(path: Path, *, user: str | None = None, timeout_s: float = 10.0) -> CalendarQuery:
    return CalendarQuery(
        kind="ics",
        url=str(path),
        begins=BEGINS,
        ends=BEGINS + timedelta(days=9),
        zone=VIENNA.key,
        user=user,
        timeout_s=timeout_s,
    )


def busy(
    tmp_path: Path, text: str | bytes, *, user: str | None = None
) -> list[tuple[str, str, str]]:
    path = tmp_path / "me.ics"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    answer = answer_to(ask(path, user=user))
    assert answer.trouble is None, answer.trouble
    return [(f"{one.begins:%d %H:%M}", f"{one.ends:%d %H:%M}", one.title) for one in answer.events]


MEETING = "DTSTART:20260324T090000Z\r\nDTEND:20260324T100000Z\r\nSUMMARY:Review"


def test_a_plain_event_is_busy(tmp_path: Path) -> None:
    assert busy(tmp_path, calendar(MEETING)) == [("24 09:00", "24 10:00", "Review")]


def test_a_weekly_event_keeps_its_local_hour_when_the_clock_is_changed_and_leaves_out_exceptions(
    tmp_path: Path,
) -> None:
    weekly = (
        "DTSTART;TZID=Europe/Vienna:20260302T100000\r\nDURATION:PT30M\r\nRRULE:FREQ=DAILY\r\n"
        "EXDATE;TZID=Europe/Vienna:20260327T100000\r\nSUMMARY:Daily"
    )
    found = [begins for begins, _, _ in busy(tmp_path, calendar(weekly))]
    assert found == [
        "23 09:00",
        "24 09:00",
        "25 09:00",
        "26 09:00",
        "28 09:00",
        "29 08:00",
        "30 08:00",
        "31 08:00",
    ]


def test_a_day_begins_at_the_person_s_midnight(tmp_path: Path) -> None:
    day = "DTSTART;VALUE=DATE:20260325\r\nDTEND;VALUE=DATE:20260326\r\nSUMMARY:Holiday"
    assert busy(tmp_path, calendar(day)) == [("24 23:00", "25 23:00", "Holiday")]


@pytest.mark.parametrize(
    "line",
    [
        "TRANSP:TRANSPARENT",
        "STATUS:CANCELLED",
        "STATUS:TENTATIVE",
        "X-MICROSOFT-CDO-BUSYSTATUS:FREE",
        "ATTENDEE;PARTSTAT=DECLINED:mailto:ada@example.org",
        "ATTENDEE;PARTSTAT=ACCEPTED:mailto:bob@example.org\r\nATTENDEE;PARTSTAT=DECLINED:MAILTO:Ada@example.org",
    ],
)
def test_free_cancelled_and_declined_events_take_no_time(tmp_path: Path, line: str) -> None:
    assert busy(tmp_path, calendar(f"{MEETING}\r\n{line}"), user="ada@example.org") == []


def test_what_somebody_else_declined_takes_time(tmp_path: Path) -> None:
    line = "ATTENDEE;PARTSTAT=ACCEPTED:mailto:ada@example.org\r\nATTENDEE;PARTSTAT=DECLINED:mailto:bob@example.org"
    assert len(busy(tmp_path, calendar(f"{MEETING}\r\n{line}"), user="ada@example.org")) == 1


def test_one_bad_event_does_not_hide_the_others(tmp_path: Path) -> None:
    assert (
        len(busy(tmp_path, calendar("DTSTART:20260324T090000Z\r\nRRULE:FREQ=NEVERLY", MEETING)))
        == 1
    )


def test_an_event_that_ends_before_it_begins_takes_no_time_and_hides_no_other(
    tmp_path: Path,
) -> None:
    assert (
        len(busy(tmp_path, calendar("DTSTART:20260324T090000Z\r\nDTEND:20260324T080000Z", MEETING)))
        == 1
    )


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"<html>sign in</html>",
        b"\xff\xfe\x00rubbish",
        b"BEGIN:VEVENT\r\nEND:VEVENT\r\n",
        b"BEGIN:VCALENDAR",
    ],
)
def test_what_is_no_calendar_is_said_to_be_none(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "me.ics"
    path.write_bytes(text)
    trouble = answer_to(ask(path)).trouble
    assert trouble is not None
    assert "iCalendar" in trouble


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert (
        answer_to(ask(tmp_path / "none.ics")).trouble
        == f"{tmp_path}/none.ics cannot be read (No such file or directory)"
    )


def test_fifty_megabytes_are_refused_without_being_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.ics"
    with path.open("wb") as file:
        file.truncate(50 * 1024**2)
    tracemalloc.start()
    try:
        assert "more than 10 MB" in (answer_to(ask(path)).trouble or "")
        assert tracemalloc.get_traced_memory()[1] < 5 * 1024**2
    finally:
        tracemalloc.stop()


@pytest.mark.anyio
async def test_a_child_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "me.ics"
    path.write_text(calendar(MEETING))
    assert [one.title for one in await read_in_child(ask(path))] == ["Review"]
    with pytest.raises(CalendarError, match="cannot be read"):
        await read_in_child(ask(tmp_path / "none"))


@pytest.mark.anyio
async def test_an_event_every_second_does_not_take_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "me.ics"
    path.write_text(
        calendar("DTSTART:20260101T000000Z\r\nDURATION:PT1S\r\nRRULE:FREQ=SECONDLY\r\nSUMMARY:tick")
    )
    with pytest.raises(CalendarError, match=r"longer than|more than|too large"):
        await read_in_child(ask(path, timeout_s=1.0), starting_s=2.0)
