"""A stand-in for a Wayland compositor that says what it is told, byte by byte if need be."""

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

EXT, KDE, SEAT = "ext_idle_notifier_v1", "org_kde_kwin_idle", "wl_seat"


@dataclass(slots=True)
class Compositor:
    """Offers `globals` (interface and version; numbered from 1). `asked` is what came to its notifier: request and words."""

    globals: Sequence[tuple[str, int]]
    piece: int = 65_536
    asked: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    bound: dict[int, tuple[str, int]] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    writer: asyncio.StreamWriter | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        try:
            while True:
                to, size_and_request = struct.unpack("=II", await reader.readexactly(8))
                await self._take(to, size_and_request & 0xFFFF, await reader.readexactly((size_and_request >> 16) - 8))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def say(self, to: int, event: int, body: bytes = b"") -> None:
        await self.speak(struct.pack("=II", to, (8 + len(body)) << 16 | event) + body)

    async def speak(self, message: bytes) -> None:
        assert self.writer is not None
        for place in range(0, len(message), self.piece):
            self.writer.write(message[place : place + self.piece])
            await self.writer.drain()
            await asyncio.sleep(0)  # so that pieces arrive as pieces

    async def seat(self, name: int) -> None:
        await self.say(2, 0, struct.pack("=I", name) + string(SEAT) + struct.pack("=I", 7))

    async def until_asked(self, times: int) -> list[int]:
        """The ids of the objects that wait to be told, once there are so many."""
        with anyio.fail_after(60):
            while len(self.asked) < times:
                await self.changed.wait()
                self.changed.clear()
        return [words[0] for _, words in self.asked]

    async def _take(self, to: int, request: int, body: bytes) -> None:
        if to == 1 and request == 1:
            for name, (interface, version) in enumerate(self.globals, 1):
                await self.say(2, 0, struct.pack("=I", name) + string(interface) + struct.pack("=I", version))
        elif to == 1:
            await self.say(struct.unpack("=I", body)[0], 0, struct.pack("=I", 99))
        elif to == 2:
            (length,) = struct.unpack_from("=I", body, 4)
            version, ours = struct.unpack("=II", body[-8:])
            self.bound[ours] = body[8 : 8 + length - 1].decode(), version
        else:
            self.asked.append((request, struct.unpack(f"={len(body) // 4}I", body)))
            self.changed.set()


def string(text: str) -> bytes:
    content = text.encode() + b"\0"
    return struct.pack("=I", len(content)) + content + b"\0" * (-len(content) % 4)


@asynccontextmanager
async def standing_in(path: Path, *offered: tuple[str, int], piece: int = 65_536) -> AsyncIterator[Compositor]:
    compositor = Compositor(offered, piece)
    server = await asyncio.start_unix_server(compositor.serve, str(path))
    try:
        yield compositor
    finally:
        server.close()
        if compositor.writer is not None:
            compositor.writer.close()
