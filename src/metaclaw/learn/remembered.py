"""Things that are costly to make and asked for by several at once: made once, and kept for a while."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import anyio

T = TypeVar("T")


class Remembered(Generic[T]):
    """What was made lately. Whoever asks for a thing that is being made waits for it, and makes it if its maker gives up."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._shelves: OrderedDict[Hashable, _Shelf[T]] = OrderedDict()

    def drop(self, key: Hashable) -> None:
        """Forget one thing."""
        self._shelves.pop(key, None)

    def clear(self) -> None:
        """Forget everything."""
        self._shelves.clear()

    async def get(
        self, key: Hashable, make: Callable[[], Awaitable[T]], keep: Callable[[T], bool] = lambda _: True
    ) -> tuple[T, bool]:
        """The thing, and whether it was made just now."""
        shelf = self._shelves.setdefault(key, _Shelf())
        self._shelves.move_to_end(key)
        while len(self._shelves) > self._limit:
            self._shelves.popitem(last=False)
        async with shelf.lock:
            if shelf.things:
                return shelf.things[0], False
            made = await make()
            if keep(made):
                shelf.things.append(made)
            return made, True


@dataclass(slots=True)
class _Shelf(Generic[T]):
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    things: list[T] = field(default_factory=list)
