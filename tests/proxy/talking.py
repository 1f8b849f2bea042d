"""Talking HTTP to a listener of ours, byte by byte."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from anyio import CancelScope

from metaclaw.errors import WireError
from metaclaw.proxy.http.client import Client, ClientGone
from metaclaw.proxy.http.connection import Listener, Serve

PLAIN = [(b"content-type", b"text/plain")]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_opened: list[asyncio.StreamWriter] = []


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[tuple[Listener, int]]:
    """An open port, and the listener behind it."""
    listening = socket.create_server(("127.0.0.1", 0))
    listener = Listener(serve)
    await listener.open(listening)
    try:
        yield listener, listening.getsockname()[1]
    finally:
        # Also after a timeout: uvloop never closes while a connection has something left to write.
        with CancelScope(shield=True):
            hurry = asyncio.Event()
            hurry.set()
            await listener.close(1, hurry)
            while _opened:
                writer = _opened.pop()
                writer.close()
                with suppress(ConnectionError):
                    await writer.wait_closed()


async def echo(client: Client) -> None:
    """Say back what was asked."""
    try:
        body = await client.read(1000, 5)
    except WireError as error:
        client.respond(error.status, PLAIN, str(error).encode())
        return
    except ClientGone:
        # whoever was hung up on needs no answer; the program's own server sees it the same way
        return
    client.respond(200, PLAIN, b"%b %b %b" % (client.method.encode(), client.target, body))


async def connected(port: int) -> Streams:
    """A connection, closed when the serving ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    _opened.append(writer)
    return reader, writer


async def read_response(
    reader: asyncio.StreamReader, *, has_body: bool = True
) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    lines = head.split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
    body = b""
    if has_body and "content-length" in fields:
        body = await reader.readexactly(int(fields["content-length"]))
    elif has_body and fields.get("transfer-encoding") == "chunked":
        pieces = []
        while size := int(await reader.readline(), 16):
            pieces.append(await reader.readexactly(size))
            await reader.readline()
        await reader.readline()
        body = b"".join(pieces)
    elif has_body:
        body = await reader.read()
    return int(lines[0].split()[1]), fields, body


async def ask(port: int, *pieces: bytes) -> tuple[int, dict[str, str], bytes]:
    reader, writer = await connected(port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    return await read_response(reader)


def post(body: bytes, *fields: bytes) -> bytes:
    lines = [b"POST /x HTTP/1.1", b"host: h", b"content-length: %d" % len(body), *fields]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
