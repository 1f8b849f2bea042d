"""The embedding process: the vectors of a library, the search among them, and the loop that answers
requests and indexes texts.
"""

import hashlib
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import monotonic, perf_counter
from typing import Final, NamedTuple, TypeAlias
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from metaclaw.engine.embedding import frames
from metaclaw.engine.embedding.client import ORDINARY_REQUESTS
from metaclaw.engine.embedding.minilm import DIMENSIONS, Floats, MiniLM
from metaclaw.engine.frames import Pipe

_KEY_BYTES: Final = 16
_BEST_SHARE: Final = 0.7
_RUNNERS_UP: Final = 2
# Only the nearest names by mean vector, this many times the limit, are compared text by text.
_LOOKED_AT: Final = 3
_NO_ROWS: Final = np.empty(0, np.int64)

_MODEL_FILE: Final = "all-minilm-l6-v2.npz"
VECTORS_FILE: Final = "vectors.npz"
PREPARED: Final = Path(sys.prefix) / "share" / "metaclaw" / "meaning"
"""The folder of prepared files that all homes of this installation share."""

# A long request is cut so that embedding it takes about this long, at the speed of the last
# requests.
_AIM_S: Final = 0.010
_FEWEST_TOKENS: Final = 14
_MOST_TOKENS: Final = 48
REPORTED_EVERY: Final = 100
_NICENESS: Final = 10
_ENGLISH: Final = ORDINARY_REQUESTS.index("Guten Tag")
# The ordinary requests are indexed under this name, which no skill has.
_ORDINARY_NAME: Final = ""
# While vectors still arrive, the file is written this often, because every vector costs money.
_SAVED_EVERY_S: Final = 30.0
# The mean similarity of two ordinary requests in English under all-MiniLM-L6-v2, for which the
# constants of the score were chosen.
_USUAL_LIKENESS: Final = 0.107
# The similarities of a model that finds all texts alike are not used.
_LEAST_SPREAD: Final = 0.01

_ModelPipe: TypeAlias = Pipe[frames.ToModel, frames.FromModel]


class IndexedTexts(NamedTuple):
    """The vectors of the texts of a skill or rule, and the scope in which it applies."""

    scope: str
    kind: str
    vectors: Floats


class Table:
    """The vectors of all names. A change is cheap; the next search computes the mean vectors
    again.
    """

    def __init__(self) -> None:
        self._rows: dict[str, IndexedTexts] = {}
        self._names: list[str] = []
        self._means: Floats = np.empty((0, 0), np.float32)
        self._groups: dict[str, dict[str, npt.NDArray[np.int64]]] = {}
        self._is_stale = False

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, name: str, row: IndexedTexts) -> None:
        """Add a name, or replace its vectors."""
        self._rows[name] = row
        self._is_stale = True

    def drop(self, name: str) -> None:
        """Remove a name, if it is there."""
        self._is_stale = self._rows.pop(name, None) is not None or self._is_stale

    def nearest(self, vector: Floats, scopes: Iterable[str], limit: int) -> list[tuple[str, float]]:
        """For each kind, up to `limit` names in these scopes with their similarity, nearest
        first.
        """
        self._refresh()
        if not self._names:
            return []
        rough = self._means @ vector
        similar: list[tuple[str, float]] = []
        for by_scope in self._groups.values():
            members = np.concatenate(
                [by_scope[scope] for scope in {*scopes, ""} if scope in by_scope] or [_NO_ROWS]
            )
            if len(members) > limit * _LOOKED_AT:
                members = members[
                    np.argpartition(rough[members], -limit * _LOOKED_AT)[-limit * _LOOKED_AT :]
                ]
            if len(members):
                near = self._compare([self._names[at] for at in members], vector)
                near.sort(key=lambda pair: (-pair[1], pair[0]))
                similar += near[:limit]
        return similar

    def _compare(self, names: Sequence[str], vector: Floats) -> list[tuple[str, float]]:
        """The similarity of each name, from all of its texts."""
        rows = [self._rows[name] for name in names]
        each = (np.concatenate([row.vectors for row in rows]) @ vector).tolist()
        similar, at = [], 0
        for name, row in zip(names, rows, strict=True):
            similar.append(
                (name, combine(each[at : at + len(row.vectors)], is_rule=row.kind == "rule"))
            )
            at += len(row.vectors)
        return similar

    def _refresh(self) -> None:
        if not self._is_stale:
            return
        self._names, self._is_stale = list(self._rows), False
        self._means = np.array([row.vectors.mean(0) for row in self._rows.values()], np.float32)
        numbers: dict[str, dict[str, list[int]]] = {}
        for at, row in enumerate(self._rows.values()):
            numbers.setdefault(row.kind, {}).setdefault(row.scope, []).append(at)
        self._groups = {
            kind: {scope: np.array(ats) for scope, ats in scopes.items()}
            for kind, scopes in numbers.items()
        }


