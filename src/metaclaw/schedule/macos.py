"""Input on macOS: HIDIdleTime of `ioreg`, polled, and at once when powerd reports that the user is back.

powerd posts a notification (notify(3)) through a file descriptor; no rights are needed. It counts the user as away after five
minutes without input, or when the display sleeps, and reports the first input after that.
"""

import asyncio
import ctypes
import os
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, cast

import anyio

from metaclaw.schedule.input import InputWakeup, PolledSource, SignalError, Sleep, has_fired

_NAME: Final = b"com.apple.system.powermanagement.useractivity2"
_STATUS_OK: Final = 0


class Notify(Protocol):
    """The two calls of libSystem."""

    def notify_register_file_descriptor(self, name: bytes, descriptor: ctypes.c_int, flags: int, token: ctypes.c_int, /) -> int:
        """Have a token written to a new descriptor whenever the name is posted; returns 0 on success."""

    def notify_cancel(self, token: int, /) -> int:
        """Stop listening and close the descriptor."""


class PowerdWakeup:
    """Fires when powerd posts a change. `notify` is libSystem."""

    def __init__(self, notify: Notify | None = None) -> None:
        self._notify = notify
        self._descriptor, self._token = -1, -1
        self._fired = asyncio.Event()
        self._is_armed = False

    @property
    def is_heard(self) -> bool:
        """Whether the descriptor is open."""
        return self._descriptor >= 0

    async def begin(self) -> None:
        """Register. Raises SignalError if this is not a Mac, or if it refuses."""
        self._notify = _load() if self._notify is None else self._notify
        descriptor, token = ctypes.c_int(-1), ctypes.c_int(-1)
        status = self._notify.notify_register_file_descriptor(_NAME, descriptor, 0, token)
        if status != _STATUS_OK:
            raise SignalError(f"macOS does not report user activity (notify status {status})")
        self._descriptor, self._token, self._is_armed = descriptor.value, token.value, False
        os.set_blocking(self._descriptor, False)
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)

    async def fires(self, within_s: float) -> bool:
        """Wait at most `within_s`; return whether something was posted since it was armed."""
        if not self._is_armed:
            self._fired.clear()
            self._is_armed = True
        was_fired = await has_fired(self._fired, within_s)
        self._is_armed = not was_fired
        return was_fired

    def disarm(self) -> None:
        self._is_armed = False

    def end(self) -> None:
        if self.is_heard and self._notify is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            self._notify.notify_cancel(self._token)
            self._descriptor = -1

    def _read(self) -> None:
        """Discard the tokens, because there is only one name. The end of the stream ends the wakeup."""
        if os.read(self._descriptor, 4096):
            self._fired.set()
        else:
            self.end()


def _load() -> Notify:
    if sys.platform == "darwin":
        library = ctypes.CDLL("/usr/lib/libSystem.B.dylib")
        number = ctypes.POINTER(ctypes.c_int)
        library.notify_register_file_descriptor.argtypes = [ctypes.c_char_p, number, ctypes.c_int, number]
        library.notify_register_file_descriptor.restype = ctypes.c_uint32
        library.notify_cancel.argtypes = [ctypes.c_int]
        library.notify_cancel.restype = ctypes.c_uint32
        return cast(Notify, library)
    raise SignalError("this is not a Mac")


# -r starts at the object itself, because its depth below the root differs from system to system.
_COMMAND: Final = ("/usr/sbin/ioreg", "-r", "-c", "IOHIDSystem", "-d", "1")
# powerd counts the user as away after five minutes; its delay is not documented.
_REPORTS_AFTER_S: Final = 310.0
_IDLE: Final = re.compile(rb'"HIDIdleTime"\s*=\s*(?P<nanoseconds>\d+)')

Run = Callable[[Sequence[str]], Awaitable[bytes]]


def mac_input(run: Run | None = None, *, wakeup: InputWakeup | None = None, sleep: Sleep = anyio.sleep) -> PolledSource:
    """The source of input on a Mac. Its `follow` raises SignalError if this is not a Mac, or if ioreg fails."""
    running = _run if run is None else run

    async def ask() -> float:
        return parse_idle_s(await running(_COMMAND))

    return PolledSource("macOS", ask, PowerdWakeup() if wakeup is None else wakeup, reports_after_s=_REPORTS_AFTER_S, sleep=sleep)


def parse_idle_s(printed: bytes) -> float:
    """Seconds since the last input, from the output of ioreg; of several devices, the one used last. Raises SignalError."""
    idle_ns = [int(match["nanoseconds"]) for match in _IDLE.finditer(printed)]
    if not idle_ns:
        raise SignalError("ioreg does not report the idle time of the keyboard")
    return min(idle_ns) / 1e9


async def _run(command: Sequence[str]) -> bytes:
    try:
        return (await anyio.run_process(list(command), check=False)).stdout
    except OSError as error:
        raise SignalError(f"ioreg cannot be run ({error.strerror})") from error
