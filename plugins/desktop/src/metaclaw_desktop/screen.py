"""Keyboard and mouse of a desktop, reported by its own programs: Xlib under X11, swayidle under
Wayland, ioreg on macOS.

GNOME reports them over D-Bus (see `dbus`).
"""

import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from metaclaw.schedule import InputReport, SignalError, Sleep, poll_input

_LOOK_EVERY_S: Final = 5.0
_X11: Final = (sys.executable, "-I", "-S", str(Path(__file__).with_name("x11_idle.py")))
# The shell ends swayidle when standard input is closed, also if the program was killed. The user's
# own commands are not read.
_SWAYIDLE: Final = (
    "sh",
    "-c",
    (
        "command -v swayidle >/dev/null || { echo swayidle is not installed >&2; exit 1; }; exec"
        " 3<&0; (read _ <&3; kill $$) >/dev/null 2>&1 & exec swayidle -C /dev/null timeout 1 'echo"
        " 1000' resume 'echo 0' 3<&-"
    ),
)


class PrintedInput:
    """A program that prints the milliseconds since the last input, each on a line. After 0 the
    input lasts until the next line.
    """

    hears_all = True
    is_screen = True

    def __init__(
        self,
        system: str,
        command: Sequence[str],
        variables: Mapping[str, str] | None = None,
        *,
        look_every_s: float = _LOOK_EVERY_S,
    ) -> None:
        self.name = f"input ({system})"
        self._command = command
        self._look_every_s = look_every_s
        self._variables = variables or {}

    async def follow(self, report: InputReport) -> None:
        """Report what the program prints. Raises SignalError when it ends."""
        command, variables = list(self._command), {**os.environ, **self._variables}
        async with await anyio.open_process(
            command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=variables
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            lines, idle_ms = BufferedByteReceiveStream(process.stdout), 0
            try:
                while True:
                    with anyio.move_on_after(self._look_every_s) as waited:
                        idle_ms = int(await lines.receive_until(b"\n", 100))
                    if idle_ms == 0 or not waited.cancelled_caught:
                        report.idle(idle_ms / 1000)
            except (anyio.IncompleteRead, ValueError):
                said = [chunk async for chunk in process.stderr]
                raise SignalError(
                    b"".join(said).decode(errors="replace").strip() or "its program has ended"
                ) from None


def x11_input(variables: Mapping[str, str] | None = None) -> PrintedInput:
    """Input under X11, by event."""
    return PrintedInput("X11", _X11, variables)


def swayidle_input(variables: Mapping[str, str] | None = None) -> PrintedInput:
    """Input under Wayland compositors with `ext-idle-notify` or KDE's older protocol, by event,
    where swayidle is installed.
    """
    return PrintedInput("Wayland", _SWAYIDLE, variables)


def is_wayland() -> bool:
    """Whether there is a Wayland compositor. In a service no variable names it, so the usual socket
    is looked for.
    """
    if os.environ.get("WAYLAND_DISPLAY") or os.environ.get("DISPLAY"):
        return bool(os.environ.get("WAYLAND_DISPLAY"))
    return Path(os.environ.get("XDG_RUNTIME_DIR", "/nowhere"), "wayland-0").is_socket()


# -r starts at the object itself, because its depth below the root differs from system to system.
_IOREG: Final = ("/usr/sbin/ioreg", "-r", "-c", "IOHIDSystem", "-d", "1")
_IDLE: Final = re.compile(rb'"HIDIdleTime"\s*=\s*(?P<nanoseconds>\d+)')

Run = Callable[[Sequence[str]], Awaitable[bytes]]


class MacInput:
    """Input on macOS: HIDIdleTime of `ioreg`, polled."""

    name = "input (macOS, asked)"
    hears_all = True
    is_screen = True

    def __init__(self, run: Run | None = None, *, sleep: Sleep = anyio.sleep) -> None:
        self._run = _run if run is None else run
        self._sleep = sleep

    async def follow(self, report: InputReport) -> None:
        """Poll for ever. Raises SignalError without an answer."""

        async def ask() -> float:
            return parse_idle_s(await self._run(_IOREG))

        await poll_input(ask, report, sleep=self._sleep)


def parse_idle_s(printed: bytes) -> float:
    """Seconds since the last input, from the output of ioreg; of several devices, the one used
    last. Raises SignalError.
    """
    idle_ns = [int(match["nanoseconds"]) for match in _IDLE.finditer(printed)]
    if not idle_ns:
        raise SignalError("ioreg does not report the idle time of the keyboard")
    return min(idle_ns) / 1e9


async def _run(command: Sequence[str]) -> bytes:
    try:
        return (await anyio.run_process(list(command), check=False)).stdout
    except OSError as error:
        raise SignalError(f"ioreg cannot be run ({error.strerror})") from error
