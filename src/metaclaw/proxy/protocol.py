"""The server's side of a connection, with a bound on what may come before the key has been checked."""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which itself would take a head of any size."""

    _head_bytes = 0
    _in_head = True

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The request's head is larger than {MAX_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        if sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            raise ValueError("the head is too large")  # uvicorn answers 400 to whatever its parser's callbacks raise
        super().on_headers_complete()
