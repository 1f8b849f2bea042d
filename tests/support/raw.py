"""A provider played byte by byte: what it says, when it lingers, when it drops the line."""

import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

CLOSE, RESET, LINGER = "close", "reset", "linger"


def http(
    body: bytes,
    content_type: str | None = "application/json",
    *,
    status: str = "200 OK",
    chunked: bool = False,
) -> bytes:
    """A whole response, with a content-length, or as one chunk without the last one."""
    kind = f"content-type: {content_type}\r\n" if content_type else ""
    if chunked:
        return (
            f"HTTP/1.1 {status}\r\n{kind}transfer-encoding: chunked\r\n\r\n{len(body):x}\r\n".encode()
            + body
            + b"\r\n"
        )
    return f"HTTP/1.1 {status}\r\n{kind}content-length: {len(body)}\r\n\r\n".encode() + body


@dataclass
class RawProvider:
    """Answers every connection's first request with the script, then closes, resets, or keeps the
    line open.

    A listener that is given stays open afterwards, so that the next one can answer at the same
    address."""

    script: Sequence[bytes]
    then: str = CLOSE
    listener: socket.socket | None = None
    heads: list[bytes] = field(default_factory=list)
    asked: threading.Event = field(default_factory=threading.Event)
    hung_up: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._listener = self.listener or socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.1)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "RawProvider":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(5)
        if self.listener is None:
            self._listener.close()

    def _serve(self) -> None:
        while not self._stopping.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            with connection:
                connection.settimeout(0.1)
                self._play(connection)

    def _play(self, connection: socket.socket) -> None:
        head = self._read_head(connection)
        if b"\r\n\r\n" not in head:
            return  # somebody only looked whether anything listens here
        self.heads.append(head)
        self.asked.set()
        for piece in self.script:
            connection.sendall(piece)
        if self.then == RESET:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        while self.then == LINGER and not self._stopping.is_set():
            try:
                if connection.recv(65536) == b"":
                    self.hung_up.set()
                    return
            except TimeoutError:
                continue
            except ConnectionResetError:
                self.hung_up.set()
                return

    def _read_head(self, connection: socket.socket) -> bytes:
        seen = b""
        while b"\r\n\r\n" not in seen and not self._stopping.is_set():
            try:
                piece = connection.recv(65536)
            except TimeoutError:
                continue
            except ConnectionResetError:
                break
            if not piece:
                break
            seen += piece
        return seen