def combine(similarities: list[float], *, is_rule: bool) -> float:
    """One similarity from those of a name's texts: mostly that of the nearest text, and a little of
    the next two, since a single similar text may be chance.

    The first two texts of a rule say when it applies and what it demands. Neither is enough alone,
    so their mean counts as one."""
    if is_rule and len(similarities) > 1:
        similarities = [sum(similarities[:2]) / 2, *similarities[2:]]
    best, *others = sorted(similarities, reverse=True)[: 1 + _RUNNERS_UP]
    return _BEST_SHARE * best + (1 - _BEST_SHARE) * sum(others) / len(others) if others else best


class VectorFile:
    """The vectors of the library's texts on disk, so that a restart does not compute them again. It
    contains no text, and after a write only the vectors of texts in the library.

    It is written to `path`, and read from the first readable one of `sources`. With `dimensions`
    None any length is valid."""

    def __init__(
        self, path: Path, sources: Sequence[Path] = (), dimensions: int | None = DIMENSIONS
    ) -> None:
        self._path = path
        self._vectors = next(
            (found for source in sources if (found := _read(source, dimensions)) is not None), {}
        )

    @property
    def dimensions(self) -> int:
        """The length of the vectors; 0 if there are none."""
        return next((len(vector) for vector in self._vectors.values()), 0)

    def get(self, text: str) -> Floats | None:
        """The vector of a text, if it was computed before."""
        return self._vectors.get(_key(text))

    def put(self, text: str, vector: Floats) -> None:
        """Add a vector in memory."""
        self._vectors[_key(text)] = vector

    def clear(self) -> None:
        """Drop all vectors from memory."""
        self._vectors = {}

    def write(self, texts: Iterable[str]) -> None:
        """Write the vectors of these texts, and forget all others."""
        keys = dict.fromkeys(map(_key, texts))
        self._vectors = {key: self._vectors[key] for key in keys if key in self._vectors}
        joined = np.frombuffer(b"".join(self._vectors), np.uint8)
        table = np.array(list(self._vectors.values()), np.float16).reshape(
            len(self._vectors), -1 if self._vectors else 0
        )
        with suppress(OSError):  # without the file the next start takes longer
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial = self._path.with_suffix(".part.npz")
            np.savez(partial, keys=joined, vectors=table)
            partial.replace(self._path)


def _read(path: Path, dimensions: int | None) -> dict[bytes, Floats] | None:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            keys, vectors = stored["keys"].tobytes(), stored["vectors"].astype(np.float32)
    except (OSError, ValueError, KeyError, BadZipFile):  # absent or damaged: computed again
        return None
    split = [keys[at : at + _KEY_BYTES] for at in range(0, len(keys), _KEY_BYTES)]
    fits = (
        vectors.ndim == 2 and len(vectors) == len(split) and dimensions in (None, vectors.shape[1])
    )
    return dict(zip(split, vectors, strict=True)) if fits else None


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES).digest()


