"""Store repeated content once: placed skills and splices by content id, request bodies as patches
on the previous request.

A tuple of placements or splices is a chain of rows: its id is the id of its last row, which refers
to the row before it. Tuples with the same beginning share rows.

The id of a snippet is its hash. The id of a chain's row is the time it was first needed, followed
by its hash: new rows are adjacent in the index, so that a transaction of many turns writes half the
pages. If the cache has dropped a row that is needed again, it is stored a second time."""

import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from hashlib import blake2b
from typing import Literal, NamedTuple, TypeAlias

from sqlalchemy import Connection, Select, Table, bindparam, delete, insert, select

from metaclaw.domain.turn import Placement, Splice
from metaclaw.store.rows import ResultRow, pack_placed
from metaclaw.store.schema import MAX_LINKS

SnippetRow: TypeAlias = tuple[bytes, bytes]
PlacementRow: TypeAlias = tuple[bytes, bytes | None, bytes, str, bytes]
SpliceRow: TypeAlias = tuple[bytes, bytes | None, int, bytes]

_MAX_KNOWN = 8192
_MAX_SNIPPET_IDS = 64
_MOMENT_BYTES = 6
_DIGEST_BYTES = 16 - _MOMENT_BYTES
_NS_A_MS = 1_000_000


def content_id(*pieces: bytes, size: int = 16) -> bytes:
    """A hash of this sequence of pieces, `size` bytes long."""
    framed: list[bytes] = []
    for piece in pieces:
        framed += (len(piece).to_bytes(8, "little"), piece)
    return blake2b(b"".join(framed), digest_size=size).digest()


