"""The event stream: what happened behind the cursor, then what happens, and a sign of life in
between.
"""

import json
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx
import pytest
from anyio.abc import TaskGroup

from metaclaw.api import EventFeed
from metaclaw.errors import StoreError
from metaclaw.store import LedgerEvent, LedgerReader
from tests.api.stage import Stage, staged
from tests.support.program import KEY, Program, providers_toml

pytestmark = pytest.mark.anyio
STOPS_WITHIN_S = 10
"""Far less than `proxy.drain_s`, for which answers under way may keep the program."""


class Follower:
    """A client that reads events as they are sent, until it leaves."""

    def __init__(self) -> None:
        self.text = ""
        self.status = 0
        self._asked = False
        self._left = anyio.Event()
        self._more = anyio.Event()
        self._ended = anyio.Event()

    async def receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self.status = message.get("status", self.status)
        self.text += message.get("body", b"").decode()
        self._more.set()
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._ended.set()

    def leave(self) -> None:
        self._left.set()

    async def until(self, words: str) -> None:
        with anyio.fail_after(60):
            while words not in self.text:
                self._more = anyio.Event()
                await self._more.wait()

    async def end(self) -> None:
        """Wait until the response has ended, without leaving."""
        await self._ended.wait()

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    @property
    def events(self) -> list[dict[str, str]]:
        """The blocks that are no comments, as name and value."""
        blocks = [block for block in self.text.split("\n\n") if block and not block.startswith(":")]
        return [dict(line.split(": ", 1) for line in block.split("\n")) for block in blocks]


@asynccontextmanager
async def following(
    stage: Stage, query: str = "", last: str | None = None
) -> AsyncIterator[Follower]:
    """A client of the event stream, which has left at the end of the block."""
    follower = Follower()
    headers = [] if last is None else [(b"Last-Event-ID", last.encode("latin-1"))]
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/api/events",
        "query_string": query.encode(),
        "headers": headers,
    }
    with anyio.fail_after(60):
        group: TaskGroup
        async with anyio.create_task_group() as group:
            group.start_soon(stage.api, scope, follower.receive, follower.send)
            yield follower
            follower.leave()


async def announced(stage: Stage, count: int) -> None:
    for number in range(1, count + 1):
        await stage.announce("happened", {"number": number, "words": "two\nlines"})


async def test_what_happened_is_told_first_and_then_what_happens(stage: Stage) -> None:
    await announced(stage, 2)
    async with following(stage) as follower:
        await follower.until('"number":2')
        await stage.announce("later", {})
        await follower.until("event: later")
    assert follower.status == 200
    assert follower.text.startswith(": events of MetaClaw\n: from ")
    assert [(event["id"], event["event"]) for event in follower.events] == [
        ("1", "happened"),
        ("2", "happened"),
        ("3", "later"),
    ]
    data = json.loads(follower.events[0]["data"])
    assert (data["number"], data["words"]) == (1, "two\nlines")
    assert "at" in data


@pytest.mark.parametrize(
    ("query", "last"),
    [("after=3", None), ("", "3"), ("after=1", "3"), ("after=3", "no number"), ("after=3", "-1")],
)
async def test_a_client_goes_on_from_where_it_was(
    stage: Stage, query: str, last: str | None
) -> None:
    await announced(stage, 5)
    async with following(stage, query, last) as follower:
        await follower.until('"number":5')
    assert [event["id"] for event in follower.events] == ["4", "5"]


async def test_more_events_than_are_read_at_once_all_come_once_and_in_order(stage: Stage) -> None:
    await announced(stage, 250)
    async with following(stage) as follower:
        await follower.until('"number":250')
    assert [event["id"] for event in follower.events] == [str(number) for number in range(1, 251)]


async def test_a_cursor_that_is_no_number_is_refused(stage: Stage) -> None:
    assert "after must be a whole number" in await stage.refused(400, "GET", "/api/events?after=x")


async def test_a_silent_line_shows_that_it_is_alive(stage: Stage) -> None:
    chunks = EventFeed(stage.reader, poll_s=0.001, beat_s=0.003).follow(0)
    with anyio.fail_after(60):
        seen = [await anext(chunks) for _ in range(3)]
    await chunks.aclose()
    assert seen == [b": events of MetaClaw\n: from 0\n\n", b": still here\n\n", b": still here\n\n"]


async def test_a_client_that_leaves_is_followed_by_nobody(stage: Stage) -> None:
    async with following(stage) as follower:
        await follower.until(": events of MetaClaw")
    await stage.announce("too late", {})
    assert follower.events == []


