"""A map that is changed by making a new one: readers keep theirs, and a change copies only the small parts it touches."""

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

V = TypeVar("V")
_SHARDS = 256


class PersistentMap(Generic[V]):
    """An immutable map from strings, split into shards by hash. `changed` shares every shard it does not touch."""

    __slots__ = ("_shards", "_size")

    def __init__(self) -> None:
        self._shards: tuple[dict[str, V], ...] = tuple({} for _ in range(_SHARDS))
        self._size = 0

    def get(self, key: str) -> V | None:
        """The value of a key, or None."""
        return self._shards[hash(key) % _SHARDS].get(key)

    def __len__(self) -> int:
        return self._size

    def values(self) -> Iterator[V]:
        """Every value, in no particular order."""
        for shard in self._shards:
            yield from shard.values()

    def changed(self, changes: Mapping[str, V | None]) -> "PersistentMap[V]":
        """A new map with these keys set; None takes a key out."""
        shards = list(self._shards)
        copied: set[int] = set()
        size = self._size
        for key, value in changes.items():
            number = hash(key) % _SHARDS
            if number not in copied:
                copied.add(number)
                shards[number] = shards[number].copy()
            shard = shards[number]
            size -= key in shard
            if value is None:
                shard.pop(key, None)
            else:
                shard[key] = value
                size += 1
        result: PersistentMap[V] = PersistentMap.__new__(PersistentMap)
        result._shards = tuple(shards)
        result._size = size
        return result
