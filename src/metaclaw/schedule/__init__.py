"""When weights may be trained: signals of presence, the forecast, the decision, and windows."""

from metaclaw.schedule.assembly import build_windows as build_windows
from metaclaw.schedule.assembly import connect_google as connect_google
from metaclaw.schedule.assembly import read_calendars as read_calendars
from metaclaw.schedule.assembly import try_inputs as try_inputs
from metaclaw.schedule.presence import Traffic as Traffic
from metaclaw.schedule.windows import ManualWindows as ManualWindows
from metaclaw.schedule.windows import ScheduledWindows as ScheduledWindows
from metaclaw.schedule.windows import SharedWindows as SharedWindows
from metaclaw.schedule.windows import facts_of as facts_of
