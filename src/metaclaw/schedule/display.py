"""Input under X11 and Wayland. Both servers report the first input after a silence; nothing is polled meanwhile.

Wayland has two protocols for it: ext-idle-notify, and KDE's older one. Only a few messages of X11 and Wayland are needed, so they
are implemented here; Xlib would end the whole process when its server goes away.
"""

import asyncio
import os
import re
import socket
import struct
import sys
from pathlib import Path
from typing import Final, NamedTuple

from metaclaw.schedule.input import InputReport, NotOfferedError, SignalError

_IDLE_AFTER_S: Final = 1.0
_LOOK_EVERY_S: Final = 5.0
_ANSWER_WITHIN_S: Final = 5.0
# Words have the byte order of the machine.
_ORDER: Final = "<" if sys.byteorder == "little" else ">"
_WAYLAND_DISPLAY, _REGISTRY, _CALLBACK, _FIRST_FREE = 1, 2, 3, 4
_SYNC, _GET_REGISTRY, _BIND = 0, 1, 0
_WAYLAND_ERROR, _GLOBAL, _GLOBAL_REMOVE = 0, 0, 1
_IDLED, _RESUMED = 0, 1
_SEAT, _NOTIFIER, _KDE = "wl_seat", "ext_idle_notifier_v1", "org_kde_kwin_idle"
# A film keeps the screen awake, and so the seat from being idle. The second version can ask for input only.
_GET_NOTIFICATION, _GET_INPUT_NOTIFICATION, _GET_TIMEOUT = 1, 2, 0


class WaylandInput:
    """Input under Wayland. `idle_after_s` is the silence after which a seat counts as idle."""

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
        """Report input as it happens. Raises SignalError without a compositor, NotOfferedError if it does not report idle time."""
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
                is_used = True  # a seat that has not become idle is in use
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
    """A connection. We number the objects; each seat has one that reports when it is idle."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, idle_after_s: float) -> None:
        self._reader, self._writer = reader, writer
        self._idle_after_ms = max(1, round(idle_after_s * 1000))
        self._received = b""
        self._next_id = _FIRST_FREE
        self._globals: dict[int, tuple[str, int]] = {}
        self._notifier: tuple[int, int] | None = None
        self._seats: dict[int, int] = {}
        self._idle: dict[int, bool] = {}

    @property
    def is_idle(self) -> bool:
        """Whether every seat is idle."""
        return all(self._idle.values())

    async def begin(self) -> None:
        """Read what the compositor offers, and watch every seat. Raises SignalError."""
        self._send(_WAYLAND_DISPLAY, _GET_REGISTRY, _word(_REGISTRY))
        self._send(_WAYLAND_DISPLAY, _SYNC, _word(_CALLBACK))
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
        """Wait until a seat becomes idle or is used; return whether it is used."""
        while True:
            message = await self._next()
            if message.to in self._idle and message.event in (_IDLED, _RESUMED):
                self._idle[message.to] = message.event == _IDLED
                return message.event == _RESUMED
            self._note(message)

    def _note(self, message: _Message) -> None:
        """Note a global that was added or removed. Raises SignalError for an error event."""
        if message.to == _WAYLAND_DISPLAY and message.event == _WAYLAND_ERROR:
            text, _ = _wayland_text(message.body, 8)
            raise SignalError(f"the Wayland compositor refuses ({text})")
        if message.to == _REGISTRY and message.event == _GLOBAL:
            (name,) = _unpacked("I", message.body)
            interface, place = _wayland_text(message.body, 4)
            (version,) = _unpacked("I", message.body, place)
            self._globals[name] = interface, version
            if interface == _SEAT and self._notifier is not None:
                self._watch(name)
        elif message.to == _REGISTRY and message.event == _GLOBAL_REMOVE:
            (name,) = _unpacked("I", message.body)
            self._globals.pop(name, None)
            if (notification := self._seats.pop(name, None)) is not None:
                del self._idle[notification]
                self._needs_a_seat()

    def _watch(self, name: int) -> None:
        """Request notifications when this seat becomes idle or is used."""
        assert self._notifier is not None
        notifier, request = self._notifier
        seat, notification = self._bind(name, _SEAT, 1), self._new_id()
        is_kde = request == _GET_TIMEOUT
        seat_and_time = (seat, self._idle_after_ms) if is_kde else (self._idle_after_ms, seat)
        self._send(notifier, request, _word(notification) + b"".join(map(_word, seat_and_time)))
        self._seats[name], self._idle[notification] = notification, False

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
            raise SignalError("the server there does not speak Wayland")
        body = (await self._front(size))[8:]
        self._received = self._received[size:]
        return _Message(to, size_and_event & 0xFFFF, body)

    async def _front(self, size: int) -> bytes:
        """Wait for `size` bytes without consuming them, so that a cancelled reader loses nothing."""
        while len(self._received) < size:
            more = await self._reader.read(65_536)
            if not more:
                raise EOFError
            self._received += more
        return self._received[:size]


def socket_path() -> Path | None:
    """The compositor's socket, or None without Wayland. Over SSH no variable names it, so the usual name is tried."""
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
    """Encode a string: its length with the final zero, then the text, padded to words."""
    content = text.encode() + b"\0"
    return _word(len(content)) + content + b"\0" * (-len(content) % 4)


