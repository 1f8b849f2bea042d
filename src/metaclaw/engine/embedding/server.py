"""The embedding process: answers requests first, indexes new texts in between, keeps the vectors on disk."""

import os
import sys
from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import monotonic, perf_counter
from typing import Final
from zipfile import BadZipFile

import numpy as np

from metaclaw.engine.embedding import frames
from metaclaw.engine.embedding.client import ORDINARY_REQUESTS
from metaclaw.engine.embedding.minilm import Floats, MiniLM
from metaclaw.engine.embedding.table import IndexedTexts, Table, VectorFile
from metaclaw.engine.pipe import Pipe

_MODEL_FILE: Final = "all-minilm-l6-v2.npz"
_VECTORS_FILE: Final = "vectors.npz"
PREPARED: Final = Path(sys.prefix) / "share" / "metaclaw" / "meaning"
"""Folder of prepared files for every home of this installation."""

# A long request is cut so that embedding it takes about this long at the speed of the last ones.
_AIM_S: Final = 0.010
_FEWEST_TOKENS: Final = 14
_MOST_TOKENS: Final = 48
REPORTED_EVERY: Final = 100
_NICENESS: Final = 10
_ENGLISH: Final = ORDINARY_REQUESTS.index("Guten Tag")


class EmbeddingServer(ABC):
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
            case frames.NearestQuery():
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
                self._report()

    def _must_save(self) -> bool:
        return self._is_changed and self._is_whole

    def _report(self) -> None:
        """Say how many texts are left; not before the whole library has come, or a part of it would count as all."""
        if self._is_whole:
            self._pipe.send(frames.IndexProgress(self._left()))

    def _left(self) -> int:
        return len(self._waiting)

    @abstractmethod
    def _search(self, query: frames.NearestQuery) -> frames.Near: ...

    @abstractmethod
    def _index(self, name: str) -> None: ...

    @abstractmethod
    def _save(self) -> None: ...


class LocalServer(EmbeddingServer):
    """Makes the vectors itself."""

    def __init__(self, pipe: "Pipe[frames.ToModel, frames.FromModel]", model: MiniLM, file: VectorFile) -> None:
        super().__init__(pipe, file)
        self._model = model
        self._token_s = _AIM_S / _FEWEST_TOKENS
        # Requests go before indexing: on Linux a thread has a niceness of its own.
        self._aside = ThreadPoolExecutor(1, "indexing", initializer=lambda: os.nice(_NICENESS))
        self._ordinary = self._embed(ORDINARY_REQUESTS)

    def _search(self, query: frames.NearestQuery) -> frames.Near:
        vector = self._embed_in_time(query.text)
        similar = self._table.nearest(vector, query.scopes, query.limit)
        return frames.Near(query.id, similar, float((self._ordinary @ vector).max()))

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
            self._table.put(name, IndexedTexts(put.scope, put.kind, vectors))
        if len(self._waiting) % REPORTED_EVERY == 0:
            self._report()

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


# The ordinary requests are indexed under this name, which no skill has.
_ORDINARY_NAME: Final = ""
# While vectors still arrive, the file is written this often: each was paid for.
_SAVED_EVERY_S: Final = 30.0
# How alike two ordinary requests in English are to all-MiniLM-L6-v2, for which the constants of the score were chosen.
_USUAL_LIKENESS: Final = 0.107
# Where a model finds all texts alike, its similarities say nothing.
_LEAST_SPREAD: Final = 0.01


