"""What the embedding process does: answer requests at once, index new texts in between, keep the vectors on disk."""

import os
import sys
from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Final
from zipfile import BadZipFile

import numpy as np

from metaclaw.engine.meaning import frames
from metaclaw.engine.meaning.background import ORDINARY_REQUESTS
from metaclaw.engine.meaning.minilm import Floats, MiniLM
from metaclaw.engine.meaning.table import Row, Table, VectorFile
from metaclaw.engine.pipe import Pipe

_MODEL_FILE: Final = "all-minilm-l6-v2.npz"
_VECTORS_FILE: Final = "vectors.npz"
PREPARED: Final = Path(sys.prefix) / "share" / "metaclaw" / "meaning"
"""Where `prepare` puts what every home of this installation can use."""

# A long request is cut so that embedding it takes about this long at the speed of the last ones.
_AIM_S: Final = 0.010
_FEWEST_TOKENS: Final = 14
_MOST_TOKENS: Final = 48
REPORTED_EVERY: Final = 100
_NICENESS: Final = 10


class Server(ABC):
    """One library, and where its vectors come from."""

    def __init__(self, pipe: "Pipe[frames.ToModel, frames.FromModel]", file: VectorFile) -> None:
        self._pipe = pipe
        self._file = file
        self._table = Table()
        self._texts: dict[str, frames.Put] = {}
        self._waiting: deque[str] = deque()
        self._is_changed = False
        self._is_whole = False

    def serve(self) -> None:
        """Requests first, then texts that wait, then the file."""
        while True:
            message = self._pipe.look() if self._waiting or self._must_save() else self._pipe.wait()
            if message is not None:
                self._hear(message)
            elif self._waiting:
                self._index(self._waiting.popleft())
            else:
                self._save()

    def _hear(self, message: frames.ToModel) -> None:
        match message:
            case frames.Ask():
                self._pipe.send(self._search(message))
            case frames.Put():
                self._texts[message.name] = message
                self._waiting.append(message.name)
                self._is_changed = True
            case frames.Drop():
                self._texts.pop(message.name, None)
                self._table.drop(message.name)
                self._is_changed = True
            case frames.Whole():
                self._is_whole = True

    def _must_save(self) -> bool:
        return self._is_changed and self._is_whole

    @abstractmethod
    def _search(self, ask: frames.Ask) -> frames.Near: ...

    @abstractmethod
    def _index(self, name: str) -> None: ...

    @abstractmethod
    def _save(self) -> None: ...


class LocalServer(Server):
    """Makes the vectors itself."""

    def __init__(self, pipe: "Pipe[frames.ToModel, frames.FromModel]", model: MiniLM, file: VectorFile) -> None:
        super().__init__(pipe, file)
        self._model = model
        self._token_s = _AIM_S / _FEWEST_TOKENS
        # Requests wait for an answer, indexing can wait for everybody: on Linux a thread has a niceness of its own.
        self._aside = ThreadPoolExecutor(1, "indexing", initializer=lambda: os.nice(_NICENESS))
        self._ordinary = self._embed(ORDINARY_REQUESTS)

    def _search(self, ask: frames.Ask) -> frames.Near:
        vector = self._embed_in_time(ask.text)
        similar = self._table.nearest(vector, ask.scopes, ask.limit)
        return frames.Near(ask.id, similar, float((self._ordinary @ vector).max()))

    def _embed_in_time(self, text: str) -> Floats:
        began = perf_counter()
        most = max(_FEWEST_TOKENS, min(_MOST_TOKENS, int(_AIM_S / self._token_s)))
        tokens = self._model.words.encode(text, most)
        vector = self._model.embed_tokens(tokens)
        if len(tokens) >= _FEWEST_TOKENS:
            self._token_s += 0.2 * ((perf_counter() - began) / len(tokens) - self._token_s)
        return vector

    def _index(self, name: str) -> None:
        put = self._texts.get(name)
        if put is not None:
            vectors = self._aside.submit(self._embed, put.texts).result()
            self._table.put(name, Row(put.scope, put.kind, vectors))
        if len(self._waiting) % REPORTED_EVERY == 0:
            self._pipe.send(frames.Pending(len(self._waiting)))

    def _embed(self, texts: list[str]) -> Floats:
        known = [self._file.get(text) for text in texts]
        missing = [text for text, vector in zip(texts, known, strict=True) if vector is None]
        computed = iter(self._model.embed_many(missing))
        return np.array([next(computed) if vector is None else vector for vector in known])

    def _save(self) -> None:
        kept = dict(zip(ORDINARY_REQUESTS, self._ordinary, strict=True))
        for name, put in self._texts.items():
            kept.update(zip(put.texts, self._table.vectors(name), strict=True))
        self._file.write(list(kept), list(kept.values()))
        self._is_changed = False


def load(pipe: "Pipe[frames.ToModel, frames.FromModel]", package: Path, folder: Path) -> LocalServer:
    """Read the model from its package, and what was worked out before from `folder` or from where `prepare` put it."""
    model = MiniLM(package)
    if not _restore(model, folder) and not _restore(model, PREPARED):
        _trim(model, folder)
    vectors = folder / _VECTORS_FILE
    remove_other_vectors(vectors)
    return LocalServer(pipe, model, VectorFile(vectors, [vectors, PREPARED / _VECTORS_FILE]))


def prepare(package: Path) -> None:
    """Work out once, for every home of this installation, what takes seconds at the first start."""
    model = MiniLM(package)
    if not _restore(model, PREPARED):
        _trim(model, PREPARED)
    VectorFile(PREPARED / _VECTORS_FILE).write(ORDINARY_REQUESTS, list(model.embed_many(ORDINARY_REQUESTS)))


def remove_other_vectors(path: Path) -> None:
    """Delete the files of vectors that another model made: nothing would remove from them what leaves the library."""
    for other in path.parent.glob("vectors*.npz"):
        if other != path:
            with suppress(OSError):
                other.unlink()


def _restore(model: MiniLM, folder: Path) -> bool:
    try:
        model.restore(folder / _MODEL_FILE)
    except (OSError, KeyError, ValueError, BadZipFile):  # absent or damaged
        return False
    return True


def _trim(model: MiniLM, folder: Path) -> None:
    calibration = Path(__file__).with_name("calibration.txt").read_text(encoding="utf-8").splitlines()
    model.trim([*calibration, *ORDINARY_REQUESTS])
    with suppress(OSError):  # then the next start takes as long again
        model.save(folder / _MODEL_FILE)
