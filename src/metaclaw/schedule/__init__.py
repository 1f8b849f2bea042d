"""When weights may be trained: signals of presence, the forecast, the decision, and windows.
Plugins read kinds of calendars, and report keyboard and mouse of a desktop.
"""

from metaclaw.schedule.assembly import build_windows, connect_calendar, read_calendars
from metaclaw.schedule.calendar_plugins import (
    MOST_BYTES,
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
)
