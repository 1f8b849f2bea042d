"""A library that comes in pieces is not taken for whole."""

from pathlib import Path
from typing import Any

import pytest

from metaclaw.engine.embedding import frames
from metaclaw.engine.embedding.server import EmbeddingServer, VectorFile


class Pipe:
    """Messages as they arrive; None is a moment without any. What comes after the last ends the
    server.
    """

    def __init__(self, *arriving: object) -> None:
        self.arriving = list(arriving)
        self.sent: list[tuple[int, object]] = []

    def look(self) -> object:
        if not self.arriving:
            raise EOFError
        return self.arriving.pop(0)

    wait = look

    def send(self, message: object) -> None:
        self.sent.append((len(self.arriving), message))


class Server(EmbeddingServer):
    def __init__(self, pipe: Any) -> None:
        super().__init__(pipe, VectorFile(Path("nowhere")), None)
        self._waiting.clear()  # the ordinary requests

    def _index(self, put: frames.Put) -> None:
        """Nothing is indexed here."""

    def _save(self) -> None:
        self._is_changed = False


def test_no_progress_is_told_before_the_whole_library_has_come() -> None:
    first, second = (frames.Put(name, "", "skill", [name]) for name in ("first", "second"))
    pipe: Any = Pipe(first, None, second, frames.Whole(), None, None)
    with pytest.raises(EOFError):
        Server(pipe).serve()
    assert [(left, message.texts) for left, message in pipe.sent] == [(2, 1), (1, 0)]