def _wayland_text(body: bytes, place: int) -> tuple[str, int]:
    """The string at this offset, and the offset behind it."""
    (length,) = _unpacked("I", body, place)
    begin = place + 4
    return body[begin : begin + max(0, length - 1)].decode("utf-8", "replace"), begin + (length + 3) // 4 * 4


# The alarm fires when the idle time falls below this: then there was input.
_ALARM_MS: Final = 200
_ASK_EVERY_S: Final = 5.0
_X_DISPLAY: Final = re.compile(r"(?:unix)?(?P<host>[^:]*):(?P<number>\d+)(?:\.\d+)?")
_COOKIE: Final = b"MIT-MAGIC-COOKIE-1"
_QUERY_EXTENSION: Final = 98
_INITIALIZE, _LIST_COUNTERS, _QUERY_COUNTER, _CREATE_ALARM = 0, 1, 5, 8
_ALARM_FIELDS: Final = 0x3F  # counter, value type, value, test type, delta, events
_NEGATIVE_TRANSITION: Final = 1
_X_ERROR, _X_REPLY = 0, 1


class X11Input:
    """Input under X11, from the server's IDLETIME counter."""

    name = "input (X11)"
    hears_all = True
    tells_after_s = 0.0

    def __init__(self, display: str | None = None, authority: Path | None = None) -> None:
        self._display = display
        self._authority = authority

    async def follow(self, report: InputReport) -> None:
        """Report input as it happens. Raises SignalError if there is no X server, or if it goes away."""
        name = self._display or os.environ.get("DISPLAY")
        if not name:
            raise SignalError("there is no X display")
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                server = await _x_connect(name, self._authority)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise SignalError(f"the X display {name} cannot be reached ({error or type(error).__name__})") from error
        try:
            await self._listen(server, report)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise SignalError(f"the X display {name} has gone") from error
        finally:
            server.close()

    async def _listen(self, server: "_XServer", report: InputReport) -> None:
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            await server.begin()
        while True:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                report.idle(await server.idle_s())
            if await server.alarmed(_ASK_EVERY_S):
                report.input()


