"""When the slow loop may run: signals of presence, the decision, the forecast, and windows."""

from metaclaw.schedule.byhand import HandOpened

__all__ = ["HandOpened"]
