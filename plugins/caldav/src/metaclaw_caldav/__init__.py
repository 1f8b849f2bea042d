"""Read calendars on CalDAV servers, which answer in iCalendar: the entry point `caldav` of
`metaclaw.calendars`.
"""

from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit
from xml.etree import ElementTree

from metaclaw.schedule import CalendarError, CalendarEvent, CalendarQuery, expect, fetch
from metaclaw_caldav.ics import parse_ics

__version__ = "0.1.0"

_DATA: Final = "{urn:ietf:params:xml:ns:caldav}calendar-data"
_QUERY: Final = """<?xml version="1.0" encoding="utf-8"?>
<C:calendar-query xmlns:D="DAV:" xmlns:C="urn:ietf:params:xml:ns:caldav">
  <D:prop><C:calendar-data/></D:prop>
  <C:filter><C:comp-filter name="VCALENDAR"><C:comp-filter name="VEVENT">
    <C:time-range start="{begins}" end="{ends}"/>
  </C:comp-filter></C:comp-filter></C:filter>
</C:calendar-query>"""


def read(question: CalendarQuery) -> list[CalendarEvent]:
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
    return [
        event
        for text in _texts(expect(answer, host), host)
        for event in parse_ics(text.encode(), question)
    ]


def _texts(body: bytes, host: str) -> list[str]:
    if b"<!DOCTYPE" in body[:4096]:
        raise CalendarError(f"{host} does not answer as a calendar server does")
    try:
        tree = ElementTree.fromstring(body)
    except ElementTree.ParseError as error:
        raise CalendarError(
            f"{host} does not answer as a calendar server does ({error})"
        ) from error
    return [found.text for found in tree.iter(_DATA) if found.text]


def _stamp(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
