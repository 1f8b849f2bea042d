"""Every way in which input may be noticed on this system, and whether each can be heard now."""

import os
import sys
from collections.abc import Sequence
from typing import Final

import anyio

from metaclaw.schedule.signals.asking import ToldOrAsked
from metaclaw.schedule.signals.inactivity import ASK_OPEN_S, SignalError, Source

_TRY_S: Final = 3.0


def input_sources() -> list[Source]:
    """Every way in which input may be noticed on this system."""
    if sys.platform == "darwin":
        from metaclaw.schedule.signals.macos import mac_input

        return [mac_input()]
    return _linux_sources()


def _linux_sources() -> list[Source]:
    from metaclaw.schedule.signals.tty import TtyInput
    from metaclaw.schedule.signals.wayland import WaylandInput, socket_path
    from metaclaw.schedule.signals.x11 import X11Input

    found: list[Source] = [TtyInput()]
    wayland = None if socket_path() is None else WaylandInput()
    if os.environ.get("DISPLAY") and wayland is None:
        # Under Wayland the X server sees only what goes to its own windows.
        found.append(X11Input())
    try:
        from metaclaw.schedule.signals.desktops import GnomeInput, ScreenSaverInput
        from metaclaw.schedule.signals.logind import LogindInput
    except SignalError:
        # Without the desktop extra nobody speaks D-Bus.
        return found if wayland is None else [*found, wayland]
    has_bus = bool(os.environ.get("DBUS_SESSION_BUS_ADDRESS"))
    if wayland is not None:
        found += [ToldOrAsked(wayland, ScreenSaverInput()), GnomeInput()] if has_bus else [wayland]
    return [*found, LogindInput(os.getuid())]


def try_inputs(sources: Sequence[Source] | None = None) -> list[tuple[str, str | None]]:
    """Listen to every source for a moment: its name, and why it cannot be heard, if it cannot. Blocks."""
    tried = list(input_sources() if sources is None else sources)
    names: dict[int, str] = {}
    troubles: dict[int, str] = {}

    async def listen(place: int, source: Source) -> None:
        word = _FirstWord()
        with anyio.move_on_after(_TRY_S):
            async with anyio.create_task_group() as group:

                async def follow() -> None:
                    try:
                        await source.follow(word)
                    except SignalError as error:
                        troubles[place] = str(error)
                    word.come.set()

                group.start_soon(follow)
                await word.come.wait()
                names[place] = source.name  # as long as it is listened to: it says whether it tells
                group.cancel_scope.cancel()

    async def listen_to_all() -> None:
        async with anyio.create_task_group() as group:
            for place, source in enumerate(tried):
                group.start_soon(listen, place, source)

    anyio.run(listen_to_all)
    return [(names.get(place, source.name), troubles.get(place)) for place, source in enumerate(tried)]


class _FirstWord:
    """A report that only notes that something was said."""

    def __init__(self) -> None:
        self.come = anyio.Event()

    def input(self) -> None:
        """A key or the mouse."""
        self.come.set()

    def idle(self, seconds: float) -> None:
        """The last input was so long ago."""
        self.come.set()

    def lock(self, is_locked: bool) -> None:
        """The screen was locked, or unlocked."""
        self.come.set()

    def ask_again_s(self) -> float:
        """Often: the first answer may take two."""
        return ASK_OPEN_S
