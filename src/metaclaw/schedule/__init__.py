"""When weights may be trained: signals of presence, the forecast, the decision, and windows."""

from metaclaw.schedule.assembly import build_windows, connect_google, read_calendars, try_inputs
from metaclaw.schedule.presence import Traffic
from metaclaw.schedule.training_windows import ManualWindows, ScheduledWindows, SharedWindows, facts_of
