"""What a run found, as plain records that go to JSON and come back."""

from dataclasses import dataclass, field
from pathlib import Path

import msgspec


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution; None where nothing was measured."""

    n: int
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None


@dataclass(frozen=True, slots=True)
class LoadOutput:
    """The one line that `load` or `streams` prints."""

    ok: int
    bad: int
    broken: int
    unfinished: int
    seconds: float
    rps: float
    latency_us: Spread
    tokens: int | None = None
    first_us: Spread | None = None
    relay_us: Spread | None = None
    tokens_per_read: Spread | None = None

    @property
    def failed(self) -> int:
        return self.bad + self.broken + self.unfinished


@dataclass(frozen=True, slots=True)
class Slot:
    """One target under one load for a few seconds, and how much others used the machine
    meanwhile.
    """

    target: str
    suite: str
    round: int
    load: LoadOutput
    cpu_us: float
    foreign_cores: float


@dataclass(frozen=True, slots=True)
class Start:
    """A cold start in a fresh home: until the first good answer."""

    target: str
    round: int
    healthy_s: float
    cpu_s: float
    pss_mb: float
    foreign_cores: float


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """Memory of a target after so many requests; `when` is start, requests, before-overload,
    overload-peak or drained.
    """

    target: str
    when: str
    requests: int
    pss_mb: float


@dataclass(slots=True)
class Run:
    """Everything one run measured, with what is needed to judge and repeat it."""

    facts: dict[str, str]
    skills: int
    slots: list[Slot] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    memory: list[MemoryPoint] = field(default_factory=list)
    skills_placed: dict[str, int] = field(default_factory=dict)
    answered: int = 0
    recorded: int | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def targets(self) -> list[str]:
        """Names in the order of the first round."""
        return list(
            dict.fromkeys(
                [slot.target for slot in self.slots] + [start.target for start in self.starts]
            )
        )


def save(run: Run, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")


def load(path: Path) -> Run:
    return msgspec.json.decode(path.read_bytes(), type=Run)