class EmbeddingServer:
    """Serves the search in one library: computes the vectors with `model`, or, if that is None,
    searches among vectors that a provider computes."""

    def __init__(self, pipe: _ModelPipe, file: VectorFile, model: MiniLM | None) -> None:
        self._pipe = pipe
        self._file = file
        self._model = model
        self._table = Table()
        self._texts: dict[str, frames.Put] = {}
        self._waiting: deque[str] = deque()
        self._is_changed = False
        self._is_whole = False
        self._saved_at = monotonic()
        self._token_s = _AIM_S / _FEWEST_TOKENS
        # Requests have priority over indexing: on Linux each thread has its own niceness.
        self._aside = ThreadPoolExecutor(1, "indexing", initializer=lambda: os.nice(_NICENESS))
        self._dimensions = file.dimensions
        self._ordinary: Floats | None = None
        self._scale = 1.0
        self._wanted: dict[str, set[str]] = {}
        """Texts without a vector, with the names that wait for it."""
        self._incomplete: set[str] = set()
        self._hear(frames.Put(_ORDINARY_NAME, "", "", list(dict.fromkeys(ORDINARY_REQUESTS))))

    def serve(self) -> None:
        """Answer requests first, then index waiting texts, then write the file."""
        while True:
            message = self._pipe.look() if self._waiting or self._must_save() else self._pipe.wait()
            if message is not None:
                self._hear(message)
            elif self._waiting:
                if put := self._texts.get(self._waiting.popleft()):
                    self._index(put)
                if len(self._waiting) % REPORTED_EVERY == 0:
                    self._report()
            else:
                self._save()

    def _hear(self, message: frames.ToModel) -> None:
        match message:
            case frames.NearestQuery():
                self._pipe.send(self._search(message))
            case frames.Put():
                self._stop_waiting(message.name)
                self._texts[message.name] = message
                self._waiting.append(message.name)
                self._is_changed = True
            case frames.Drop():
                self._stop_waiting(message.name)
                self._texts.pop(message.name, None)
                self._table.drop(message.name)
                self._is_changed = True
                self._report()
            case frames.Whole():
                self._is_whole = True
                self._report()
            case frames.Vectors():
                self._accept(message)

    def _must_save(self) -> bool:
        is_time = not self._wanted or monotonic() - self._saved_at > _SAVED_EVERY_S
        return self._is_changed and self._is_whole and is_time

    def _report(self) -> None:
        """Send how many texts are left, once the whole library has arrived: before that a part
        would look complete.
        """
        if self._is_whole:
            left = len(self._waiting) + len(self._incomplete)
            self._pipe.send(frames.IndexProgress(left))

    def _search(self, query: frames.NearestQuery) -> frames.Near:
        if self._model is None:
            vector = _unit(query.vector)
            self._check_dimensions(len(vector))
        else:
            vector = self._embed_in_time(self._model, query.text)
        is_complete = not self._waiting and not self._incomplete
        if self._ordinary is None or not is_complete or not self._scale or not vector.any():
            self._report()
            return frames.Near(query.id, [], 0.0, is_known=False)
        similar = self._table.nearest(vector, query.scopes, query.limit)
        background = self._standard(float((self._ordinary @ vector).max()))
        return frames.Near(
            query.id,
            [(name, self._standard(similarity)) for name, similarity in similar],
            background,
        )

    def _embed_in_time(self, model: MiniLM, text: str) -> Floats:
        began = perf_counter()
        most = max(_FEWEST_TOKENS, min(_MOST_TOKENS, int(_AIM_S / self._token_s)))
        tokens = model.encode(text, most)
        vector = model.embed_tokens(tokens)
        if len(tokens) >= _FEWEST_TOKENS:
            self._token_s += 0.2 * ((perf_counter() - began) / len(tokens) - self._token_s)
        return vector

    def _standard(self, similarity: float) -> float:
        """The similarity on the scale of all-MiniLM-L6-v2: 1 stays 1, the mean of ordinary requests
        becomes its mean.
        """
        return 1.0 - (1.0 - similarity) * self._scale

    def _index(self, put: frames.Put) -> None:
        known = [self._file.get(text) for text in put.texts]
        missing = [text for text, vector in zip(put.texts, known, strict=True) if vector is None]
        if missing and self._model is None:
            self._ask_for(put.name, missing)
            return
        self._incomplete.discard(put.name)
        computed: Iterator[Floats] = iter(())
        if missing and self._model is not None:
            computed = iter(self._aside.submit(self._model.embed_many, missing).result())
        vectors = np.array(
            [next(computed) if vector is None else vector for vector in known], np.float32
        )
        for text, vector in zip(put.texts, vectors, strict=True):
            self._file.put(text, vector)  # a view of the row, so that each vector is in memory once
        if put.name != _ORDINARY_NAME:
            self._table.put(put.name, IndexedTexts(put.scope, put.kind, vectors))
            return
        self._ordinary = vectors
        if self._model is None:
            english = vectors[:_ENGLISH]
            likeness = float((english @ english.T)[np.triu_indices(len(english), 1)].mean())
            is_apart = 1 - likeness > _LEAST_SPREAD
            self._scale = (1 - _USUAL_LIKENESS) / (1 - likeness) if is_apart else 0.0

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
        """Ask for all vectors again if the provider's model has changed, since new and old vectors
        cannot be compared.
        """
        if self._dimensions not in (0, dimensions):
            self._file.clear()
            self._table = Table()
            self._ordinary = None
            self._wanted.clear()
            self._incomplete.clear()
            self._waiting = deque(self._texts)
            self._is_changed = True
        self._dimensions = dimensions

    def _save(self) -> None:
        self._file.write([text for put in self._texts.values() for text in put.texts])
        self._is_changed, self._saved_at = False, monotonic()


