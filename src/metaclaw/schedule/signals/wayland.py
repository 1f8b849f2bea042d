"""Input idle under Wayland: the compositor tells when each seat falls idle and when it is used again; nothing is polled meanwhile.

Two protocols say it: ext-idle-notify, and KDE's own from before, which older compositors have. A few messages of the wire are
spoken here: words of 32 bits over a unix socket, without any descriptors, so that no library is needed.
"""

import asyncio
import os
import struct
import sys
from pathlib import Path
from typing import Final, NamedTuple

from metaclaw.schedule.signals.input import InputReport, NotOfferedError, SignalError

_IDLE_AFTER_S: Final = 1.0
_LOOK_EVERY_S: Final = 5.0
_ANSWER_WITHIN_S: Final = 5.0
# Words are in the order of the machine.
_ORDER: Final = "<" if sys.byteorder == "little" else ">"
_DISPLAY, _REGISTRY, _CALLBACK, _FIRST_FREE = 1, 2, 3, 4
_SYNC, _GET_REGISTRY, _BIND = 0, 1, 0
_ERROR, _GLOBAL, _GLOBAL_REMOVE = 0, 0, 1
_IDLED, _RESUMED = 0, 1
_SEAT, _NOTIFIER, _KDE = "wl_seat", "ext_idle_notifier_v1", "org_kde_kwin_idle"
# What keeps a screen awake (a film) keeps a seat from being idle, unless only input is asked for, as the second version can.
_GET_NOTIFICATION, _GET_INPUT_NOTIFICATION, _GET_TIMEOUT = 1, 2, 0


class WaylandInput:
    """A source of input. `idle_after_s` is the silence after which a seat counts as idle: what is heard at once ends one."""

    name = "input (Wayland)"
    hears_all = True
    tells_after_s = 0.0

    def __init__(
        self, path: Path | None = None, *, idle_after_s: float = _IDLE_AFTER_S, look_every_s: float = _LOOK_EVERY_S
    ) -> None:
        self._path = path
        self._idle_after_s = idle_after_s
        self._look_every_s = look_every_s

    async def follow(self, report: InputReport) -> None:
        """Report input as it happens. Raises SignalError where there is no compositor, NotOfferedError where it does not tell."""
        path = self._path or socket_path()
        if path is None:
            raise SignalError("there is no Wayland compositor")
        try:
            reader, writer = await asyncio.open_unix_connection(str(path))
        except OSError as error:
            raise SignalError(f"the Wayland compositor at {path} cannot be reached ({error.strerror or error})") from error
        try:
            await self._listen(_Compositor(reader, writer, self._idle_after_s), report)
        except (OSError, EOFError, TimeoutError, struct.error) as error:
            raise SignalError("the Wayland compositor has gone") from error
        finally:
            writer.close()

    async def _listen(self, compositor: "_Compositor", report: InputReport) -> None:
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            await compositor.begin()
        while True:
            was_idle = compositor.is_idle
            try:
                async with asyncio.timeout(None if was_idle else self._look_every_s):
                    is_used = await compositor.next_change()
            except TimeoutError:
                is_used = True  # a seat that has not fallen idle meanwhile is in use
            if is_used:
                report.input()
            elif compositor.is_idle and not was_idle:
                report.idle(self._idle_after_s)


class _Message(NamedTuple):
    """An event of the compositor: object id, opcode and payload."""

    to: int
    event: int
    body: bytes


