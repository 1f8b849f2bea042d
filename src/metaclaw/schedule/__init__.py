"""When the slow loop may run: signals of presence, the decision, the forecast, and windows."""

from metaclaw.schedule.build import build_windows, read_calendars
from metaclaw.schedule.byhand import HandOpened
from metaclaw.schedule.facts import facts_of
from metaclaw.schedule.inputs import try_inputs
from metaclaw.schedule.share import SharedTime
from metaclaw.schedule.signals.traffic import Traffic
from metaclaw.schedule.windows import Windows

__all__ = ["HandOpened", "SharedTime", "Traffic", "Windows", "build_windows", "facts_of", "read_calendars", "try_inputs"]
