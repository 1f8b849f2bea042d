"""What a command prints, kept within bounds."""


class Kept:
    """The beginning and the end of an output, whatever its length."""

    def __init__(self, most_bytes: int) -> None:
        self.left_out_bytes = 0
        self._half_bytes = most_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, chunk: bytes) -> None:
        """More of it."""
        room = self._half_bytes - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        surplus = len(self._tail) - self._half_bytes
        if surplus > 0:
            del self._tail[:surplus]
            self.left_out_bytes += surplus

    def text(self) -> str:
        """What was kept, with a word where something is missing."""
        if not self.left_out_bytes:
            return bytes(self._head + self._tail).decode("utf-8", "replace")
        head, tail = (bytes(half).decode("utf-8", "replace") for half in (self._head, self._tail))
        return f"{head}\n[… {self.left_out_bytes} bytes left out …]\n{tail}"
