"""iCalendar: recurring events, time zones, all-day, free, cancelled and declined ones, by a library made for it."""

import os
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, tzinfo
from pathlib import Path
from urllib.parse import urlsplit

import icalendar
import recurring_ical_events  # type: ignore[import-untyped]

from metaclaw.schedule.calendars.event import CalendarError, Event, Question
from metaclaw.schedule.calendars.fetch import MOST_BYTES, expect, fetch

_MOST_EVENTS = 5_000


def read_ics(question: Question, zone: tzinfo) -> list[Event]:
    """The events of a feed or a file. Raises CalendarError."""
    if question.url.startswith(("http://", "https://")):
        answer = fetch(question.url, user=question.user, password=question.password, timeout_s=question.timeout_s)
        content = expect(answer, urlsplit(question.url).hostname or "")
    else:
        content = _file(Path(question.url).expanduser())
    return list(parse(content, question, zone))


def parse(content: bytes, question: Question, zone: tzinfo) -> Iterator[Event]:
    """What takes the person's time in the span that is asked for. Raises CalendarError."""
    try:
        calendars = icalendar.Calendar.from_ical(content, multiple=True)
        if not calendars:
            raise CalendarError("it is not an iCalendar file: there is no VCALENDAR in it")
        for calendar in calendars:
            addresses = _own_addresses(calendar, question.user)
            calendar.subcomponents = [part for part in calendar.subcomponents if not _is_backwards(part, zone)]
            found = recurring_ical_events.of(calendar, skip_bad_series=True).between(question.begins, question.ends)
            if len(found) > _MOST_EVENTS:
                raise CalendarError(f"it has more than {_MOST_EVENTS} events in a few days")
            yield from _busy(found, addresses, zone)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
        # The library raises whatever its parts raise for text that is no calendar.
        raise CalendarError(f"it is not an iCalendar file ({error})") from error


def _busy(found: Iterable[icalendar.Component], addresses: frozenset[str], zone: tzinfo) -> Iterator[Event]:
    for one in found:
        if not isinstance(one, icalendar.Event) or _is_free(one) or _is_declined(one, addresses):
            continue
        begins = _instant(one.start, zone)
        ends = _instant(one.end, zone)
        if begins < ends:
            yield Event(begins, ends, str(one.get("SUMMARY", "")))


def _is_backwards(part: icalendar.Component, zone: tzinfo) -> bool:
    """Whether it ends before it begins: there is no such time, and the library would turn it round."""
    begins, ends = part.get("DTSTART"), part.get("DTEND")
    if not isinstance(part, icalendar.Event) or not hasattr(begins, "dt") or not hasattr(ends, "dt"):
        return False
    return _instant(ends.dt, zone) < _instant(begins.dt, zone)


def _is_free(event: icalendar.Component) -> bool:
    if str(event.get("STATUS", "")).upper() in ("CANCELLED", "TENTATIVE"):
        return True
    outlook = str(event.get("X-MICROSOFT-CDO-BUSYSTATUS", "")).upper()
    return str(event.get("TRANSP", "OPAQUE")).upper() == "TRANSPARENT" or outlook in ("FREE", "WORKINGELSEWHERE", "TENTATIVE")


def _is_declined(event: icalendar.Component, addresses: frozenset[str]) -> bool:
    """Whether the person said no. Whose answer counts is known by address, or because there is only one."""
    listed = event.get("ATTENDEE", [])
    attendees = listed if isinstance(listed, list) else [listed]
    mine = [one for one in attendees if _address(str(one)) in addresses] or (attendees if len(attendees) == 1 else [])
    return any(str(one.params.get("PARTSTAT", "")).upper() == "DECLINED" for one in mine if hasattr(one, "params"))


def _own_addresses(calendar: icalendar.Component, user: str | None) -> frozenset[str]:
    names = (user or "", str(calendar.get("X-WR-CALNAME", "")), str(calendar.get("X-WR-RELCALID", "")))
    return frozenset(_address(name) for name in names if "@" in name)


def _address(text: str) -> str:
    return text.lower().removeprefix("mailto:").strip()


def _instant(when: date, zone: tzinfo) -> datetime:
    """A moment; a day begins at midnight where the person is, and so does a time without a zone."""
    if not isinstance(when, datetime):
        return datetime(when.year, when.month, when.day, tzinfo=zone).astimezone(UTC)
    return (when if when.tzinfo is not None else when.replace(tzinfo=zone)).astimezone(UTC)


def _file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > MOST_BYTES:
                raise CalendarError(f"{path} has more than {MOST_BYTES // 1024**2} MB; export a smaller calendar")
            return file.read(MOST_BYTES)
    except OSError as error:
        raise CalendarError(f"{path} cannot be read ({error.strerror})") from error
