"""Read iCalendar feeds and files, and CalDAV servers, which answer in iCalendar."""

import os
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, tzinfo
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from xml.etree import ElementTree

import icalendar
import recurring_ical_events  # type: ignore[import-untyped]

from metaclaw.schedule.calendars import MOST_BYTES, CalendarError, CalendarEvent, CalendarQuery, expect, fetch

_MOST_EVENTS = 5_000


def read_ics(question: CalendarQuery, zone: tzinfo) -> list[CalendarEvent]:
    """The events of a feed or a file. Raises CalendarError."""
    if question.url.startswith(("http://", "https://")):
        answer = fetch(question.url, user=question.user, password=question.password, timeout_s=question.timeout_s)
        content = expect(answer, urlsplit(question.url).hostname or "")
    else:
        content = _file(Path(question.url).expanduser())
    return list(parse(content, question, zone))


def parse(content: bytes, question: CalendarQuery, zone: tzinfo) -> Iterator[CalendarEvent]:
    """The busy events in the query's span. Raises CalendarError."""
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
        # The library raises various errors for text that is not a calendar.
        raise CalendarError(f"it is not an iCalendar file ({error})") from error


def _busy(components: Iterable[icalendar.Component], addresses: frozenset[str], zone: tzinfo) -> Iterator[CalendarEvent]:
    for event in components:
        if not isinstance(event, icalendar.Event) or _is_free(event) or _is_declined(event, addresses):
            continue
        begins = _instant(event.start, zone)
        ends = _instant(event.end, zone)
        if begins < ends:
            yield CalendarEvent(begins, ends, str(event.get("SUMMARY", "")))


def _is_backwards(part: icalendar.Component, zone: tzinfo) -> bool:
    """Whether an event ends before it begins; the library would swap the two."""
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
    """Whether the user declined: the attendee with their address, or the only attendee."""
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
    """The instant of a date or time; without a zone it is local."""
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


_DATA: Final = "{urn:ietf:params:xml:ns:caldav}calendar-data"
_QUERY: Final = """<?xml version="1.0" encoding="utf-8"?>
<C:calendar-query xmlns:D="DAV:" xmlns:C="urn:ietf:params:xml:ns:caldav">
  <D:prop><C:calendar-data/></D:prop>
  <C:filter><C:comp-filter name="VCALENDAR"><C:comp-filter name="VEVENT">
    <C:time-range start="{begins}" end="{ends}"/>
  </C:comp-filter></C:comp-filter></C:filter>
</C:calendar-query>"""


def read_caldav(question: CalendarQuery, zone: tzinfo) -> list[CalendarEvent]:
    """The events of a calendar on a server. Raises CalendarError."""
    host = urlsplit(question.url).hostname or ""
    answer = fetch(
        question.url,
        method="REPORT",
        headers={"Depth": "1", "Content-Type": "application/xml; charset=utf-8"},
        body=_QUERY.format(begins=_stamp(question.begins), ends=_stamp(question.ends)).encode(),
        user=question.user,
        password=question.password,
        timeout_s=question.timeout_s,
    )
    if answer.status in (404, 405):
        raise CalendarError(f"{host} has no calendar at this address ({answer.status})")
    return [event for text in _texts(expect(answer, host), host) for event in parse(text.encode(), question, zone)]


def _texts(body: bytes, host: str) -> list[str]:
    if b"<!DOCTYPE" in body[:4096]:
        raise CalendarError(f"{host} does not answer as a calendar server does")
    try:
        tree = ElementTree.fromstring(body)
    except ElementTree.ParseError as error:
        raise CalendarError(f"{host} does not answer as a calendar server does ({error})") from error
    return [found.text for found in tree.iter(_DATA) if found.text]


def _stamp(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