async def test_a_program_that_stops_lets_its_followers_go(stage: Stage) -> None:
    async with following(stage) as follower:
        await follower.until(": events of MetaClaw")
        stage.api.stop()
        await follower.end()
    assert follower.has_ended


class Flaky(LedgerReader):
    """A store that cannot be read the first time."""

    tries = 0

    def events(self, after: int = 0, limit: int = 100) -> list[LedgerEvent]:
        self.tries += 1
        if self.tries == 1:
            raise StoreError("the disk is away")
        return super().events(after, limit)


async def test_a_store_that_cannot_be_read_now_is_read_later(stage: Stage) -> None:
    await announced(stage, 1)
    chunks = EventFeed(Flaky(stage.database), poll_s=0.001).follow(0)
    with anyio.fail_after(60):
        seen = [await anext(chunks), await anext(chunks)]
    await chunks.aclose()
    assert b"event: happened" in seen[1]


class Counted(LedgerReader):
    """A store that counts how often it is read, and tells when it was read again."""

    reads = 0

    def events(self, after: int = 0, limit: int = 100) -> list[LedgerEvent]:
        self.reads += 1
        return super().events(after, limit)


async def test_a_hundred_subscribers_cost_the_store_no_more_than_one(stage: Stage) -> None:
    reader = Counted(stage.database)
    feed = EventFeed(reader, poll_s=0.001)
    streams = [feed.follow(0) for _ in range(100)]
    received: list[bytes] = []

    async def follow(chunks: AsyncGenerator[bytes, None]) -> None:
        async for chunk in chunks:
            if b"event: happened" in chunk:
                received.append(chunk)
                return

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for chunks in streams:
                group.start_soon(follow, chunks)
            while (
                reader.reads < 200
            ):  # everyone has looked once, and the feed has looked on by itself
                await anyio.sleep(0.001)
            before = reader.reads
            await stage.announce("happened", {})
    for chunks in streams:
        await chunks.aclose()
    assert len(received) == 100
    assert len(set(received)) == 1
    assert reader.reads - before < 100


async def test_a_subscriber_that_falls_behind_misses_nothing(stage: Stage) -> None:
    feed = EventFeed(stage.reader, poll_s=0.001)
    slow, fast = feed.follow(0), feed.follow(0)
    with anyio.fail_after(60):
        assert await anext(slow) == await anext(fast)
        text = b""
        for number in range(1, 1200):  # more than are kept in memory
            await stage.announce("happened", {"number": number})
        while b"id: 1199\n" not in text:
            text += await anext(fast)
        late = b""
        while b"id: 1199\n" not in late:
            late += await anext(slow)
    for chunks in (slow, fast):
        await chunks.aclose()
    assert late == text
    assert late.count(b"event: happened") == 1199


async def test_one_subscriber_too_many_is_refused_until_another_leaves(tmp_path: Path) -> None:
    async with staged(tmp_path, proxy={"max_subscribers": 1}) as stage:
        async with following(stage) as follower:
            await follower.until(": events of MetaClaw")
            assert "proxy.max_subscribers" in await stage.refused(429, "GET", "/api/events")
        async with following(stage) as follower:
            await follower.until(": events of MetaClaw")


async def test_the_real_program_stops_at_once_although_somebody_follows_its_events(
    tmp_path: Path,
) -> None:
    program = Program(tmp_path / "program", providers_toml("http://127.0.0.1:1")).start()
    with httpx.stream(
        "GET", f"{program.url}/api/events", headers=program.auth, timeout=20
    ) as events:
        pieces = events.iter_raw()
        assert next(pieces).startswith(b": events")
        assert program.stop(STOPS_WITHIN_S) == 0
        assert b"".join(pieces) == b""  # whole: one that breaks off in the middle is an error


def processor_s(pid: int) -> float:
    """The processor time that all threads of a process have taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
async def test_idle_subscribers_of_the_real_program_take_next_to_no_processor_time(
    tmp_path: Path,
) -> None:
    program = Program(tmp_path / "program", providers_toml("http://127.0.0.1:1")).start()
    assert program.process is not None
    address = urlsplit(program.url)
    request = f"GET /api/events HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {KEY}\r\n\r\n".encode()
    connections = [
        socket.create_connection((address.hostname, address.port), timeout=20) for _ in range(200)
    ]
    try:
        for connection in connections:
            connection.sendall(request)
        for connection in connections:
            assert b"200 OK" in connection.recv(4096)
        took_s = 1.0
        with anyio.fail_after(60):
            while took_s >= 0.2:  # on a busy machine the program is still starting
                before = processor_s(program.process.pid)
                await anyio.sleep(2)
                took_s = processor_s(program.process.pid) - before
    finally:
        for connection in connections:
            connection.close()
        assert program.stop() == 0
