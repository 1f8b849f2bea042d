"""A bell on Windows: raw input of the keyboard and the mouse, wherever it goes, is told to a window that nobody sees.

It is asked for only while nobody is there, and the first message ends that, so that neither a thousand movements a second nor what
is typed comes here. What was pressed is never read: GetRawInputData is not called. A thread of its own waits for the messages.
"""

import asyncio
import ctypes
import threading
from collections.abc import Callable
from typing import Final

from metaclaw.schedule.signals.asking import is_rung
from metaclaw.schedule.signals.inactivity import SignalError
from metaclaw.schedule.signals.user32 import Handle, Message, RawInputDevice, User32, load_user32

_GENERIC_DESKTOP, _MOUSE, _KEYBOARD = 1, 2, 6
_INPUT_SINK, _REMOVE = 0x100, 0x1
_MESSAGE_ONLY: Final = -3
_WM_INPUT: Final = 0xFF
_ARM, _DISARM, _END = 0x8001, 0x8002, 0x8003
_ENDS_WITHIN_S: Final = 1.0


class RawInputBell:
    """Rings at the first message of raw input after it was armed. `user32` is the DLL."""

    def __init__(self, user32: User32 | None = None) -> None:
        self._user32 = user32
        self._pump: _Pump | None = None
        self._rung = asyncio.Event()
        self._is_armed = False
        self.is_heard = False

    async def begin(self) -> None:
        """Start the thread that waits for messages. Raises SignalError where this is not Windows, or it refuses."""
        loop, begun = asyncio.get_running_loop(), asyncio.Event()
        self._pump = _Pump(
            load_user32() if self._user32 is None else self._user32,
            begun=lambda: loop.call_soon_threadsafe(begun.set),
            told=lambda is_told: loop.call_soon_threadsafe(self._hear, is_told),
        )
        self._pump.start()
        await begun.wait()
        if not self._pump.can_be_told:
            raise SignalError("Windows does not let this program be told of input")
        self.is_heard, self._is_armed = True, False

    async def rings(self, within_s: float) -> bool:
        """Whether there was a message since it was armed; waits for it at most so long."""
        if not self._is_armed:
            self._rung.clear()
            self._is_armed = True
            self._post(_ARM)
        has_rung = await is_rung(self._rung, within_s)
        self._is_armed = not has_rung
        return has_rung

    def disarm(self) -> None:
        """Nothing shall be told while somebody is there."""
        if self._is_armed:
            self._is_armed = False
            self._post(_DISARM)

    def end(self) -> None:
        """End the thread, which takes back what it asked for."""
        self.is_heard = False
        if self._pump is not None:
            self._pump.end()
            self._pump = None

    def _hear(self, is_told: bool) -> None:
        if is_told:
            self._rung.set()
        else:
            self.is_heard = False

    def _post(self, message: int) -> None:
        if self._pump is not None:
            self._pump.post(message)


class _Pump:
    """The thread. It makes all calls but PostMessage, since a window belongs to the thread that made it."""

    def __init__(self, user32: User32, *, begun: Callable[[], object], told: Callable[[bool], object]) -> None:
        self._user32, self._begun, self._told = user32, begun, told
        self._window: Handle = None
        self._is_armed, self._must_end, self.can_be_told = False, False, False
        self._thread = threading.Thread(target=self._run, name="raw-input", daemon=True)

    def start(self) -> None:
        """Begin; `begun` is called as soon as it is known whether it can be told."""
        self._thread.start()

    def post(self, message: int) -> None:
        """Say something to the thread."""
        if self._window:
            self._user32.PostMessageW(self._window, message, 0, 0)

    def end(self) -> None:
        """End the thread. One that is still making its window sees that it must."""
        self._must_end = True
        self.post(_END)
        self._thread.join(_ENDS_WITHIN_S)

    def _run(self) -> None:
        self._window = self._user32.CreateWindowExW(0, "STATIC", None, 0, 0, 0, 0, 0, _MESSAGE_ONLY, None, None, None)
        self.can_be_told = bool(self._window) and self._arm() and self._disarm()
        self._begun()
        if self.can_be_told and not self._must_end:
            self._wait()
            if not self._must_end:
                self._told(False)
        if self._window:
            self._user32.DestroyWindow(self._window)

    def _wait(self) -> None:
        found = Message()
        while self._user32.GetMessageW(found, None, 0, 0) > 0 and found.message != _END:
            if found.message == _WM_INPUT and self._is_armed:
                self._disarm()
                self._told(True)
            elif found.message == _ARM and not self._arm():
                self._told(False)
            elif found.message == _DISARM:
                self._disarm()
            # It frees what came with the input.
            self._user32.DefWindowProcW(found.window, found.message, found.word, found.long)
        self._disarm()

    def _arm(self) -> bool:
        self._is_armed = self._register(_INPUT_SINK, self._window)
        return self._is_armed

    def _disarm(self) -> bool:
        """Taking back names no window; one that did would be refused."""
        was_armed, self._is_armed = self._is_armed, False
        return not was_armed or self._register(_REMOVE, None)

    def _register(self, flags: int, window: Handle) -> bool:
        kinds = [RawInputDevice(_GENERIC_DESKTOP, usage, flags, window) for usage in (_MOUSE, _KEYBOARD)]
        devices = (RawInputDevice * len(kinds))(*kinds)
        return bool(self._user32.RegisterRawInputDevices(devices, len(kinds), ctypes.sizeof(RawInputDevice)))
