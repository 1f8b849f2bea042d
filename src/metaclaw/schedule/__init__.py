"""When weights may be trained: signals of presence, the forecast, the decision, and windows.
Plugins read kinds of calendars, and report keyboard and mouse of a desktop.
"""

from collections.abc import Iterable

from metaclaw.schedule.assembly import build_windows, connect_calendar
from metaclaw.schedule.calendar_plugins import (
    CalendarError,
    CalendarEvent,
    CalendarQuery,
    Fetched,
    expect,
    fetch,
    find_plugin,
)
from metaclaw.schedule.input import InputReport, InputSource, SignalError, Sleep, poll_input
from metaclaw.schedule.presence import Traffic
from metaclaw.schedule.training_windows import (
    ManualWindows,
    ScheduledWindows,
    SharedWindows,
    facts_of,
)


def parse_ics(content: bytes, query: CalendarQuery) -> Iterable[CalendarEvent]:
    """The busy events of an iCalendar text in the query's span. Raises CalendarError; needs the
    calendar extra.
    """
    from metaclaw.schedule.ics import parse_ics

    return parse_ics(content, query)
