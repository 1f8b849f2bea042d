"""Bodies as what changed since the one before: agents send the whole conversation again with every request."""

from collections import OrderedDict
from typing import Literal, NamedTuple

from metaclaw.store.schema import MAX_LINKS

_OVERHEAD = 64  # a patch that saves less than this is not worth a link


class Patch(NamedTuple):
    """A body as the first `prefix` bytes of its base, then `middle`, then the last `suffix` bytes of its base."""

    prefix: int
    suffix: int
    middle: bytes


class Link(NamedTuple):
    """A body as it is stored: a patch on the body of turn `base`, or whole where there is none; `link` steps from a whole one."""

    base: int | None
    link: int
    prefix: int
    suffix: int
    middle: bytes


def diff(base: bytes, body: bytes) -> Patch:
    """The patch that makes `body` from `base`: longest common prefix, then longest common suffix of what is left."""
    prefix = _common_prefix(base, body)
    suffix = _common_suffix(base, body, min(len(base), len(body)) - prefix)
    return Patch(prefix, suffix, body[prefix : len(body) - suffix])


def apply(base: bytes, prefix: int, suffix: int, middle: bytes) -> bytes:
    """The body that `diff` was given."""
    return b"".join((base[:prefix], middle, base[len(base) - suffix :]))


# Slices compare by memcmp and long integers by exclusive or; a loop over bytes in Python takes
# more than a hundred times as long.
_BLOCK_BYTES = 256


def _common_prefix(a: bytes, b: bytes) -> int:
    low, high = 0, min(len(a), len(b))
    while high - low > _BLOCK_BYTES:
        middle = (low + high) // 2
        if a.startswith(b[low:middle], low):
            low = middle
        else:
            high = middle
    return low + _equal_bytes(a[low:high], b[low:high], "big")


def _common_suffix(a: bytes, b: bytes, limit: int) -> int:
    low, high = 0, limit
    while high - low > _BLOCK_BYTES:
        middle = (low + high) // 2
        if a.endswith(b[len(b) - middle : len(b) - low], 0, len(a) - low):
            low = middle
        else:
            high = middle
    return low + _equal_bytes(a[len(a) - high : len(a) - low], b[len(b) - high : len(b) - low], "little")


def _equal_bytes(a: bytes, b: bytes, order: Literal["big", "little"]) -> int:
    """How many bytes at the most significant end of two equally long pieces are equal."""
    difference = int.from_bytes(a, order) ^ int.from_bytes(b, order)
    return len(a) - (difference.bit_length() + 7) // 8


class Lineages:
    """The last body of each line of requests, so that the next can be stored as a patch; bounded in bytes, oldest forgotten."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held_bytes = 0
        self._last: OrderedDict[tuple[str, ...], tuple[int, int, bytes]] = OrderedDict()

    def follow(self, line: tuple[str, ...], turn: int, body: bytes) -> Link:
        """How to store the body of `turn`, the next of its line."""
        link = self._link(line, body)
        self._remember(line, turn, link.link, body)
        return link

    def _link(self, line: tuple[str, ...], body: bytes) -> Link:
        last = self._last.get(line)
        if last is not None and last[1] + 1 < MAX_LINKS:
            base, links, base_body = last
            patch = diff(base_body, body)
            if len(patch.middle) + _OVERHEAD <= len(body):
                return Link(base, links + 1, *patch)
        return Link(None, 0, 0, 0, body)

    def _remember(self, line: tuple[str, ...], turn: int, link: int, body: bytes) -> None:
        forgotten = self._last.pop(line, None)
        if forgotten is not None:
            self._held_bytes -= len(forgotten[2])
        if len(body) > self._max_bytes:
            return
        self._last[line] = (turn, link, body)
        self._held_bytes += len(body)
        # Bodies of no bytes must not pile up either.
        while self._held_bytes > self._max_bytes or len(self._last) > 4096:
            _, (_, _, oldest) = self._last.popitem(last=False)
            self._held_bytes -= len(oldest)

    @property
    def held_bytes(self) -> int:
        """Bytes of bodies held now."""
        return self._held_bytes
