"""Machine load: reasons not to train although the user is away (battery, metered network, other
programs, heat).

Unreadable values are ignored: a machine without a battery or a temperature sensor may train.
"""

import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Final

import anyio

from metaclaw.config import ScheduleConfig

_LOOK_EVERY_S: Final = 10.0
# Values outside of this range come from a broken sensor.
_COLDEST_C: Final = 1.0
_HOTTEST_C: Final = 130.0


@dataclass(eq=False)
class MachineLoad:
    """Checks the machine every few seconds, in a thread; calls `hear` on changes. `trains_here`: no
    service does the training.
    """

    limits: ScheduleConfig
    _: KW_ONLY
    trains_here: bool = True
    hear: Callable[[], object] = lambda: None
    is_metered: Callable[[], Awaitable[bool | None]] | None = None
    system: Path = Path("/sys")
    processes: Path = Path("/proc")
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep

    def __post_init__(self) -> None:
        self._load = OthersLoad(self.processes)
        self.objections: Sequence[str] = ()
        """Reasons not to use the machine, as of the last check."""

    async def follow(self) -> None:
        """Check the machine for ever."""
        while True:
            await self.look()
            await self.sleep(_LOOK_EVERY_S)

    async def look(self) -> None:
        """Check once."""
        found = tuple(await anyio.to_thread.run_sync(lambda: list(self._here())))
        if (
            not (self.trains_here or self.limits.on_metered)
            and self.is_metered is not None
            and await self.is_metered()
        ):
            found = (*found, "the network is metered")
        if found != self.objections:
            self.objections = found
            self.hear()

    def _here(self) -> Iterator[str]:
        if not self.trains_here:
            return
        if not self.limits.on_battery and is_on_battery(self.system):
            yield "on battery"
        load = self._load.look()
        if self.limits.max_load and load is not None and load > self.limits.max_load:
            yield "others use the processor"
        hottest = temperature_c(self.system)
        if (
            self.limits.max_temperature_c
            and hottest is not None
            and hottest > self.limits.max_temperature_c
        ):
            yield "the machine is hot"


def is_on_battery(system: Path) -> bool | None:
    """Whether the machine runs on battery; None if it has none, or if unknown."""
    supplies = [(_text(one / "type"), one) for one in _entries(system / "class" / "power_supply")]
    if any(kind in ("Mains", "USB") and _text(one / "online") == "1" for kind, one in supplies):
        return False
    batteries = [
        one for kind, one in supplies if kind == "Battery" and _text(one / "scope") != "Device"
    ]
    if not batteries:
        return None
    return any(_text(one / "status") == "Discharging" for one in batteries)


def temperature_c(system: Path) -> float | None:
    """The highest temperature of all sensors, or None."""
    texts = [
        _text(zone / "temp")
        for zone in _entries(system / "class" / "thermal")
        if zone.name.startswith("thermal_zone")
    ]
    degrees = [int(text) / 1000 for text in texts if text.lstrip("-").isdigit()]
    return max((value for value in degrees if _COLDEST_C < value < _HOTTEST_C), default=None)


@dataclass(eq=False)
class OthersLoad:
    """Measures the processor use of other programs between two calls, without this process (`root`)
    and its descendants.
    """

    processes: Path
    _: KW_ONLY
    root: int = field(default_factory=os.getpid)
    cores: int = field(default_factory=lambda: os.cpu_count() or 1)
    clock: Callable[[], float] = time.monotonic
    _seen: tuple[float, float, float] | None = field(default=None, init=False)

    def look(self) -> float | None:
        """Cores used by others as a share of all cores; None at the first call, or if the kernel
        does not report it.
        """
        busy = _busy_s(self.processes)
        if busy is None:
            return None
        now = self.clock(), busy, self._own_s()
        before, self._seen = self._seen, now
        if before is None or now[0] - before[0] < 0.5:
            return None
        others_s = (now[1] - before[1]) - max(0.0, now[2] - before[2])
        return max(0.0, others_s / (now[0] - before[0]) / self.cores)

    def _own_s(self) -> float:
        """Processor time of this process and its descendants."""
        parents, spent = {}, {}
        for one in _entries(self.processes):
            if one.name.isdigit():
                fields = _text(one / "stat").rpartition(")")[2].split()
                if len(fields) > 13:
                    parents[int(one.name)] = int(fields[1])
                    spent[int(one.name)] = (int(fields[11]) + int(fields[12])) / _TICKS
        return sum(seconds for number, seconds in spent.items() if self._is_ours(number, parents))

    def _is_ours(self, number: int, parents: dict[int, int]) -> bool:
        for _ in range(64):
            if number == self.root:
                return True
            number = parents.get(number, 0)
            if number <= 1:
                return False
        return False


_TICKS: Final = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def _busy_s(processes: Path) -> float | None:
    """Processor time spent by all processes."""
    first = _text(processes / "stat").partition("\n")[0].split()
    if len(first) < 9 or first[0] != "cpu":
        return None
    user, nice, system, _, _, irq, soft, steal = (int(text) for text in first[1:9])
    return (user + nice + system + irq + soft + steal) / _TICKS


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
