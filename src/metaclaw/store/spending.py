"""Spending: what calls to models cost, kept as sums by local day, purpose, model and learned item."""

from collections.abc import Callable, Collection, Mapping
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, Select, delete, func, select, text, update

from metaclaw.domain.chat import Usage
from metaclaw.domain.status import Spending, SpendingKey
from metaclaw.domain.turn import TurnKind
from metaclaw.store.cursors import present, read_cursor
from metaclaw.store.database import Database
from metaclaw.store.rows import ResultRow, pack_text, unpack_instant, unpack_text
from metaclaw.store.schema import candidates, cursors, memberships, spending, turns

_CURSOR = "spending of turns"
_TURNS_AT_ONCE = 2000
_SUMS = (
    "turns",
    "calls",
    "failures",
    "estimated",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "unpriced_tokens",
    "cost",
)
_KEYS = ("day", "purpose", "model", "item")
_ADD = text(
    f"INSERT INTO spending ({', '.join((*_KEYS, *_SUMS))})"
    f" VALUES ({', '.join(f':{name}' for name in (*_KEYS, *_SUMS))})"
    f" ON CONFLICT ({', '.join(_KEYS)}) DO UPDATE SET {', '.join(f'{name} = spending.{name} + excluded.{name}' for name in _SUMS)}"
)
_BEGIN = text("INSERT INTO cursors (name, seq) VALUES (:name, 0) ON CONFLICT (name) DO NOTHING")

Sums = Mapping[SpendingKey, Spending]
PriceServed = Callable[[datetime, str, Usage], tuple[SpendingKey, Spending]]
"""Prices a main turn of an agent: when it came, `provider/model`, and the tokens it took."""


class SqlSpending:
    """Sums of calls. Any number of processes may add to them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, sums: Sums) -> None:
        """Add to the sums, all or nothing. An item that no skill or candidate is called any more is left out of the key."""
        if not sums:
            return
        with self._database.writing("counting calls to models") as connection:
            known = _known(connection, {pack_text(key.item) for key in sums if key.item})
            for key, more in sums.items():
                _add(connection, key, more, pack_text(key.item) if pack_text(key.item) in known else "")

    def add_served(self, price: PriceServed) -> int:
        """Count the main turns of agents that were recorded since the last time; the number of rows that were read. Blocks."""
        with self._database.reading("looking for new turns") as connection:
            counted = read_cursor(connection, _CURSOR) or 0
            if (connection.execute(select(func.max(turns.c.seq))).scalar() or 0) <= counted:
                return 0
        with self._database.writing("counting turns") as connection:
            # Locked, since several programs may count on PostgreSQL; SQLite has one writer at a time.
            connection.execute(_BEGIN, {"name": _CURSOR})
            cursor = select(cursors.c.seq).where(cursors.c.name == _CURSOR).with_for_update()
            after = connection.execute(cursor).scalar_one()
            rows = connection.execute(self._unread(after)).all()
            sums: dict[SpendingKey, Spending] = {}
            for row in rows:
                if row.kind == TurnKind.MAIN.value:
                    model = f"{unpack_text(row.provider)}/{unpack_text(row.model)}"
                    usage = Usage(row.input_tokens or 0, row.output_tokens or 0, row.cached_tokens or 0)
                    key, more = price(unpack_instant(row.received_us), model, usage)
                    sums[key] = sums.get(key, Spending()) + more
            for key, more in sums.items():
                _add(connection, key, more, "")
            if rows:
                connection.execute(update(cursors).where(cursors.c.name == _CURSOR), {"seq": rows[-1].seq})
        return len(rows)

    def sums(self, since: str = "", *, by_item: bool = False) -> dict[SpendingKey, Spending]:
        """The sums of the days from `since` on, oldest first; items are added up unless they are asked for."""
        keys = [spending.c[name] for name in (_KEYS if by_item else _KEYS[:3])]
        query = select(*keys, *(func.sum(spending.c[name]).label(name) for name in _SUMS))
        query = query.where(spending.c.day >= since).group_by(*keys).order_by(*keys)
        with self._database.reading("reading what calls to models cost") as connection:
            return dict(_sum_of(row, unpack_text(row.item) if by_item else "") for row in connection.execute(query))

    def forget_items_before(self, day: str) -> None:
        """Keep only the daily sums of days before this one, without the items."""
        is_old = (spending.c.day < day) & (spending.c.item != "")
        with self._database.reading("looking for old items") as connection:
            if connection.execute(select(spending.c.day).where(is_old).limit(1)).first() is None:
                return
        with self._database.writing("adding up what old calls cost") as connection:
            _drop_items(connection, is_old)

    def _unread(self, after: int) -> Select[*tuple[object, ...]]:
        columns = ("seq", "kind", "provider", "model", "received_us", "input_tokens", "output_tokens", "cached_tokens")
        query = select(*(turns.c[name] for name in columns)).where(turns.c.seq > after)
        if self._database.kind == "postgresql":
            # A lower number may be committed later; see LedgerReader.
            query = query.where(text("age(turns.xmin) > age(pg_snapshot_xmin(pg_current_snapshot())::xid)"))
        return query.order_by(turns.c.seq).limit(_TURNS_AT_ONCE)


def erase_items(connection: Connection, names: Collection[str]) -> None:
    """Take the packed names of forgotten skills out of the sums, unless others have them; what they cost stays counted."""
    if gone := set(names) - _known(connection, names):
        _drop_items(connection, spending.c.item.in_(gone))


def _drop_items(connection: Connection, condition: ColumnElement[bool]) -> None:
    for row in connection.execute(select(spending).where(condition)).all():
        key, more = _sum_of(row, "")
        _add(connection, key, more, "")
    connection.execute(delete(spending).where(condition))


def _known(connection: Connection, names: Collection[str]) -> set[str]:
    """Of these names those of skills and candidates: not even the name of a forgotten one is kept."""
    return present(connection, memberships.c.name, names) | present(connection, candidates.c.name, names)


def _add(connection: Connection, key: SpendingKey, more: Spending, item: str) -> None:
    values = {name: getattr(more, name) for name in _SUMS}
    connection.execute(_ADD, {"day": key.day, "purpose": key.purpose, "model": pack_text(key.model), "item": item, **values})


def _sum_of(row: ResultRow, item: str) -> tuple[SpendingKey, Spending]:
    numbers = {name: int(getattr(row, name)) for name in _SUMS[:-1]}
    return SpendingKey(row.day, row.purpose, unpack_text(row.model), item), Spending(**numbers, cost=float(row.cost))
