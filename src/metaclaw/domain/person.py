"""The holder of a key: who it is, what they may do, and how much they may use."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
_RESERVED: Final = ("home", "owner", "everyone")
_USED: Final = ("requests", "tokens", "money")
PERIODS: Final = ("min", "hour", "day", "month")


class KeyRole(StrEnum):
    """An owner sees and changes everything, a member what is theirs; a reader sees what is theirs.
    All of them may use agents."""

    OWNER = "owner"
    MEMBER = "member"
    READER = "reader"


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that a person may use of something in a period of the calendar."""

    used: str
    most: float
    period: str

    def __str__(self) -> str:
        return f"{self.used}={self.most:g}/{self.period}"


@dataclass(frozen=True, slots=True)
class Person:
    """Whom a key belongs to. Their name is the user of their turns. `mark` is not secret and
    changes with the key."""

    name: str
    role: KeyRole = KeyRole.MEMBER
    team: str | None = None
    speaks_for_others: bool = False
    """Whether `X-User-Id` counts in requests with this key."""
    limits: tuple[Limit, ...] = ()
    mark: str = ""

    @property
    def is_owner(self) -> bool:
        return self.role is KeyRole.OWNER


HOME: Final = Person("home", KeyRole.OWNER, speaks_for_others=True)
"""The holder of the key in `config.toml`."""


def name_fault(name: str) -> str | None:
    """What is wrong with the name of a key, or None."""
    if name in _RESERVED:
        return f"{name} is the name of something else; choose another one"
    if not _NAME.fullmatch(name):
        return f"{name!r} is not the name of a key: write letters, digits and . _ @ + -, at most 64"
    return None


def parse_limits(text: str) -> tuple[Limit, ...]:
    """The limits in `requests=60/min,money=50/month`. Raises ValueError."""
    found: dict[tuple[str, str], Limit] = {}
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        used, _, rest = piece.partition("=")
        number, _, period = rest.partition("/")
        try:
            most = float(number)
        except ValueError:
            most = -1
        if used not in _USED or period not in PERIODS or not 0 <= most < float("inf"):
            raise ValueError(
                f"{piece!r} is not a limit: write one like requests=60/min, tokens=1e6/day or"
                f" money=50/month ({', '.join(_USED)} per {', '.join(PERIODS)})"
            )
        found[used, period] = Limit(used, most, period)
    return tuple(found.values())


def render_limits(limits: Iterable[Limit]) -> str:
    return ",".join(map(str, limits))


def period_of(instant: datetime, period: str) -> tuple[datetime, datetime]:
    """The beginning and end of the period that an instant is in, in its own time zone."""
    begin = instant.replace(second=0, microsecond=0)
    if period == "min":
        return begin, begin + timedelta(minutes=1)
    begin = begin.replace(minute=0)
    if period == "hour":
        return begin, begin + timedelta(hours=1)
    begin = begin.replace(hour=0)
    if period == "day":
        return begin, begin + timedelta(days=1)
    begin = begin.replace(day=1)
    return begin, (begin + timedelta(days=32)).replace(day=1)
