"""Read iCalendar feeds and files: the entry point `ics` of `metaclaw.calendars`."""

import os
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, tzinfo
from pathlib import Path
from urllib.parse import urlsplit

import icalendar
import recurring_ical_events  # type: ignore[import-untyped]

from metaclaw.schedule import (
    MOST_BYTES,
    CalendarError,
    CalendarEvent,
    CalendarQuery,
    expect,
    fetch,
)

_MOST_EVENTS = 5_000


def read(question: CalendarQuery) -> list[CalendarEvent]:
    """The events of a feed or a file. Raises CalendarError."""
    if question.url.startswith(("http://", "https://")):
        answer = fetch(
            question.url,
            user=question.user,
            password=question.password,
            timeout_s=question.timeout_s,
        )
        content = expect(answer, urlsplit(question.url).hostname or "")
    else:
        content = _file(Path(question.url).expanduser())
    return list(parse_ics(content, question))


def parse_ics(content: bytes, question: CalendarQuery) -> Iterator[CalendarEvent]:
    """The busy events in the query's span. Raises CalendarError."""
    zone = question.local_zone()
    try:
        calendars = icalendar.Calendar.from_ical(content, multiple=True)
        if not calendars:
            raise CalendarError("it is not an iCalendar file: there is no VCALENDAR in it")
        for calendar in calendars:
            addresses = _own_addresses(calendar, question.user)
            calendar.subcomponents = [
                part for part in calendar.subcomponents if not _is_backwards(part, zone)
            ]
            found = recurring_ical_events.of(calendar, skip_bad_series=True).between(
                question.begins, question.ends
            )
            if len(found) > _MOST_EVENTS:
                raise CalendarError(f"it has more than {_MOST_EVENTS} events in a few days")
            yield from _busy(found, addresses, zone)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
        # The library raises various errors for text that is not a calendar.
        raise CalendarError(f"it is not an iCalendar file ({error})") from error


def _busy(
    components: Iterable[icalendar.Component], addresses: frozenset[str], zone: tzinfo
) -> Iterator[CalendarEvent]:
    for event in components:
        if (
            not isinstance(event, icalendar.Event)
            or _is_free(event)
            or _is_declined(event, addresses)
        ):
            continue
        begins = _instant(event.start, zone)
        ends = _instant(event.end, zone)
        if begins < ends:
            yield CalendarEvent(begins, ends, str(event.get("SUMMARY", "")))


def _is_backwards(part: icalendar.Component, zone: tzinfo) -> bool:
    """Whether an event ends before it begins; the library would swap the two."""
    begins, ends = part.get("DTSTART"), part.get("DTEND")
    if (
        not isinstance(part, icalendar.Event)
        or not hasattr(begins, "dt")
        or not hasattr(ends, "dt")
    ):
        return False
    return _instant(ends.dt, zone) < _instant(begins.dt, zone)


def _is_free(event: icalendar.Component) -> bool:
    if str(event.get("STATUS", "")).upper() in ("CANCELLED", "TENTATIVE"):
        return True
    outlook = str(event.get("X-MICROSOFT-CDO-BUSYSTATUS", "")).upper()
    return str(event.get("TRANSP", "OPAQUE")).upper() == "TRANSPARENT" or outlook in (
        "FREE",
        "WORKINGELSEWHERE",
        "TENTATIVE",
    )


def _is_declined(event: icalendar.Component, addresses: frozenset[str]) -> bool:
    """Whether the user declined: the attendee with their address, or the only attendee."""
    listed = event.get("ATTENDEE", [])
    attendees = listed if isinstance(listed, list) else [listed]
    mine = [one for one in attendees if _address(str(one)) in addresses] or (
        attendees if len(attendees) == 1 else []
    )
    return any(
        str(one.params.get("PARTSTAT", "")).upper() == "DECLINED"
        for one in mine
        if hasattr(one, "params")
    )


def _own_addresses(calendar: icalendar.Component, user: str | None) -> frozenset[str]:
    names = (
        user or "",
        str(calendar.get("X-WR-CALNAME", "")),
        str(calendar.get("X-WR-RELCALID", "")),
    )
    return frozenset(_address(name) for name in names if "@" in name)


def _address(text: str) -> str:
    return text.lower().removeprefix("mailto:").strip()


def _instant(when: date, zone: tzinfo) -> datetime:
    """The instant of a date or time; without a zone it is local."""
    if not isinstance(when, datetime):
        return datetime(when.year, when.month, when.day, tzinfo=zone).astimezone(UTC)
    return (when if when.tzinfo is not None else when.replace(tzinfo=zone)).astimezone(UTC)


def _file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > MOST_BYTES:
                raise CalendarError(
                    f"{path} has more than {MOST_BYTES // 1024**2} MB; export a smaller calendar"
                )
            return file.read(MOST_BYTES)
    except OSError as error:
        raise CalendarError(f"{path} cannot be read ({error.strerror})") from error
