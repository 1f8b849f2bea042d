"""The few calls of Windows' user32.dll that tell of raw input, by their own names, and the structures that go with them."""
# ruff: noqa: N802

import ctypes
import sys
from typing import Protocol, cast

from metaclaw.schedule.signals.inactivity import SignalError

Handle = int | None


class RawInputDevice(ctypes.Structure):
    """RAWINPUTDEVICE: which devices, and which window is told."""

    _fields_ = (
        ("page", ctypes.c_uint16),
        ("usage", ctypes.c_uint16),
        ("flags", ctypes.c_uint32),
        ("target", ctypes.c_void_p),
    )


class Message(ctypes.Structure):
    """MSG."""

    _fields_ = (
        ("window", ctypes.c_void_p),
        ("message", ctypes.c_uint32),
        ("word", ctypes.c_size_t),
        ("long", ctypes.c_ssize_t),
        ("time", ctypes.c_uint32),
        ("x", ctypes.c_int32),
        ("y", ctypes.c_int32),
    )


class User32(Protocol):
    """The calls. Structures are given themselves; ctypes makes pointers of them."""

    def CreateWindowExW(
        self,
        extended: int,
        kind: str,
        title: str | None,
        style: int,
        x: int,
        y: int,
        width: int,
        height: int,
        parent: Handle,
        menu: Handle,
        instance: Handle,
        extra: Handle,
        /,
    ) -> Handle: ...
    def RegisterRawInputDevices(self, devices: ctypes.Array[RawInputDevice], number: int, size: int, /) -> int: ...
    def GetMessageW(self, message: Message, window: Handle, first: int, last: int, /) -> int: ...
    def PostMessageW(self, window: Handle, message: int, word: int, long: int, /) -> int: ...
    def DefWindowProcW(self, window: Handle, message: int, word: int, long: int, /) -> int: ...
    def DestroyWindow(self, window: Handle, /) -> int: ...


def load_user32() -> User32:
    """The DLL itself. Raises SignalError where this is not Windows."""
    if sys.platform == "win32":
        number, natural, handle, text = ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_wchar_p
        user32 = ctypes.WinDLL("user32")
        user32.CreateWindowExW.argtypes = [natural, text, text, natural, *4 * [number], *4 * [handle]]
        user32.CreateWindowExW.restype = handle
        user32.RegisterRawInputDevices.argtypes = [ctypes.POINTER(RawInputDevice), natural, natural]
        user32.GetMessageW.argtypes = [ctypes.POINTER(Message), handle, natural, natural]
        user32.PostMessageW.argtypes = [handle, natural, ctypes.c_size_t, ctypes.c_ssize_t]
        user32.DefWindowProcW.argtypes = [handle, natural, ctypes.c_size_t, ctypes.c_ssize_t]
        user32.DefWindowProcW.restype = ctypes.c_ssize_t
        user32.DestroyWindow.argtypes = [handle]
        return cast(User32, user32)
    raise SignalError("this is not Windows")
