"""`[schedule]`: how to recognise that the user is away, so that weights may be trained."""

import re
from dataclasses import dataclass
from datetime import time
from typing import Annotated, Literal, TypeAlias
from zoneinfo import ZoneInfo

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from metaclaw.config.section import Names, Seconds, Secret, Section, home_of

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_RANGE = re.compile(r"(?:(?P<days>[a-z,-]+) )?(?P<begins>\d{1,2}:\d\d)-(?P<ends>\d{1,2}:\d\d)")
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")
_HOW = 'is no range of hours; write "23:00-07:00", or "mon-fri 23:00-07:00" or "sat,sun 00:00-10:00" for some days'

# What each kind needs, and what is another kind's.
_KEYS_OF_CALENDAR = {
    "ics": (("url",), ("client_id", "client_secret")),
    "caldav": (("url",), ("client_id", "client_secret")),
    "google": (("client_id", "client_secret"), ("url", "user", "password")),
}

Minutes: TypeAlias = Annotated[float, Field(gt=0, le=10_080, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class SleepRange:
    """Hours of the day, on the weekdays on which they begin (Monday is 0). An end that is not after the beginning is on the next
    day."""

    days: frozenset[int]
    begins: time
    ends: time


def sleep_range(text: str) -> SleepRange:
    """Parse a range such as `22:00-07:00`. Raises NoRangeError if it is no range, ValueError for invalid hours."""
    match = _RANGE.fullmatch(text.strip().lower())
    if match is None:
        raise NoRangeError(_HOW)
    begins, ends = _clock(match["begins"]), _clock("0:00" if match["ends"] == "24:00" else match["ends"])
    if begins == ends and match["ends"] != "24:00":
        raise ValueError("begins when it ends; write 00:00-24:00 for the whole day")
    return SleepRange(_days(match["days"]), begins, ends)


class NoRangeError(ValueError):
    """The text is not a range of hours."""


def _clock(text: str) -> time:
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise ValueError(f"has {text}, which is no time of day; hours go from 00:00 to 24:00")
    return time(int(match[1]), int(match[2]))


def _days(text: str | None) -> frozenset[int]:
    if text is None:
        return frozenset(range(7))
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first not in DAYS or (last or first) not in DAYS:
            raise NoRangeError(f"has {part!r}, which is no weekday; write {', '.join(DAYS)}, or two of them with - between")
        begins, ends = DAYS.index(first), DAYS.index(last or first)
        found |= {day % 7 for day in range(begins, ends + 1 if ends >= begins else ends + 8)}
    return frozenset(found)


class CalendarConfig(Section):
    """One calendar. While it says busy you are away, unless a rule says otherwise."""

    kind: Literal["ics", "caldav", "google"] = Field(description="An iCalendar file or feed, a CalDAV server, Google Calendar.")
    url: Secret | None = Field(
        default=None,
        description="ics: the file's whole path or its address; caldav: the calendar's address. Masked, since a private feed's "
        "address is a secret. google: none.",
        examples=["https://example.org/me.ics"],
    )
    user: str | None = Field(default=None, min_length=1, description="User name, for caldav and protected feeds.", examples=["ada"])
    password: Secret | None = Field(default=None, description="The user's password.", examples=["env:CALENDAR_PASSWORD"])
    client_id: str | None = Field(
        default=None, min_length=1, description="google: the OAuth client's id.", examples=["…apps.googleusercontent.com"]
    )
    client_secret: Secret | None = Field(
        default=None, description="google: the OAuth client's secret.", examples=["env:GOOGLE_SECRET"]
    )
    calendar: str = Field(default="primary", min_length=1, description="google: which of the account's calendars.")
    refresh_minutes: Minutes = Field(default=15.0, description="How often it is read anew.")
    timeout_s: Seconds = Field(
        default=10.0, description="How long reading it may take; a calendar that cannot be read says nothing."
    )

    @field_validator("url", mode="before")
    @classmethod
    def _is_a_place(cls, value: object, known: ValidationInfo) -> object:
        if not isinstance(value, str) or value.startswith(("env:", "file:")):
            return value
        place = value.replace("{home}", str(home_of(known)))
        if not place.startswith(("http://", "https://")) and (known.data.get("kind") != "ics" or not place.startswith(("/", "~"))):
            raise PydanticCustomError(
                "calendar_url", "is neither an http:// or https:// address nor (for ics) the whole path of a file"
            )
        return place

    @model_validator(mode="after")
    def _is_whole(self) -> "CalendarConfig":
        needed, foreign = _KEYS_OF_CALENDAR[self.kind]
        facts = {"kind": f'"{self.kind}"'}
        for name in needed:
            if getattr(self, name) is None:
                raise PydanticCustomError("calendar_needs", "needs {name} for kind = {kind}", {"name": name, **facts})
        for name in foreign:
            if getattr(self, name) is not None:
                raise PydanticCustomError(
                    "calendar_other", "has {name}, which does not belong to kind = {kind}", {"name": name, **facts}
                )
        if self.password is not None and self.user is None:
            raise PydanticCustomError("calendar_user", "has password, and so needs user")
        return self


class RuleConfig(Section):
    """What events with some words in their title mean; the first rule that fits counts."""

    title: str = Field(
        description="Words in the title of an event, in capitals or not.", min_length=1, examples=["pairing with agent"]
    )
    means: Literal["away", "present", "nothing"] = Field(
        description="What such an event says about you; `nothing` ignores it.", examples=["present"]
    )


class ScheduleConfig(Section):
    """When weights may be trained, with `policy.mode = "auto"`: something says that you are away, nothing that you are there."""

    sleep: Names = Field(
        default=("23:00-07:00",),
        description='Hours in which you sleep. For some days only: "mon-fri 23:00-07:00", "sat,sun 00:00-10:00"; the day is that '
        "on which they begin.",
    )
    timezone: str | None = Field(
        default=None, description="Time zone of these hours. Default: that of this machine.", examples=["Europe/Vienna"]
    )
    idle_minutes: Minutes = Field(default=30.0, description="Without a key, a mouse or a main turn for this long you are away.")
    min_window_minutes: Minutes = Field(default=1.0, description="A window that is expected to be shorter is not opened.")
    cooldown_minutes: float = Field(
        default=1.0, ge=0, le=1440, allow_inf_nan=False, description="How long after a window was shut the next one may open."
    )
    calendars: Annotated[tuple[CalendarConfig, ...], Field(strict=False)] = Field(
        default=(),
        description='Calendars: busy means away. A list such as `[{ kind = "ics", url = "/home/me/me.ics" }]`, or tables '
        "`[[schedule.calendars]]`.",
    )
    rules: Annotated[tuple[RuleConfig, ...], Field(strict=False)] = Field(
        default=(), description='What events mean by their title, such as `[{ title = "pairing with agent", means = "present" }]`.'
    )
    on_battery: bool = Field(default=False, description="Train on this machine while it runs on battery.")
    on_metered: bool = Field(default=False, description="Train on a service while the network is metered.")
    max_load: float = Field(
        default=0.7,
        ge=0,
        le=64,
        allow_inf_nan=False,
        description="Load of other programs on each core, above which this machine does not train; 0 for no limit.",
    )
    max_temperature_c: float = Field(
        default=85.0,
        ge=0,
        le=150,
        allow_inf_nan=False,
        description="Degrees Celsius above which this machine does not train; 0 for no limit.",
    )

    @field_validator("sleep")
    @classmethod
    def _are_hours(cls, ranges: tuple[str, ...]) -> tuple[str, ...]:
        """Invalid hours (25:00) do not stop the program: they are reported, and the signal is unknown until they are corrected."""
        for text in ranges:
            try:
                sleep_range(text)
            except NoRangeError as error:
                raise PydanticCustomError("sleep", "has {text}, which {why}", {"text": f'"{text}"', "why": str(error)}) from error
            except ValueError:
                continue
        return ranges

    @field_validator("timezone")
    @classmethod
    def _is_a_place(cls, name: str | None) -> str | None:
        if name is not None and not _is_zone(name):
            raise PydanticCustomError("timezone", "is not the name of a time zone")
        return name

    @property
    def sleep_ranges(self) -> tuple[SleepRange, ...]:
        """The valid sleep hours."""
        return tuple(one for one in (_possible(text)[0] for text in self.sleep) if one is not None)

    @property
    def sleep_trouble(self) -> str | None:
        """Which hours are invalid, and why; None if all are valid."""
        return next((f'"{text}" {why}' for text in self.sleep if (why := _possible(text)[1])), None)


def _possible(text: str) -> tuple[SleepRange | None, str | None]:
    """The range, or why it is invalid."""
    try:
        return sleep_range(text), None
    except ValueError as error:
        return None, str(error)


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # a name that is no path, a folder, an unknown name
        return False
    return True