def load(pipe: _ModelPipe, vectors: Path, package: Path | None) -> EmbeddingServer:
    """Load the model from its package, or none for vectors of a provider, and earlier results from
    the folder of the file `vectors` or from the folder of `prepare`.
    """
    model = None if package is None else _load_model(package, vectors.parent)
    # Texts that leave the library would never be removed from the files of other models.
    for other in vectors.parent.glob("vectors*.npz"):
        if other != vectors:
            with suppress(OSError):
                other.unlink()
    if model is None:
        return EmbeddingServer(pipe, VectorFile(vectors, [vectors], dimensions=None), model)
    return EmbeddingServer(pipe, VectorFile(vectors, [vectors, PREPARED / VECTORS_FILE]), model)


def prepare(package: Path) -> None:
    """Do the slow work of a first start once for all homes of this installation."""
    model = _load_model(package, PREPARED)
    file = VectorFile(PREPARED / VECTORS_FILE)
    for text, vector in zip(ORDINARY_REQUESTS, model.embed_many(ORDINARY_REQUESTS), strict=True):
        file.put(text, vector)
    file.write(ORDINARY_REQUESTS)


def _load_model(package: Path, folder: Path) -> MiniLM:
    """The trimmed model from one of the folders, or trimmed now and kept in the first."""
    model = MiniLM(package)
    for place in (folder, PREPARED):
        with suppress(OSError, KeyError, ValueError, BadZipFile):  # absent or damaged
            model.restore(place / _MODEL_FILE)
            return model
    calibration = Path(__file__).with_name("calibration.txt").read_text(encoding="utf-8")
    model.trim([*calibration.splitlines(), *ORDINARY_REQUESTS])
    with suppress(OSError):  # without the file the next start takes as long again
        model.save(folder / _MODEL_FILE)
    return model


def _unit(raw: bytes) -> Floats:
    """The vector scaled to length 1, or zeros if it has no direction."""
    vector = np.frombuffer(raw, np.float32)
    length = float(np.linalg.norm(vector.astype(np.float64)))
    has_direction = np.isfinite(length) and length > 0
    return (vector / length).astype(np.float32) if has_direction else np.zeros_like(vector)
