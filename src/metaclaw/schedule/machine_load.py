"""Machine load: reasons not to train although the user is away (battery, metered network, other programs, heat).

What cannot be read is no reason: a machine without a battery or a temperature sensor may train.
"""

import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final

import anyio

from metaclaw.config import ScheduleConfig

_LOOK_EVERY_S: Final = 10.0
# A sensor that says less or more than this is broken.
_COLDEST_C: Final = 1.0
_HOTTEST_C: Final = 130.0


@dataclass(eq=False)
class MachineLoad:
    """Checks the machine every few seconds, in a thread; `hear` is called when the objections have changed. `trains_here` is set if
    this machine does the work, not a service."""

    limits: ScheduleConfig
    _: KW_ONLY
    trains_here: bool = True
    hear: Callable[[], None] = lambda: None
    is_metered: Callable[[], Awaitable[bool | None]] | None = None
    system: Path = Path("/sys")
    processes: Path = Path("/proc")
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep

    def __post_init__(self) -> None:
        self._load = OthersLoad(self.processes)
        self.objections: Sequence[str] = ()
        """Reasons not to use the machine, as of the last check."""

    async def follow(self) -> None:
        """Check for ever."""
        while True:
            await self.look()
            await self.sleep(_LOOK_EVERY_S)

    async def look(self) -> None:
        """Check once."""
        found = tuple(await anyio.to_thread.run_sync(lambda: list(self._here())))
        if not (self.trains_here or self.limits.on_metered) and self.is_metered is not None and await self.is_metered():
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
        if self.limits.max_temperature_c and hottest is not None and hottest > self.limits.max_temperature_c:
            yield "the machine is hot"


def is_on_battery(system: Path) -> bool | None:
    """Whether the machine runs on battery; None without one, or if unknown."""
    supplies = [(_text(one / "type"), one) for one in _entries(system / "class" / "power_supply")]
    if any(kind in ("Mains", "USB") and _text(one / "online") == "1" for kind, one in supplies):
        return False
    batteries = [one for kind, one in supplies if kind == "Battery" and _text(one / "scope") != "Device"]
    if not batteries:
        return None
    return any(_text(one / "status") == "Discharging" for one in batteries)


def temperature_c(system: Path) -> float | None:
    """The highest temperature of all sensors, or None."""
    told = [_text(zone / "temp") for zone in _entries(system / "class" / "thermal") if zone.name.startswith("thermal_zone")]
    degrees = [int(text) / 1000 for text in told if text.lstrip("-").isdigit()]
    return max((one for one in degrees if _COLDEST_C < one < _HOTTEST_C), default=None)


class OthersLoad:
    """Processor use of other programs between two calls: neither this process nor its children."""

    def __init__(
        self,
        processes: Path,
        *,
        root: int | None = None,
        cores: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._processes = processes
        self._root = os.getpid() if root is None else root
        self._cores = cores or os.cpu_count() or 1
        self._clock = clock
        self._seen: tuple[float, float, float] | None = None

    def look(self) -> float | None:
        """Cores used by others as a share of all cores; None at the first call and if the kernel does not tell."""
        busy = _busy_s(self._processes)
        if busy is None:
            return None
        now = self._clock(), busy, self._own_s()
        before, self._seen = self._seen, now
        if before is None or now[0] - before[0] < 0.5:
            return None
        others_s = (now[1] - before[1]) - max(0.0, now[2] - before[2])
        return max(0.0, others_s / (now[0] - before[0]) / self._cores)

    def _own_s(self) -> float:
        """Processor time of this process and its descendants."""
        parents, spent = {}, {}
        for one in _entries(self._processes):
            if one.name.isdigit():
                fields = _text(one / "stat").rpartition(")")[2].split()
                if len(fields) > 13:
                    parents[int(one.name)] = int(fields[1])
                    spent[int(one.name)] = (int(fields[11]) + int(fields[12])) / _TICKS
        return sum(seconds for number, seconds in spent.items() if self._is_ours(number, parents))

    def _is_ours(self, number: int, parents: dict[int, int]) -> bool:
        for _ in range(64):
            if number == self._root:
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
