"""Addresses: placed skills and splices repeat from turn to turn, so each is stored once under a name made of what it is.

A tuple is the address of its last row, which names the row before it; tuples that begin alike share their beginning.

Snippets are named by their hash alone. The rows of tuples, of which there may be as many as turns, are named by the moment they
were first needed and then by their hash: new ones lie side by side in the database's trees, and a transaction of many turns
writes half as many pages. The price is a second copy of a row that is needed again after it was forgotten here.
"""

import struct
import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from typing import TypeAlias

from metaclaw.domain.turn import Placement, Splice
from metaclaw.store.packing import pack_placed

SnippetRow: TypeAlias = tuple[bytes, bytes]
PlacementRow: TypeAlias = tuple[bytes, bytes | None, bytes, str, bytes]
SpliceRow: TypeAlias = tuple[bytes, bytes | None, int, bytes]

_MAX_TUPLES = 256
_MAX_KNOWN = 8192
_MAX_NAMES = 64
_MOMENT_BYTES = 6
_DIGEST_BYTES = 16 - _MOMENT_BYTES
_NS_A_MS = 1_000_000


def address(*pieces: bytes, size: int = 16) -> bytes:
    """Bytes, sixteen of them unless said otherwise, that name this sequence of pieces."""
    framed: list[bytes] = []
    for piece in pieces:
        framed += (len(piece).to_bytes(8, "little"), piece)
    return blake2b(b"".join(framed), digest_size=size).digest()


class Addresses:
    """Turns tuples into addresses and gathers the rows that are not known to be in the database yet.

    It remembers what it has handed out; whoever could not commit those rows must begin again with a fresh one.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock_ns = clock_ns
        self._known: dict[bytes, bytes] = {}  # what a row is, by its hash, and what it is called
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

    def _named(self, digest: bytes) -> bytes:
        moment = max(0, self._clock_ns() // _NS_A_MS)
        name = self._known[digest] = moment.to_bytes(_MOMENT_BYTES, "big") + digest
        return name

    def _snippet(self, body: bytes | str) -> bytes:
        name = self._names.get(body)
        if name is None or name not in self._known:
            written = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
            name = address(b"snippet", written)
            if name not in self._known:
                self._known[name] = name
                self.snippets.append((name, written))
            if len(self._names) >= _MAX_NAMES:
                self._names.clear()
            self._names[body] = name
        return name

    def _placement(self, previous: bytes | None, item: Placement) -> bytes:
        skills = pack_placed(item.skills, item.listed)
        snippet = self._snippet(item.text)
        digest = address(b"placement", previous or b"", item.anchor, skills.encode(), snippet, size=_DIGEST_BYTES)
        name = self._known.get(digest)
        if name is None:
            name = self._named(digest)
            self.placements.append((name, previous, item.anchor, skills, snippet))
        return name

    def _splice(self, previous: bytes | None, item: Splice) -> bytes:
        snippet = self._snippet(item.inserted)
        digest = address(b"splice", previous or b"", struct.pack("<q", item.offset), snippet, size=_DIGEST_BYTES)
        name = self._known.get(digest)
        if name is None:
            name = self._named(digest)
            self.splices.append((name, previous, item.offset, snippet))
        return name
