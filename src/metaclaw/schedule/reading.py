"""What a signal says: the person is away, or present, or it cannot tell. Unknown is never away."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol


class Presence(StrEnum):
    """Where the person is, as far as one signal can tell."""

    AWAY = "away"
    PRESENT = "present"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Reading:
    """One signal's word, why in a few words for people, and until when it will hold if nothing happens; None: nobody knows.

    `is_trouble` says that it is unknown because something is wrong that a person could put right.
    """

    presence: Presence
    why: str
    until: datetime | None = None
    is_trouble: bool = False


@dataclass(frozen=True, slots=True)
class Named:
    """A reading with the name of the signal it comes from."""

    signal: str
    reading: Reading


class Signal(Protocol):
    """Something that may know where the person is. `read` never raises and never blocks: trouble is an unknown reading."""

    @property
    def name(self) -> str: ...
    def read(self, now: datetime) -> Reading: ...


class Followed(Signal, Protocol):
    """A signal that must be running to know: `follow` keeps it up to date until it is cancelled."""

    async def follow(self) -> None: ...