class ContentIds:
    """Computes the ids of tuples of placements and splices, and collects the rows that are not
    known to be in the database. It caches the rows it has returned: after a failed transaction, use
    a new instance."""

    def __init__(self, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock_ns = clock_ns
        self._known: dict[bytes, bytes] = {}  # the id of a row by its hash
        self._snippet_ids: dict[
            bytes | str, bytes
        ] = {}  # by body: the same few snippets are placed again and again
        self.snippets: list[SnippetRow] = []
        self.placements: list[PlacementRow] = []
        self.splices: list[SpliceRow] = []

    def of_placements(self, items: tuple[Placement, ...]) -> bytes | None:
        """The id of these placements; None for an empty tuple."""
        last: bytes | None = None
        for item in items:
            skills, snippet = pack_placed(item.skills, item.listed), self._snippet(item.text)
            content = b"placement", last or b"", item.anchor, skills.encode(), snippet
            row_id, is_new = self._id_of(content)
            if is_new:
                self.placements.append((row_id, last, item.anchor, skills, snippet))
            last = row_id
        return last

    def of_splices(self, items: tuple[Splice, ...]) -> bytes | None:
        """The id of these splices; None for an empty tuple."""
        last: bytes | None = None
        for item in items:
            snippet = self._snippet(item.inserted)
            content = b"splice", last or b"", struct.pack("<q", item.offset), snippet
            row_id, is_new = self._id_of(content)
            if is_new:
                self.splices.append((row_id, last, item.offset, snippet))
            last = row_id
        return last

    def clear_rows(self) -> None:
        """Drop the collected rows, which have been written."""
        self.snippets, self.placements, self.splices = [], [], []
        if len(self._known) > _MAX_KNOWN:
            self._known.clear()

    def _id_of(self, content: tuple[bytes, ...]) -> tuple[bytes, bool]:
        """The id of a row with this content, and whether it is new."""
        digest = content_id(*content, size=_DIGEST_BYTES)
        if (known := self._known.get(digest)) is not None:
            return known, False
        moment = max(0, self._clock_ns() // _NS_A_MS)
        row_id = self._known[digest] = moment.to_bytes(_MOMENT_BYTES, "big") + digest
        return row_id, True

    def _snippet(self, body: bytes | str) -> bytes:
        row_id = self._snippet_ids.get(body)
        if row_id is None or row_id not in self._known:
            written = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
            row_id = content_id(b"snippet", written)
            if row_id not in self._known:
                self._known[row_id] = row_id
                self.snippets.append((row_id, written))
            if len(self._snippet_ids) >= _MAX_SNIPPET_IDS:
                self._snippet_ids.clear()
            self._snippet_ids[body] = row_id
        return row_id


_OVERHEAD = 64  # a patch must save at least this number of bytes


class Patch(NamedTuple):
    """A body as the first `prefix` bytes of its base, then `middle`, then the last `suffix` bytes
    of its base.
    """

    prefix: int
    suffix: int
    middle: bytes


class StoredBody(NamedTuple):
    """A body as stored: a patch on the body of turn `base`, or whole if None; `link` is the number
    of patches to a whole one.
    """

    base: int | None
    link: int
    prefix: int
    suffix: int
    middle: bytes


def make_patch(base: bytes, body: bytes) -> Patch:
    """The patch that makes `body` from `base`: longest common prefix, then longest common suffix of
    what is left.
    """
    prefix = _common_prefix(base, body)
    suffix = _common_suffix(base, body, min(len(base), len(body)) - prefix)
    return Patch(prefix, suffix, body[prefix : len(body) - suffix])


def apply_patch(base: bytes, prefix: int, suffix: int, middle: bytes) -> bytes:
    """The body that `make_patch` got."""
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
    return low + _equal_bytes(
        a[len(a) - high : len(a) - low], b[len(b) - high : len(b) - low], "little"
    )


def _equal_bytes(a: bytes, b: bytes, order: Literal["big", "little"]) -> int:
    """The number of equal bytes at the most significant end of two pieces of equal length."""
    difference = int.from_bytes(a, order) ^ int.from_bytes(b, order)
    return len(a) - (difference.bit_length() + 7) // 8


class RequestLines:
    """Caches the last body of each line of requests (one conversation of a session), so that the
    next is stored as a patch.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held_bytes = 0
        self._last: OrderedDict[tuple[str, ...], tuple[int, int, bytes]] = OrderedDict()

    def follow(self, line: tuple[str, ...], turn: int, body: bytes) -> StoredBody:
        """Return how to store the body of `turn`, the next of its line."""
        link = self._link(line, body)
        self._remember(line, turn, link.link, body)
        return link

    def _link(self, line: tuple[str, ...], body: bytes) -> StoredBody:
        last = self._last.get(line)
        if last is not None and last[1] + 1 < MAX_LINKS:
            base, links, base_body = last
            patch = make_patch(base_body, body)
            if len(patch.middle) + _OVERHEAD <= len(body):
                return StoredBody(base, links + 1, *patch)
        return StoredBody(None, 0, 0, 0, body)

    def _remember(self, line: tuple[str, ...], turn: int, link: int, body: bytes) -> None:
        forgotten = self._last.pop(line, None)
        if forgotten is not None:
            self._held_bytes -= len(forgotten[2])
        if len(body) > self._max_bytes:
            return
        self._last[line] = (turn, link, body)
        self._held_bytes += len(body)
        # The number is limited too, because bodies may be empty.
        while self._held_bytes > self._max_bytes or len(self._last) > 4096:
            _, (_, _, oldest) = self._last.popitem(last=False)
            self._held_bytes -= len(oldest)

    @property
    def held_bytes(self) -> int:
        return self._held_bytes


def rebuild_body(connection: Connection, table: Table, seq: int) -> bytes | None:
    """Rebuild a body from a whole one and the patches on it; None if it is missing."""
    body: bytes | None = None
    for row in connection.execute(_patches_of(table), {"seq": seq}):
        body = apply_patch(body or b"", row.prefix, row.suffix, row.middle)
    return body


@cache
def _patches_of(table: Table) -> Select[*tuple[object, ...]]:
    """The query for the patches of body `seq`, the whole one first. Cached, because building it
    takes longer than running it.
    """
    columns = [table.c[row_id] for row_id in ("turn", "base", "link", "prefix", "suffix", "middle")]
    chain = select(*columns).where(table.c.turn == bindparam("seq")).cte("chain", recursive=True)
    chain = chain.union_all(select(*columns).join(chain, table.c.turn == chain.c.base))
    return select(chain).order_by(chain.c.link)


def remove_bodies(connection: Connection, table: Table, gone: Sequence[int]) -> None:
    """Delete the bodies of these turns; bodies of other turns that were patches on them are stored
    whole. Rows cannot be updated, and a row cannot be deleted before rows that refer to it: so all
    are deleted, and the others inserted again."""
    survivors = _patches_on(connection, table, gone)
    wholes = {
        row.turn: rebuild_body(connection, table, row.turn)
        for row in survivors
        if row.base in set(gone)
    }
    connection.execute(
        delete(table).where(table.c.turn.in_([*gone, *(row.turn for row in survivors)]))
    )
    links: dict[int, int] = {}
    for row in survivors:
        anew = dict(row._mapping)
        if row.turn in wholes:
            anew |= {"base": None, "link": 0, "prefix": 0, "suffix": 0, "middle": wholes[row.turn]}
        else:
            anew["link"] = links[row.base] + 1
        links[row.turn] = anew["link"]
        connection.execute(insert(table), anew)


def _patches_on(connection: Connection, table: Table, bases: Iterable[int]) -> list[ResultRow]:
    """All other rows whose body needs one of these, each after the row it is a patch on."""
    gone = set(bases)
    tree = select(table.c.turn).where(table.c.base.in_(gone)).cte("tree", recursive=True)
    # A union of distinct rows: a row may be reached from several of the bases.
    tree = tree.union(select(table.c.turn).join(tree, table.c.base == tree.c.turn))
    rows = connection.execute(
        select(table).where(table.c.turn.in_(select(tree.c.turn))).order_by(table.c.turn)
    )
    return [row for row in rows if row.turn not in gone]
