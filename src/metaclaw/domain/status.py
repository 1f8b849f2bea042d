"""Facts shown to a person: the health of the program, the size of its store, and what its calls to models cost."""

from dataclasses import dataclass, fields
from enum import StrEnum
from operator import add, attrgetter
from typing import Final


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


SERVED: Final = "serve"
"""The purpose under which the main turns of agents are counted, beside the purposes of the program's own calls."""
ENFORCED: Final = "enforce"
"""The purpose of requests that ask a provider again because a call broke a held rule. They belong to an agent's turn, so they are
neither traffic of agents nor learning."""


@dataclass(frozen=True, slots=True)
class SpendingKey:
    """What a sum is about. `day` is `YYYY-MM-DD` in local time, `model` is `provider/model`, `item` the skill or rule, or empty."""

    day: str
    purpose: str
    model: str
    item: str = ""


@dataclass(frozen=True, slots=True)
class Spending:
    """A sum of calls. `input_tokens` includes the cached ones.

    `turns` are the turns the calls were about; `estimated` the calls whose provider did not say how many tokens they took;
    `unpriced_tokens` the tokens of models without a price, which `cost` leaves out.
    """

    turns: int = 0
    calls: int = 0
    failures: int = 0
    estimated: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    unpriced_tokens: int = 0
    cost: float = 0.0

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Spending") -> "Spending":
        return Spending(*map(add, _values(self), _values(other)))


# dataclasses.astuple copies every value deeply, which took most of the time of counting many turns.
_values = attrgetter(*(field.name for field in fields(Spending)))
