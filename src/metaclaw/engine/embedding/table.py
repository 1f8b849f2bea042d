"""The vectors of a library, and the search among them."""

import hashlib
import zipfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from metaclaw.engine.embedding.minilm import DIMENSIONS, Floats

RULE: Final = "rule"
_KEY_BYTES: Final = 16
_BEST_SHARE: Final = 0.7
_RUNNERS_UP: Final = 2
# With thousands of names, only those whose mean vector is near are compared text by text.
_LOOKED_AT: Final = 3
_NO_ROWS: Final = np.empty(0, np.int64)


class IndexedTexts(NamedTuple):
    """The vectors of one name's texts, and for whom it is."""

    scope: str
    kind: str
    vectors: Floats


class Table:
    """Names with their vectors. A change is cheap; the next search puts the mean vectors together again."""

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

    def vectors(self, name: str) -> Sequence[Floats]:
        """The vectors of a name, in the order of its texts; none where it is not there yet."""
        row = self._rows.get(name)
        return () if row is None else list(row.vectors)

    def nearest(self, vector: Floats, scopes: Iterable[str], limit: int) -> list[tuple[str, float]]:
        """For each kind, up to `limit` names in these scopes with their similarity, nearest first."""
        self._refresh()
        if not self._names:
            return []
        rough = self._means @ vector
        found: list[tuple[str, float]] = []
        for by_scope in self._groups.values():
            members = np.concatenate([by_scope[scope] for scope in {*scopes, ""} if scope in by_scope] or [_NO_ROWS])
            if len(members) > limit * _LOOKED_AT:
                members = members[np.argpartition(rough[members], -limit * _LOOKED_AT)[-limit * _LOOKED_AT :]]
            if len(members):
                near = self._compare([self._names[at] for at in members], vector)
                near.sort(key=lambda one: (-one[1], one[0]))
                found += near[:limit]
        return found

    def _compare(self, names: Sequence[str], vector: Floats) -> list[tuple[str, float]]:
        """The similarity of each name, from all of its texts."""
        rows = [self._rows[name] for name in names]
        each = (np.concatenate([row.vectors for row in rows]) @ vector).tolist()
        found, at = [], 0
        for name, row in zip(names, rows, strict=True):
            found.append((name, combine(each[at : at + len(row.vectors)], is_rule=row.kind == RULE)))
            at += len(row.vectors)
        return found

    def _refresh(self) -> None:
        if not self._is_stale:
            return
        self._names, self._is_stale = list(self._rows), False
        self._means = np.array([row.vectors.mean(0) for row in self._rows.values()], np.float32)
        numbers: dict[str, dict[str, list[int]]] = {}
        for at, row in enumerate(self._rows.values()):
            numbers.setdefault(row.kind, {}).setdefault(row.scope, []).append(at)
        self._groups = {kind: {scope: np.array(ats) for scope, ats in scopes.items()} for kind, scopes in numbers.items()}


def combine(similarities: list[float], *, is_rule: bool) -> float:
    """One similarity from those of a name's texts: mostly the nearest, a little the next two, since one may be chance.

    A rule's first two texts are when it applies and what it says. Alone, neither tells enough, so their mean counts as one text."""
    if is_rule and len(similarities) > 1:
        similarities = [sum(similarities[:2]) / 2, *similarities[2:]]
    best, *others = sorted(similarities, reverse=True)[: 1 + _RUNNERS_UP]
    return _BEST_SHARE * best + (1 - _BEST_SHARE) * sum(others) / len(others) if others else best


class VectorFile:
    """The vectors of the library's texts on disk, so that a restart does not compute them again. It holds no text, and after
    each change only the vectors of texts that are still in the library."""

    def __init__(self, path: Path, sources: Sequence[Path] = (), dimensions: int | None = DIMENSIONS) -> None:
        """Written to `path`, and read from the first of `sources` that can be read. `dimensions` is None where any will do."""
        self._path = path
        self._vectors = next((found for source in sources if (found := _read(source, dimensions)) is not None), {})

    @property
    def dimensions(self) -> int:
        """The length of the vectors; 0 where there are none."""
        return next((len(vector) for vector in self._vectors.values()), 0)

    def get(self, text: str) -> Floats | None:
        """The vector of a text, if it was computed before."""
        return self._vectors.get(_key(text))

    def put(self, text: str, vector: Floats) -> None:
        """Add a vector in memory; `write` decides whether it stays."""
        self._vectors[_key(text)] = vector

    def clear(self) -> None:
        """Drop all vectors from memory."""
        self._vectors = {}

    def write(self, texts: Sequence[str], vectors: Sequence[Floats]) -> None:
        """Keep exactly these."""
        self._vectors = {_key(text): vector for text, vector in zip(texts, vectors, strict=True)}
        keys = np.frombuffer(b"".join(self._vectors), np.uint8)
        table = np.array(list(self._vectors.values()), np.float16).reshape(len(self._vectors), -1 if self._vectors else 0)
        with suppress(OSError):  # a cache: without it the next start takes longer
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial = self._path.with_suffix(".part.npz")
            np.savez(partial, keys=keys, vectors=table)
            partial.replace(self._path)


def _read(path: Path, dimensions: int | None) -> dict[bytes, Floats] | None:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            keys, vectors = stored["keys"].tobytes(), stored["vectors"].astype(np.float32)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):  # absent or damaged: computed again
        return None
    split = [keys[at : at + _KEY_BYTES] for at in range(0, len(keys), _KEY_BYTES)]
    fits = vectors.ndim == 2 and len(vectors) == len(split) and dimensions in (None, vectors.shape[1])
    return dict(zip(split, vectors, strict=True)) if fits else None


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES).digest()
