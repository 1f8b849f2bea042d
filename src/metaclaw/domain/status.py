"""How the program is: states shown to a person, each with its reason."""

from dataclasses import dataclass
from enum import StrEnum


class Health(StrEnum):
    """Healthy, or serving with something broken."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """Whether turns are being kept, and if not, since when, why, and how many were lost or wait in memory."""

    health: Health
    reason: str | None
    waiting_turns: int
    lost_turns: int
    notice: str | None = None
    """What happened to the store that a person should know although it works again."""


@dataclass(frozen=True, slots=True)
class StoreSize:
    """Bytes of the database, how many of them are free, its limit, and how many sessions were removed for that since the start."""

    size_bytes: int
    free_bytes: int
    max_bytes: int | None
    removed_sessions: int


@dataclass(frozen=True, slots=True)
class SkippedSkill:
    """A skill file that could not be read, and why."""

    path: str
    reason: str
