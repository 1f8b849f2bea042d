"""A bell on macOS: powerd posts a notification when it finds that the person has left or is back. No rights are needed to hear it.

It is one of notify(3) and comes through a file descriptor, so that nothing of ours is called from a foreign thread. For powerd
somebody has left after five minutes without input, or when the display sleeps; the first input afterwards is told.
"""

import asyncio
import ctypes
import os
import sys
from typing import Final, Protocol, cast

from metaclaw.schedule.signals.asking import is_rung
from metaclaw.schedule.signals.inactivity import SignalError

_NAME: Final = b"com.apple.system.powermanagement.useractivity2"
_STATUS_OK: Final = 0


class Notify(Protocol):
    """The two calls of libSystem."""

    def notify_register_file_descriptor(self, name: bytes, descriptor: ctypes.c_int, flags: int, token: ctypes.c_int, /) -> int:
        """Have a token written to a new descriptor whenever the name is posted; 0 where that is so."""

    def notify_cancel(self, token: int, /) -> int:
        """Listen no more; closes the descriptor."""


class PowerdBell:
    """Rings when powerd posts a change. `notify` is libSystem."""

    def __init__(self, notify: Notify | None = None) -> None:
        self._notify = notify
        self._descriptor, self._token = -1, -1
        self._rung = asyncio.Event()
        self._is_armed = False

    @property
    def is_heard(self) -> bool:
        """Whether the descriptor is open."""
        return self._descriptor >= 0

    async def begin(self) -> None:
        """Register. Raises SignalError where this is no Mac, or it refuses."""
        self._notify = _load() if self._notify is None else self._notify
        descriptor, token = ctypes.c_int(-1), ctypes.c_int(-1)
        status = self._notify.notify_register_file_descriptor(_NAME, descriptor, 0, token)
        if status != _STATUS_OK:
            raise SignalError(f"macOS does not tell of its person (notify status {status})")
        self._descriptor, self._token, self._is_armed = descriptor.value, token.value, False
        os.set_blocking(self._descriptor, False)
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)

    async def rings(self, within_s: float) -> bool:
        """Whether something was posted since it was armed; waits for it at most so long."""
        if not self._is_armed:
            self._rung.clear()
            self._is_armed = True
        has_rung = await is_rung(self._rung, within_s)
        self._is_armed = not has_rung
        return has_rung

    def disarm(self) -> None:
        """What is posted meanwhile is not news."""
        self._is_armed = False

    def end(self) -> None:
        """Listen no more."""
        if self.is_heard and self._notify is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            self._notify.notify_cancel(self._token)
            self._descriptor = -1

    def _read(self) -> None:
        """Tokens are of no interest: there is only one name. An end of the stream means that nobody will post any more."""
        if os.read(self._descriptor, 4096):
            self._rung.set()
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
    raise SignalError("this is no Mac")
