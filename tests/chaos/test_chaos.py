"""Something fails while people work: a process, the machine, the database, the provider, the clock.

Each episode is drawn from a number, which is printed: `METACLAW_CHAOS=17` repeats that one alone,
`METACLAW_CHAOS=0-999` (`make chaos EPISODES=0-999`) runs a thousand."""

import errno
import os
import random
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from tests.chaos.world import Crowd, World, check_invariants
from tests.e2e.test_faults import OwnProcess
from tests.support.depth import tries
from tests.support.faults import FailingCalls, limit_files, limit_memory


@dataclass
class Stage:
    """The worlds of a run: one whose processes start quickly, one whose calls can fail."""

    quick: World
    failing: World
    calls: FailingCalls


Fault = Callable[[Stage, float], None]
"""Causes a fault, lets it last for seconds, and ends it."""


def _pid(world: World) -> int:
    assert world.program.process is not None
    return world.program.process.pid


def _children(pid: int) -> list[int]:
    """The processes that a process started, and those that they started."""
    with suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").iterdir()
        own = [int(one) for task in tasks for one in (task / "children").read_text().split()]
        return [*own, *(grandchild for child in own for grandchild in _children(child))]
    return []


def _restart(world: World) -> None:
    world.program.kill()
    world.program.start()


def proxy_killed(stage: Stage, for_s: float) -> None:
    _restart(stage.quick)


def proxy_killed_twice(stage: Stage, for_s: float) -> None:
    _restart(stage.quick)
    time.sleep(for_s / 4)
    _restart(stage.quick)


def proxy_stopped(stage: Stage, for_s: float) -> None:
    os.kill(_pid(stage.quick), signal.SIGSTOP)
    time.sleep(for_s)
    os.kill(_pid(stage.quick), signal.SIGCONT)


def children_killed(stage: Stage, for_s: float) -> None:
    for pid in _children(_pid(stage.quick)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def children_stopped(stage: Stage, for_s: float) -> None:
    stopped = _children(_pid(stage.quick))
    for pid in stopped:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    time.sleep(for_s)
    for pid in stopped:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def database_locked(stage: Stage, for_s: float) -> None:
    with closing(sqlite3.connect(stage.quick.program.home / "ledger.db", timeout=20)) as other:
        other.isolation_level = None
        other.execute("BEGIN IMMEDIATE")
        time.sleep(for_s)
        other.execute("ROLLBACK")


def database_deleted(stage: Stage, for_s: float) -> None:
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        (stage.quick.program.home / name).unlink(missing_ok=True)
    time.sleep(for_s)


def skills_folder_lost(stage: Stage, for_s: float) -> None:
    subprocess.run(["rm", "-rf", str(stage.quick.program.home / "skills")], check=True)
    time.sleep(for_s)


def clock_ahead(stage: Stage, for_s: float) -> None:
    stage.quick.clock.set_ahead(timedelta(days=3))
    time.sleep(for_s)
    stage.quick.clock.set_ahead(timedelta(0))


def clock_behind(stage: Stage, for_s: float) -> None:
    stage.quick.clock.set_ahead(timedelta(hours=-5))
    time.sleep(for_s)
    stage.quick.clock.set_ahead(timedelta(0))


def _provider(mood: str) -> Fault:
    def fault(stage: Stage, for_s: float) -> None:
        stage.quick.provider.mood = mood
        time.sleep(for_s)
        stage.quick.provider.mood = ""

    fault.__name__ = f"provider {mood}"
    return fault


def disk_full(stage: Stage, for_s: float) -> None:
    stage.calls.set(files=errno.ENOSPC)
    time.sleep(for_s)
    stage.calls.set()


def disk_read_only(stage: Stage, for_s: float) -> None:
    stage.calls.set(files=errno.EROFS)
    time.sleep(for_s)
    stage.calls.set()


def disk_broken(stage: Stage, for_s: float) -> None:
    stage.calls.set(files=errno.EIO)
    time.sleep(for_s)
    stage.calls.set()


def disk_slow(stage: Stage, for_s: float) -> None:
    """Every write and flush takes 50 ms, some commits half a second."""
    stage.calls.set(slow_ms=50)
    time.sleep(for_s)
    stage.calls.set()


def no_processes(stage: Stage, for_s: float) -> None:
    stage.calls.set(processes=errno.ENOMEM)
    time.sleep(for_s)
    stage.calls.set()


def no_files(stage: Stage, for_s: float) -> None:
    limit_files(_pid(stage.failing), 3)
    time.sleep(for_s)
    limit_files(_pid(stage.failing), None)


def no_memory(stage: Stage, for_s: float) -> None:
    limit_memory(_pid(stage.failing), 0)
    time.sleep(for_s)
    limit_memory(_pid(stage.failing), None)


MACHINE: Final = (
    disk_full,
    disk_read_only,
    disk_broken,
    no_processes,
    no_files,
    no_memory,
    disk_slow,
)
MOODS: Final = (
    "hangs",
    "resets",
    "is overloaded",
    "answers nonsense",
    "breaks off",
    "never ends",
)
FAULTS: Final[tuple[Fault, ...]] = (
    proxy_killed,
    proxy_killed_twice,
    proxy_stopped,
    children_killed,
    children_stopped,
    database_locked,
    database_deleted,
    skills_folder_lost,
    clock_ahead,
    clock_behind,
    *map(_provider, MOODS),
    *MACHINE,
)


def wanted_episodes(usual: Sequence[int]) -> list[int]:
    """Those that are asked for, else the usual ones."""
    wanted = os.environ.get("METACLAW_CHAOS")
    if wanted is None:
        return list(usual)
    first, _, last = wanted.partition("-")
    return list(range(int(first), int(last or first) + 1))


def _fault(number: int) -> Fault:
    """In turn, so that as many episodes as there are faults have each once."""
    return FAULTS[number % len(FAULTS)]


def _episodes() -> list[int]:
    """Each fault once. Among these memory does not run out: Python may then wait for ever for a
    thread that it starts, which `make chaos` shows once in a while."""
    rounds = tries(1, nightly=5)
    return [number for number in range(rounds * len(FAULTS)) if _fault(number) is not no_memory]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("chaos")
    (folder / "quick").mkdir()
    (folder / "failing").mkdir()
    calls = FailingCalls(folder / "failing" / "home", folder / "control")
    quick = World(folder / "quick")
    failing = World(folder / "failing", OwnProcess, **calls.env)
    yield Stage(quick, failing, calls)
    quick.close()
    failing.close()


@pytest.mark.slow
@pytest.mark.parametrize("number", wanted_episodes(_episodes()))
def test_whatever_fails_all_invariants_hold_afterwards(stage: Stage, number: int) -> None:
    dice = random.Random(f"episode {number}")
    fault = _fault(number)
    world = stage.failing if fault in MACHINE else stage.quick
    before_s, for_s = dice.uniform(0, 0.6), dice.uniform(0.1, 1.5)
    print(f"episode {number}: {fault.__name__} after {before_s:.2f} s for {for_s:.2f} s")  # noqa: T201
    crowd = Crowd(world.program, str(number))
    crowd.start()
    try:
        time.sleep(before_s)
        fault(stage, for_s)
        time.sleep(0.2)
    finally:
        crowd.stop()
    check_invariants(world, crowd)
