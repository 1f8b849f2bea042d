"""Optional libraries that a configuration needs and that are not installed."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from metaclaw.config import Config

CALENDAR_REMEDY: Final = "pip install 'metaclaw-proxy[calendar]'"
_CALENDAR: Final = {"icalendar": "icalendar", "recurring_ical_events": "recurring-ical-events"}


def missing_for_calendars(config: "Config") -> list[str]:
    """Packages that calendars of this configuration need and that are not installed. Google's needs none."""
    if all(calendar.kind == "google" for calendar in config.schedule.calendars):
        return []
    return [package for module, package in _CALENDAR.items() if find_spec(module) is None]