class ProviderServer(EmbeddingServer):
    """One provider's model, one library."""

    def __init__(self, pipe: "Pipe[frames.ToModel, frames.FromModel]", file: VectorFile) -> None:
        super().__init__(pipe, file)
        self._dimensions = file.dimensions
        self._ordinary: Floats | None = None
        self._scale = 0.0
        self._wanted: dict[str, set[str]] = {}
        """Texts without a vector, with the names that wait for it."""
        self._incomplete: set[str] = set()
        self._saved_at = monotonic()
        self._hear(frames.Put(_ORDINARY_NAME, "", "", list(dict.fromkeys(ORDINARY_REQUESTS))))

    def _hear(self, message: frames.ToModel) -> None:
        if isinstance(message, frames.Put | frames.Drop):
            self._stop_waiting(message.name)
        super()._hear(message)
        if isinstance(message, frames.Drop):
            self._report()
        elif isinstance(message, frames.Vectors):
            self._accept(message)

    def _must_save(self) -> bool:
        return super()._must_save() and (not self._wanted or monotonic() - self._saved_at > _SAVED_EVERY_S)

    def _search(self, query: frames.NearestQuery) -> frames.Near:
        vector = _unit(query.vector)
        self._check_dimensions(len(vector))
        if self._ordinary is None or self._waiting or self._incomplete or not self._scale or not vector.any():
            self._report()
            return frames.Near(query.id, [], 0.0, is_known=False)
        similar = self._table.nearest(vector, query.scopes, query.limit)
        background = self._standard(float((self._ordinary @ vector).max()))
        return frames.Near(query.id, [(name, self._standard(similarity)) for name, similarity in similar], background)

    def _standard(self, similarity: float) -> float:
        """The similarity on the scale of the score's constants: 1 stays 1, that of ordinary requests becomes the usual likeness."""
        return 1.0 - (1.0 - similarity) * self._scale

    def _accept(self, message: frames.Vectors) -> None:
        for text, raw in zip(message.texts, message.vectors, strict=True):
            vector = _unit(raw)
            self._check_dimensions(len(vector))
            names = self._wanted.pop(text, set())
            if names:
                self._file.put(text, vector)
                self._is_changed = True
            for name in sorted(names):
                if not any(other in self._wanted for other in self._texts[name].texts):
                    self._waiting.append(name)

    def _index(self, name: str) -> None:
        put = self._texts.get(name)
        if put is not None:
            vectors = [self._file.get(text) for text in put.texts]
            if missing := [text for text, vector in zip(put.texts, vectors, strict=True) if vector is None]:
                self._ask_for(name, missing)
            else:
                self._incomplete.discard(name)
                self._keep(put, np.array(vectors, np.float32))
        if len(self._waiting) % REPORTED_EVERY == 0:
            self._report()

    def _keep(self, put: frames.Put, vectors: Floats) -> None:
        if put.name == _ORDINARY_NAME:
            english = vectors[:_ENGLISH]
            likeness = float((english @ english.T)[np.triu_indices(len(english), 1)].mean())
            self._scale = (1 - _USUAL_LIKENESS) / (1 - likeness) if 1 - likeness > _LEAST_SPREAD else 0.0
            self._ordinary = vectors
        else:
            self._table.put(put.name, IndexedTexts(put.scope, put.kind, vectors))
        for text, vector in zip(put.texts, vectors, strict=True):
            self._file.put(text, vector)  # a view of the row, so that each vector is in memory once

    def _ask_for(self, name: str, missing: list[str]) -> None:
        self._table.drop(name)
        self._incomplete.add(name)
        new = [text for text in missing if text not in self._wanted]
        for text in missing:
            self._wanted.setdefault(text, set()).add(name)
        if new:
            self._pipe.send(frames.MissingVectors(new))

    def _stop_waiting(self, name: str) -> None:
        if name not in self._incomplete:
            return
        self._incomplete.discard(name)
        for text in self._texts[name].texts:
            names = self._wanted.get(text, set())
            names.discard(name)
            if not names:
                self._wanted.pop(text, None)

    def _check_dimensions(self, dimensions: int) -> None:
        """Where the provider's model has changed, its vectors cannot be compared with the old ones: ask for all again."""
        if self._dimensions not in (0, dimensions):
            self._file.clear()
            self._table = Table()
            self._ordinary = None
            self._wanted.clear()
            self._incomplete.clear()
            self._waiting = deque(self._texts)
            self._is_changed = True
        self._dimensions = dimensions

    def _left(self) -> int:
        return len(self._waiting) + len(self._incomplete)

    def _save(self) -> None:
        kept: dict[str, Floats] = {}
        for put in self._texts.values():
            for text in put.texts:
                vector = self._file.get(text)
                if vector is not None:
                    kept[text] = vector
        self._file.write(list(kept), list(kept.values()))
        self._is_changed, self._saved_at = False, monotonic()


def load_provider_server(pipe: "Pipe[frames.ToModel, frames.FromModel]", path: Path) -> ProviderServer:
    """Read the vectors that were fetched before."""
    remove_other_vectors(path)
    return ProviderServer(pipe, VectorFile(path, [path], dimensions=None))


def _unit(raw: bytes) -> Floats:
    """The vector with length 1, or zeros where it has no direction."""
    vector = np.frombuffer(raw, np.float32)
    length = float(np.linalg.norm(vector.astype(np.float64)))
    return (vector / length).astype(np.float32) if np.isfinite(length) and length > 0 else np.zeros_like(vector)
