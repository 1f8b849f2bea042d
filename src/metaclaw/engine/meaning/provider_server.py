"""The embedding process where a provider makes the vectors: it says which texts have none yet, and searches among those it has."""

from collections import deque
from pathlib import Path
from time import monotonic
from typing import Final

import numpy as np

from metaclaw.engine.meaning import frames
from metaclaw.engine.meaning.background import ENGLISH, ORDINARY_REQUESTS
from metaclaw.engine.meaning.minilm import Floats
from metaclaw.engine.meaning.server import REPORTED_EVERY, Server, remove_other_vectors
from metaclaw.engine.meaning.table import Row, Table, VectorFile
from metaclaw.engine.pipe import Pipe

# The ordinary requests are indexed under this name, which no skill has.
_ORDINARY: Final = ""
# While vectors still arrive, the file is written this often: each was paid for.
_SAVED_EVERY_S: Final = 30.0
# How alike two ordinary requests in English are to all-MiniLM-L6-v2, for which the constants of the score were chosen.
_USUAL_LIKENESS: Final = 0.107
# Where a model finds all texts alike, its similarities say nothing.
_LEAST_SPREAD: Final = 0.01


class ProviderServer(Server):
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
        self._hear(frames.Put(_ORDINARY, "", "", list(dict.fromkeys(ORDINARY_REQUESTS))))

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

    def _search(self, ask: frames.Ask) -> frames.Near:
        vector = _unit(ask.vector)
        self._check_dimensions(len(vector))
        if self._ordinary is None or self._waiting or self._incomplete or not self._scale or not vector.any():
            self._report()
            return frames.Near(ask.id, [], 0.0, is_known=False)
        similar = self._table.nearest(vector, ask.scopes, ask.limit)
        background = self._standard(float((self._ordinary @ vector).max()))
        return frames.Near(ask.id, [(name, self._standard(similarity)) for name, similarity in similar], background)

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
        if put.name == _ORDINARY:
            english = vectors[:ENGLISH]
            likeness = float((english @ english.T)[np.triu_indices(len(english), 1)].mean())
            self._scale = (1 - _USUAL_LIKENESS) / (1 - likeness) if 1 - likeness > _LEAST_SPREAD else 0.0
            self._ordinary = vectors
        else:
            self._table.put(put.name, Row(put.scope, put.kind, vectors))
        for text, vector in zip(put.texts, vectors, strict=True):
            self._file.put(text, vector)  # a view of the row, so that each vector is in memory once

    def _ask_for(self, name: str, missing: list[str]) -> None:
        self._table.drop(name)
        self._incomplete.add(name)
        new = [text for text in missing if text not in self._wanted]
        for text in missing:
            self._wanted.setdefault(text, set()).add(name)
        if new:
            self._pipe.send(frames.Missing(new))

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

    def _report(self) -> None:
        self._pipe.send(frames.Pending(len(self._waiting) + len(self._incomplete)))

    def _save(self) -> None:
        kept: dict[str, Floats] = {}
        for put in self._texts.values():
            for text in put.texts:
                vector = self._file.get(text)
                if vector is not None:
                    kept[text] = vector
        self._file.write(list(kept), list(kept.values()))
        self._is_changed, self._saved_at = False, monotonic()


def load(pipe: "Pipe[frames.ToModel, frames.FromModel]", path: Path) -> ProviderServer:
    """Read the vectors that were fetched before."""
    remove_other_vectors(path)
    return ProviderServer(pipe, VectorFile(path, [path], dimensions=None))


def _unit(raw: bytes) -> Floats:
    """The vector with length 1, or zeros where it has no direction."""
    vector = np.frombuffer(raw, np.float32)
    length = float(np.linalg.norm(vector.astype(np.float64)))
    return (vector / length).astype(np.float32) if np.isfinite(length) and length > 0 else np.zeros_like(vector)
