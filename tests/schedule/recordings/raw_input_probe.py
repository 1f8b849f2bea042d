"""Run by a Python for Windows, under Wine: uses the bell of raw input as the program does, and says on its output what to press.

Only the modules of the signals are loaded; what they want of the rest of the program is not used here.
"""
# ruff: noqa: T201

import asyncio
import sys
import threading
import types
from pathlib import Path

SRC = Path(sys.argv[1]) / "metaclaw"
for name, folder in (("metaclaw", SRC), ("metaclaw.schedule", SRC / "schedule")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [str(folder)]
sys.modules["metaclaw.config"] = types.ModuleType("metaclaw.config")
sys.modules["metaclaw.config"].__dict__["replace_file"] = None

from metaclaw.schedule.signals.raw_input import RawInputBell  # noqa: E402
from metaclaw.schedule.signals.windows_os import _ask, ticks_between_s, windows_input  # noqa: E402


class Printed:
    """A report that says what it hears."""

    def input(self) -> None: ...

    def idle(self, seconds: float) -> None:
        say("answered", f"{seconds:.3f}")

    def lock(self, is_locked: bool) -> None: ...

    def ask_again_s(self) -> float:
        return 0.5


def say(*words: object) -> None:
    print(*words, flush=True)


async def rings(bell: RawInputBell, press: str, within_s: float) -> None:
    """Arm it, have something pressed, and say whether it rang and how long ago the input then was."""
    await bell.rings(0.3)
    say("press", press)
    is_rung = await bell.rings(within_s)
    say("rang" if is_rung else "silent", f"{ticks_between_s(*_ask()):.3f}")


async def main() -> None:
    bell = RawInputBell()
    await bell.begin()
    for press in ("key", "mouse", "key"):
        await rings(bell, press, 30.0)
    await rings(bell, "nothing", 2.0)
    bell.disarm()
    say("press", "mouse")
    await asyncio.sleep(2.0)
    await rings(bell, "nothing", 2.0)
    bell.end()
    say("threads", *(one.name for one in threading.enumerate() if one.name == "raw-input"))
    source = windows_input()
    followed = asyncio.create_task(source.follow(Printed()))
    while "asked" in source.name:
        await asyncio.sleep(0.01)
    say("named", source.name)
    followed.cancel()
    await asyncio.wait([followed])
    say("named", source.name)


asyncio.run(main())
