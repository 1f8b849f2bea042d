"""Enter the house where only its heavy part is installed, and there the rooms too that the house rules do not use.

`skills.evolve` opens with modules that need anyio, `bench.agent` with such as speak HTTP; the gate waits for checks in a thread.
Where a library is missing, packages are entered without running their `__init__`, and a stand-in that waits for nothing takes the
place of anyio; every module behind is the product's own.
"""

import importlib.util
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import ModuleType
from typing import Final, TypeVar

import metaclaw
from benchmarks.house_rules.doors import open_doors as open_front_doors

Result = TypeVar("Result")

_ROOMS: Final = ("skills", "skills.evolve", "skills.gate", "bench.agent")


def open_doors() -> tuple[str, ...]:
    """Make the modules this benchmark uses importable, and say which libraries are missing. Call it before importing them."""
    missing = open_front_doors()
    if "anyio" not in sys.modules and importlib.util.find_spec("anyio") is None:
        missing = (*missing, "anyio")
        _stand_in()
    if missing:
        for room in _ROOMS:
            _enter_sideways(room)
    return missing


def _enter_sideways(room: str) -> None:
    package = ModuleType(f"metaclaw.{room}")
    package.__path__ = [str(Path(metaclaw.__path__[0], *room.split(".")))]
    sys.modules.setdefault(package.__name__, package)


def _stand_in() -> None:
    anyio, to_thread = ModuleType("anyio"), ModuleType("anyio.to_thread")
    vars(to_thread).update(run_sync=_run_sync)
    vars(anyio).update(run=_run, to_thread=to_thread)
    sys.modules |= {"anyio": anyio, "anyio.to_thread": to_thread}


async def _run_sync(function: Callable[..., Result], *given: object) -> Result:
    return function(*given)


def _run(function: Callable[..., Coroutine[None, None, Result]], *given: object) -> Result:
    waiting = function(*given)
    try:
        waiting.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise RuntimeError("something waits that nobody will wake; install anyio")
