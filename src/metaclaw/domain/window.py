"""A window: a stretch of time in which the slow loop may use the machine."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Window:
    """Opened for a reason; `until` is when it is expected to end, None if unknown."""

    opened: datetime
    reason: str
    until: datetime | None = None
