"""Keyboard, mouse and network of a desktop: the entry point `desktop` of `metaclaw.presence`."""

import os
import sys

from metaclaw.schedule import InputSource
from metaclaw_desktop.screen import MacInput, is_wayland, swayidle_input, x11_input

__version__ = "0.1.0"


def input_sources() -> list[InputSource]:
    """What reports keyboard and mouse on this system."""
    if sys.platform == "darwin":
        return [MacInput()]
    from metaclaw_desktop.dbus import GnomeInput, LogindInput

    found: list[InputSource] = [LogindInput()]
    # Under Wayland the X server sees only the input of its own windows.
    if is_wayland():
        found += [GnomeInput(), swayidle_input()]
    elif os.environ.get("DISPLAY"):
        found.append(x11_input())
    return found


async def is_metered() -> bool | None:
    """Whether the network is metered; None if the system does not say."""
    if sys.platform == "darwin":
        return None
    from metaclaw_desktop.dbus import Metered

    return await Metered()()
