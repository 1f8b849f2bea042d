"""Print the idle time of an X display in milliseconds: every few seconds, and at once when a key or
the mouse ends a silence.

This file is run as a process of its own, because Xlib ends its process when the server goes away
and waits for ever while the server hangs. It imports nothing of the program."""

import ctypes
import select
import sys

# The alarm fires when the idle time falls below this: then there was input.
_ALARM_MS = 200
_PRINT_EVERY_S = 5.0
_ALL_ATTRIBUTES = 0x3F
_NEGATIVE_TRANSITION = 1


class _Value(ctypes.Structure):
    _fields_ = (("high", ctypes.c_int), ("low", ctypes.c_uint))


class _Counter(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("id", ctypes.c_ulong), ("resolution", _Value))


class _Alarm(ctypes.Structure):
    """XSyncAlarmAttributes."""

    _fields_ = (
        ("counter", ctypes.c_ulong),
        ("value_type", ctypes.c_int),
        ("value", _Value),
        ("test", ctypes.c_int),
        ("delta", _Value),
        ("events", ctypes.c_int),
        ("state", ctypes.c_int),
    )


def main() -> None:
    """Print until the server or the reader goes away."""
    try:
        x11, ext = ctypes.CDLL("libX11.so.6"), ctypes.CDLL("libXext.so.6")
    except OSError as error:
        sys.exit(f"the libraries of X11 cannot be loaded ({error})")
    x11.XOpenDisplay.restype = ctypes.c_void_p
    ext.XSyncListSystemCounters.restype = ctypes.POINTER(_Counter)
    display, number, idle = ctypes.c_void_p(x11.XOpenDisplay(None)), ctypes.c_int(), _Value()
    if not display:
        sys.exit("the X display cannot be reached")
    ext.XSyncQueryExtension(display, ctypes.byref(ctypes.c_int()), ctypes.byref(ctypes.c_int()))
    ext.XSyncInitialize(display, ctypes.byref(ctypes.c_int()), ctypes.byref(ctypes.c_int()))
    counters = ext.XSyncListSystemCounters(display, ctypes.byref(number))
    counter = next((one.id for one in counters[: number.value] if one.name == b"IDLETIME"), None)
    if counter is None:
        sys.exit("the X server does not report its idle time (IDLETIME)")
    alarm = _Alarm(counter, 0, _Value(0, _ALARM_MS), _NEGATIVE_TRANSITION, _Value(0, 0), 1, 0)
    ext.XSyncCreateAlarm(display, ctypes.c_ulong(_ALL_ATTRIBUTES), ctypes.byref(alarm))
    event = ctypes.create_string_buffer(24 * ctypes.sizeof(ctypes.c_long))
    while True:
        ext.XSyncQueryCounter(display, ctypes.c_ulong(counter), ctypes.byref(idle))
        # 0 would mean that the input goes on.
        sys.stdout.write(f"{max(1, (idle.high << 32) + idle.low)}\n")
        sys.stdout.flush()
        if not x11.XPending(display):
            select.select([x11.XConnectionNumber(display)], [], [], _PRINT_EVERY_S)
        while x11.XPending(display):
            x11.XNextEvent(display, event)


if __name__ == "__main__":
    main()
