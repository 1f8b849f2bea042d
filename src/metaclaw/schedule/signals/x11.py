"""Input idle under X11: the server's own IDLETIME counter tells us of the first key or movement; nothing is polled meanwhile.

A few requests of the X protocol are spoken here rather than through Xlib, which ends the whole process when its server goes.
"""

import asyncio
import os
import re
import socket
import struct
from pathlib import Path
from typing import Final

from metaclaw.schedule.signals.input import InputReport, SignalError

# An alarm on the way down: idle was above this and falls below it, so there was input.
_ALARM_MS: Final = 200
_ASK_EVERY_S: Final = 5.0
_ANSWER_WITHIN_S: Final = 5.0
_DISPLAY: Final = re.compile(r"(?:unix)?(?P<host>[^:]*):(?P<number>\d+)(?:\.\d+)?")
_COOKIE: Final = b"MIT-MAGIC-COOKIE-1"
_QUERY_EXTENSION: Final = 98
_INITIALIZE, _LIST_COUNTERS, _QUERY_COUNTER, _CREATE_ALARM = 0, 1, 5, 8
_ALARM_FIELDS: Final = 0x3F  # counter, value type, value, test type, delta, events
_NEGATIVE_TRANSITION: Final = 1
_ERROR, _REPLY = 0, 1


class X11Input:
    """A source of input."""

    name = "input (X11)"
    hears_all = True
    tells_after_s = 0.0

    def __init__(self, display: str | None = None, authority: Path | None = None) -> None:
        self._display = display
        self._authority = authority

    async def follow(self, report: InputReport) -> None:
        """Report input as it happens. Raises SignalError where there is no X server, or it goes."""
        name = self._display or os.environ.get("DISPLAY")
        if not name:
            raise SignalError("there is no X display")
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                server = await _connect(name, self._authority)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise SignalError(f"the X display {name} cannot be reached ({error or type(error).__name__})") from error
        try:
            await self._listen(server, report)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise SignalError(f"the X display {name} has gone") from error
        finally:
            server.close()

    async def _listen(self, server: "_Server", report: InputReport) -> None:
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            await server.begin()
        while True:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                report.idle(await server.idle_s())
            if await server.alarmed(_ASK_EVERY_S):
                report.input()


class _Server:
    """A connection to an X server. Requests are sent one at a time; events that come meanwhile are kept."""

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
        """Whether there was input; waits for it at most so long."""
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
            if answer[0] == _REPLY:
                return answer

    async def _next(self) -> bytes:
        """The next thing the server says: a reply, or an event, which is noted. The only events asked for are alarms."""
        # Cancelled while it waits, readexactly has taken nothing.
        message = await self._reader.readexactly(32)
        if message[0] == _ERROR:
            raise SignalError(f"the X server refuses (error {message[1]})")
        if message[0] == _REPLY:
            return message + await self._reader.readexactly(4 * int.from_bytes(message[4:8], "little"))
        self._is_alarmed = True
        return message


async def _connect(name: str, authority: Path | None) -> _Server:
    match = _DISPLAY.fullmatch(name)
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
    return _Server(reader, writer, int.from_bytes(rest[4:8], "little"))


async def _open_local(path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        return await asyncio.open_unix_connection(path)
    except FileNotFoundError:
        # Some servers listen only at the abstract address, which has no file.
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(link, f"\0{path}")
            return await asyncio.open_connection(sock=link)
        except BaseException:
            link.close()
            raise


def _cookie(authority: Path, number: str) -> bytes:
    """The cookie for this display; none where the file has none."""
    try:
        content = authority.read_bytes()
    except OSError:
        return b""
    place = 0
    try:
        while place < len(content):
            place += 2  # the family of the address: a cookie of another host is refused like none
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
    raise SignalError("the X server does not tell how long it was idle (IDLETIME)")


def _padded(text: bytes) -> bytes:
    return text + b"\0" * (-len(text) % 4)
