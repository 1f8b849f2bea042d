"""Content addresses: placed skills and splices repeat from turn to turn, so each is stored once under the hash of what it is.

A tuple is the address of its last row, which names the row before it; tuples that begin alike share their beginning.
"""

import struct
from collections import OrderedDict
from hashlib import blake2b
from typing import TypeAlias

from metaclaw.domain.turn import Placement, Splice
from metaclaw.store.packing import pack_names

SnippetRow: TypeAlias = tuple[bytes, bytes]
PlacementRow: TypeAlias = tuple[bytes, bytes | None, bytes, str, bytes]
SpliceRow: TypeAlias = tuple[bytes, bytes | None, int, bytes]

_MAX_TUPLES = 256
_MAX_KNOWN = 8192
_MAX_NAMES = 64


def address(*pieces: bytes) -> bytes:
    """Sixteen bytes that name this sequence of pieces."""
    framed: list[bytes] = []
    for piece in pieces:
        framed += (len(piece).to_bytes(8, "little"), piece)
    return blake2b(b"".join(framed), digest_size=16).digest()


class Addresses:
    """Turns tuples into addresses and gathers the rows that are not known to be in the database yet.

    It remembers what it has handed out; whoever could not commit those rows must begin again with a fresh one.
    """

    def __init__(self) -> None:
        self._known: set[bytes] = set()
        self._names: dict[bytes | str, bytes] = {}  # of snippets; the same few are placed again and again
        self._tuples: OrderedDict[tuple[Placement, ...] | tuple[Splice, ...], bytes] = OrderedDict()
        self.snippets: list[SnippetRow] = []
        self.placements: list[PlacementRow] = []
        self.splices: list[SpliceRow] = []

    def of_placements(self, items: tuple[Placement, ...]) -> bytes | None:
        """The address of these placements; None for no placements."""
        if not items or (found := self._recall(items)):
            return found if items else None
        last: bytes | None = None
        for item in items:
            last = self._placement(last, item)
        return self._keep(items, last)

    def of_splices(self, items: tuple[Splice, ...]) -> bytes | None:
        """The address of these splices; None for no splices."""
        if not items or (found := self._recall(items)):
            return found if items else None
        last: bytes | None = None
        for item in items:
            last = self._splice(last, item)
        return self._keep(items, last)

    def taken(self) -> None:
        """The gathered rows have been sent to the database."""
        self.snippets, self.placements, self.splices = [], [], []
        if len(self._known) > _MAX_KNOWN:
            self._known.clear()

    def _recall(self, items: tuple[Placement, ...] | tuple[Splice, ...]) -> bytes | None:
        found = self._tuples.get(items)
        if found is not None:
            self._tuples.move_to_end(items)
        return found

    def _keep(self, items: tuple[Placement, ...] | tuple[Splice, ...], last: bytes | None) -> bytes | None:
        if last is not None:
            self._tuples[items] = last
            if len(self._tuples) > _MAX_TUPLES:
                self._tuples.popitem(last=False)
        return last

    def _is_new(self, name: bytes) -> bool:
        if name in self._known:
            return False
        self._known.add(name)
        return True

    def _snippet(self, body: bytes | str) -> bytes:
        name = self._names.get(body)
        if name is None or name not in self._known:
            written = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
            name = address(b"snippet", written)
            if self._is_new(name):
                self.snippets.append((name, written))
            if len(self._names) >= _MAX_NAMES:
                self._names.clear()
            self._names[body] = name
        return name

    def _placement(self, previous: bytes | None, item: Placement) -> bytes:
        skills = pack_names(item.skills)
        snippet = self._snippet(item.text)
        name = address(b"placement", previous or b"", item.anchor, skills.encode(), snippet)
        if self._is_new(name):
            self.placements.append((name, previous, item.anchor, skills, snippet))
        return name

    def _splice(self, previous: bytes | None, item: Splice) -> bytes:
        snippet = self._snippet(item.inserted)
        name = address(b"splice", previous or b"", struct.pack("<q", item.offset), snippet)
        if self._is_new(name):
            self.splices.append((name, previous, item.offset, snippet))
        return name