class _XServer:
    """A connection to an X server. Requests are sent one at a time; an alarm that comes meanwhile is remembered."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first_id: int) -> None:
        self._reader, self._writer, self._first_id = reader, writer, first_id
        self._sync, self._counter = 0, 0
        self._is_alarmed = False

    async def begin(self) -> None:
        """Find the counter and set the alarm."""
        name = b"SYNC"
        found = await self._ask(struct.pack("<BxHHxx", _QUERY_EXTENSION, 3, len(name)) + name)
        if not found[8]:
            raise SignalError("the X server has no counters (SYNC)")
        self._sync = found[9]
        await self._ask(struct.pack("<BBHBBxx", self._sync, _INITIALIZE, 2, 3, 1))
        self._counter = _idle_counter(await self._ask(struct.pack("<BBH", self._sync, _LIST_COUNTERS, 1)))
        alarm = struct.pack("<IIiIIiIi", self._counter, 0, 0, _ALARM_MS, _NEGATIVE_TRANSITION, 0, 0, 1)
        head = struct.pack("<BBHII", self._sync, _CREATE_ALARM, 3 + len(alarm) // 4, self._first_id, _ALARM_FIELDS)
        self._writer.write(head + alarm)

    async def idle_s(self) -> float:
        """Seconds since the last input."""
        answer = await self._ask(struct.pack("<BBHI", self._sync, _QUERY_COUNTER, 2, self._counter))
        high, low = struct.unpack_from("<iI", answer, 8)
        return float((high << 32) + low) / 1000

    async def alarmed(self, within_s: float) -> bool:
        """Wait at most `within_s` for input; return whether there was any."""
        try:
            async with asyncio.timeout(within_s):
                while not self._is_alarmed:
                    await self._next()
        except TimeoutError:
            return False
        self._is_alarmed = False
        return True

    def close(self) -> None:
        """Close the connection to the server."""
        self._writer.close()

    async def _ask(self, request: bytes) -> bytes:
        self._writer.write(request)
        while True:
            answer = await self._next()
            if answer[0] == _X_REPLY:
                return answer

    async def _next(self) -> bytes:
        """The next reply or event. Every event is an alarm, because only alarms are requested."""
        # If readexactly is cancelled while it waits, it has consumed nothing.
        message = await self._reader.readexactly(32)
        if message[0] == _X_ERROR:
            raise SignalError(f"the X server refuses (error {message[1]})")
        if message[0] == _X_REPLY:
            return message + await self._reader.readexactly(4 * int.from_bytes(message[4:8], "little"))
        self._is_alarmed = True
        return message


async def _x_connect(name: str, authority: Path | None) -> _XServer:
    match = _X_DISPLAY.fullmatch(name)
    if match is None:
        raise SignalError(f"{name!r} is not the name of an X display")
    number, host = int(match["number"]), match["host"]
    if host:
        reader, writer = await asyncio.open_connection(host, 6000 + number)
    else:
        reader, writer = await _open_local(f"/tmp/.X11-unix/X{number}")
    cookie = _cookie(authority or Path(os.environ.get("XAUTHORITY", Path.home() / ".Xauthority")), str(number))
    auth = _COOKIE if cookie else b""
    writer.write(struct.pack("<BxHHHHxx", ord("l"), 11, 0, len(auth), len(cookie)) + _padded(auth) + _padded(cookie))
    verdict, words = struct.unpack("<B5xH", await reader.readexactly(8))
    rest = await reader.readexactly(4 * words)
    if verdict != 1:
        writer.close()
        raise SignalError(f"the X display {name} refuses the connection (no cookie fits)")
    return _XServer(reader, writer, int.from_bytes(rest[4:8], "little"))


async def _open_local(path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        return await asyncio.open_unix_connection(path)
    except FileNotFoundError:
        # Some servers listen only at an abstract address, which has no file.
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(link, f"\0{path}")
            return await asyncio.open_connection(sock=link)
        except BaseException:
            link.close()
            raise


def _cookie(authority: Path, number: str) -> bytes:
    """The cookie for this display; empty if the file has none."""
    try:
        content = authority.read_bytes()
    except OSError:
        return b""
    place = 0
    try:
        while place < len(content):
            place += 2  # the address family is ignored: a cookie of another host is refused like a missing one
            fields = []
            for _ in range(4):
                (length,) = struct.unpack_from(">H", content, place)
                fields.append(content[place + 2 : place + 2 + length])
                place += 2 + length
            if fields[2] == _COOKIE and fields[1] in (number.encode(), b""):
                return fields[3]
    except struct.error:
        return b""
    return b""


def _idle_counter(answer: bytes) -> int:
    (count,) = struct.unpack_from("<i", answer, 8)
    place = 32
    for _ in range(count):
        counter, length = struct.unpack_from("<I8xH", answer, place)
        if answer[place + 14 : place + 14 + length] == b"IDLETIME":
            return int(counter)
        place += (14 + length + 3) // 4 * 4
    raise SignalError("the X server does not report its idle time (IDLETIME)")


def _padded(text: bytes) -> bytes:
    return text + b"\0" * (-len(text) % 4)
