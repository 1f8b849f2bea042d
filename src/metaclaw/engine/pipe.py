"""Messages between the program and its child processes: msgpack, each behind its length, and the child's end of the pipe."""

import os
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

import msgspec

_LENGTH_BYTES: Final = 4
_READ_BYTES: Final = 1 << 16

In = TypeVar("In")
Out = TypeVar("Out", contravariant=True)


_encoder = msgspec.msgpack.Encoder()


def pack(message: msgspec.Struct) -> bytes:
    """The message as bytes on the pipe."""
    body = _encoder.encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


class Unpacker:
    """Cut a stream of bytes into message bodies."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The bodies that are whole now."""
        self._buffer += chunk
        while len(self._buffer) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._buffer[:_LENGTH_BYTES], "little")
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH_BYTES:end])
            del self._buffer[:end]
            yield body


class Pipe(Generic[In, Out]):
    """The process's end: what the program says is read beside the work. A process without its program ends at once."""

    def __init__(self, read_handle: int, write_handle: int, decode: Callable[[bytes], In], pack: Callable[[Out], bytes]) -> None:
        self._read_handle = read_handle
        self._write_handle = write_handle
        self._decode = decode
        self._pack = pack
        self._inbox: queue.SimpleQueue[In] = queue.SimpleQueue()

    def listen(self) -> None:
        """Begin to read. The end of the pipe means the program is gone, however it went."""
        threading.Thread(target=self._read, name="pipe", daemon=True).start()

    def send(self, message: Out) -> None:
        """Write one message."""
        rest = memoryview(self._pack(message))
        try:
            while rest:
                rest = rest[os.write(self._write_handle, rest) :]
        except BrokenPipeError:
            os._exit(0)

    def wait(self) -> In:
        """The next message."""
        return self._inbox.get()

    def look(self) -> In | None:
        """The next message, or None if there is none yet."""
        try:
            return self._inbox.get_nowait()
        except queue.Empty:
            return None

    def _read(self) -> None:
        unpacker = Unpacker()
        while chunk := os.read(self._read_handle, _READ_BYTES):
            for body in unpacker.feed(chunk):
                self._inbox.put(self._decode(body))
        os._exit(0)
