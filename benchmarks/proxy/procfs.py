"""What Linux knows about processes: processor time and memory of a whole tree, and how busy the
rest of the machine is.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command's name, which may itself hold blanks and
    brackets.
    """
    text = (_PROC / str(pid) / "stat").read_text()
    return text[text.rindex(")") + 2 :].split()


def process_tree(root: int) -> list[int]:
    """The process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                children.setdefault(int(_stat_fields(int(entry.name))[1]), []).append(
                    int(entry.name)
                )
            except (OSError, ValueError):
                continue  # it ended between listing and reading
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def cpu_s(root: int) -> float:
    """Processor seconds used so far by a process tree, ended and reaped children included."""
    ticks = 0
    for pid in process_tree(root):
        try:
            ticks += sum(int(field) for field in _stat_fields(pid)[11:15])
        except (OSError, ValueError):
            continue
    return ticks / _TICKS_PER_S


def pss_mb(root: int) -> float:
    """Proportional set size of a process tree: shared pages are counted once."""
    kilobytes = 0
    for pid in process_tree(root):
        try:
            lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kilobytes / 1024


def _busy_s() -> float:
    values = [int(field) for field in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle, waiting, stolen = values[3], values[4], values[7]
    return (sum(values) - idle - waiting - stolen) / _TICKS_PER_S


@dataclass(frozen=True, slots=True)
class Usage:
    """A moment's reading; two of them say what happened between."""

    at: float
    busy_s: float
    ours_s: float
    target_s: float

    @classmethod
    def now(cls, target: int | None) -> "Usage":
        return cls(
            time.monotonic(), _busy_s(), cpu_s(os.getpid()), cpu_s(target) if target else 0.0
        )

    def foreign_since(self, before: "Usage") -> float:
        """Cores that processes outside this benchmark kept busy in between."""
        elapsed = max(self.at - before.at, 1e-6)
        return max(0.0, (self.busy_s - before.busy_s - (self.ours_s - before.ours_s)) / elapsed)


def wait_for_quiet(patience_s: float, limit_cores: float = 0.3) -> None:
    """Waits until others leave the machine alone, or patience ends."""
    give_up = time.monotonic() + patience_s
    while time.monotonic() < give_up:
        before = Usage.now(None)
        time.sleep(0.2)
        if Usage.now(None).foreign_since(before) <= limit_cores:
            return
