"""An event as every kind of calendar tells it, and the question and answer between the program and the child that reads."""

from dataclasses import dataclass
from datetime import datetime

import msgspec

from metaclaw.errors import MetaClawError


class CalendarError(MetaClawError):
    """A calendar cannot be read: the owner corrects its address, its password or its file. Until then it says nothing."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that takes the person's time. Free, cancelled and declined events are left out by whoever reads."""

    begins: datetime
    ends: datetime
    title: str


class Google(msgspec.Struct, frozen=True):
    """Where Google is; tests have one of their own."""

    api: str = "https://www.googleapis.com/calendar/v3"
    token: str = "https://oauth2.googleapis.com/token"
    consent: str = "https://accounts.google.com/o/oauth2/v2/auth"


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What to read. Secrets travel through a pipe, never on a command line."""

    kind: str
    begins: datetime
    ends: datetime
    zone: str | None
    url: str = ""
    user: str | None = None
    password: str | None = None
    client_id: str = ""
    client_secret: str = ""
    calendar: str = "primary"
    token_file: str = ""
    google: Google = Google()
    needs_titles: bool = False
    timeout_s: float = 10.0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The events, or why there are none."""

    events: list[Event] = []
    trouble: str | None = None