class _Compositor:
    """A connection. Objects are numbered by us; each seat has one that tells when it is idle."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, idle_after_s: float) -> None:
        self._reader, self._writer = reader, writer
        self._idle_after_ms = max(1, round(idle_after_s * 1000))
        self._come = b""
        self._next_id = _FIRST_FREE
        self._globals: dict[int, tuple[str, int]] = {}
        self._notifier: tuple[int, int] | None = None
        self._seats: dict[int, int] = {}
        self._idle: dict[int, bool] = {}

    @property
    def is_idle(self) -> bool:
        """Whether every seat is."""
        return all(self._idle.values())

    async def begin(self) -> None:
        """Learn what the compositor has, and ask to be told of every seat. Raises SignalError."""
        self._send(_DISPLAY, _GET_REGISTRY, _word(_REGISTRY))
        self._send(_DISPLAY, _SYNC, _word(_CALLBACK))
        while (message := await self._next()).to != _CALLBACK:
            self._note(message)
        offered = {interface: (name, version) for name, (interface, version) in self._globals.items()}
        if _NOTIFIER in offered:
            name, version = offered[_NOTIFIER]
            version = min(2, version)
            request = _GET_NOTIFICATION if version == 1 else _GET_INPUT_NOTIFICATION
            self._notifier = self._bind(name, _NOTIFIER, version), request
        elif _KDE in offered:
            self._notifier = self._bind(offered[_KDE][0], _KDE, 1), _GET_TIMEOUT
        else:
            raise NotOfferedError("the Wayland compositor does not report idle time (it has no ext-idle-notify)")
        for name, (interface, _) in self._globals.items():
            if interface == _SEAT:
                self._watch(name)
        self._needs_a_seat()

    async def next_change(self) -> bool:
        """Wait until a seat falls idle or is used; whether it is used."""
        while True:
            message = await self._next()
            if message.to in self._idle and message.event in (_IDLED, _RESUMED):
                self._idle[message.to] = message.event == _IDLED
                return message.event == _RESUMED
            self._note(message)

    def _note(self, message: _Message) -> None:
        """Things come and go; an error is the last thing that is said."""
        if message.to == _DISPLAY and message.event == _ERROR:
            text, _ = _text(message.body, 8)
            raise SignalError(f"the Wayland compositor refuses ({text})")
        if message.to == _REGISTRY and message.event == _GLOBAL:
            (name,) = _unpacked("I", message.body)
            interface, place = _text(message.body, 4)
            (version,) = _unpacked("I", message.body, place)
            self._globals[name] = interface, version
            if interface == _SEAT and self._notifier is not None:
                self._watch(name)
        elif message.to == _REGISTRY and message.event == _GLOBAL_REMOVE:
            (name,) = _unpacked("I", message.body)
            self._globals.pop(name, None)
            if (told_by := self._seats.pop(name, None)) is not None:
                del self._idle[told_by]
                self._needs_a_seat()

    def _watch(self, name: int) -> None:
        """Ask to be told when this seat is idle."""
        assert self._notifier is not None
        notifier, request = self._notifier
        seat, told_by = self._bind(name, _SEAT, 1), self._new_id()
        is_kde = request == _GET_TIMEOUT
        seat_and_time = (seat, self._idle_after_ms) if is_kde else (self._idle_after_ms, seat)
        self._send(notifier, request, _word(told_by) + b"".join(map(_word, seat_and_time)))
        self._seats[name], self._idle[told_by] = told_by, False

    def _needs_a_seat(self) -> None:
        if not self._idle:
            raise SignalError("the Wayland compositor has no seat")

    def _bind(self, name: int, interface: str, version: int) -> int:
        ours = self._new_id()
        self._send(_REGISTRY, _BIND, _word(name) + _string(interface) + _word(version) + _word(ours))
        return ours

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _send(self, to: int, request: int, body: bytes) -> None:
        self._writer.write(struct.pack(f"{_ORDER}II", to, (8 + len(body)) << 16 | request) + body)

    async def _next(self) -> _Message:
        to, size_and_event = _unpacked("II", await self._front(8))
        size = size_and_event >> 16
        if size < 8:
            raise SignalError("what listens there does not speak Wayland")
        body = (await self._front(size))[8:]
        self._come = self._come[size:]
        return _Message(to, size_and_event & 0xFFFF, body)

    async def _front(self, size: int) -> bytes:
        """Wait for so many bytes without consuming them, so that a cancelled reader loses nothing."""
        while len(self._come) < size:
            more = await self._reader.read(65_536)
            if not more:
                raise EOFError
            self._come += more
        return self._come[:size]


def socket_path() -> Path | None:
    """Where the compositor of this session listens; None where this is no session of Wayland.

    Who came over the network has no session of their own; the one of the desktop, if there is one, has the usual name.
    """
    name, runtime = os.environ.get("WAYLAND_DISPLAY"), os.environ.get("XDG_RUNTIME_DIR")
    if name and name.startswith("/"):
        return Path(name)
    if not runtime or (not name and os.environ.get("DISPLAY")):
        return None
    path = Path(runtime, name or "wayland-0")
    return path if name or path.is_socket() else None


def _unpacked(kinds: str, body: bytes, place: int = 0) -> tuple[int, ...]:
    return struct.unpack_from(f"{_ORDER}{kinds}", body, place)


def _word(number: int) -> bytes:
    return struct.pack(f"{_ORDER}I", number)


def _string(text: str) -> bytes:
    """Its length with the zero that ends it, and the text in whole words."""
    content = text.encode() + b"\0"
    return _word(len(content)) + content + b"\0" * (-len(content) % 4)


def _text(body: bytes, place: int) -> tuple[str, int]:
    """The string at this place, and where what follows begins."""
    (length,) = _unpacked("I", body, place)
    begin = place + 4
    return body[begin : begin + max(0, length - 1)].decode("utf-8", "replace"), begin + (length + 3) // 4 * 4
