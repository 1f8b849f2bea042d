"""Copy everything from one database to another, of the same kind or the other, row for row."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection, Table, column, func, insert, select, table
from sqlalchemy.sql.selectable import TableClause
from sqlalchemy.types import Boolean, LargeBinary

from metaclaw.errors import StoreError
from metaclaw.store.database import Database
from metaclaw.store.dialects import last_number, set_last_number, store_errors, unguarded
from metaclaw.store.schema import generations, metadata

_ROWS_AT_ONCE: Final = 200


def transfer(source: Database, target: Database) -> dict[str, int]:
    """Copy every table to a database that nothing was recorded in yet; the numbers of rows. Raises
    StoreError, with nothing copied.

    Everything is written in one transaction, without the triggers: they were obeyed when the rows
    were first written. The references between rows are checked at its end."""
    doing = f"copying to {target}"
    with (
        source.reading(f"copying {source}") as found,
        store_errors(doing, target.dialect),
        target.engine.connect() as connection,
        unguarded(connection),
    ):
        if any(_count(connection, one) > (one is generations) for one in metadata.tables.values()):
            raise StoreError(
                f"{doing}: something is recorded there already; give an empty database"
            )
        connection.execute(generations.delete())
        copied = {name: _copy(found, connection, one) for name, one in metadata.tables.items()}
        for name, count in copied.items():
            if _count(connection, metadata.tables[name]) != count:
                raise StoreError(f"{doing}: rows of {name} are missing")
        return copied


def _copy(source: Connection, target: Connection, whole: Table) -> int:
    plain = _plain(whole)
    order = [plain.c[one.name] for one in whole.primary_key]
    rows = source.execution_options(yield_per=_ROWS_AT_ONCE).execute(select(plain).order_by(*order))
    count = 0
    for some in rows.mappings().partitions():
        target.execute(insert(plain), [dict(row) for row in some])
        count += len(some)
    if _is_numbered(whole):
        set_last_number(target, whole, last_number(source, whole))
    return count


def _plain(whole: Table) -> TableClause:
    """The table with values as they are stored, which the columns of queries translate."""
    kept = (Boolean, LargeBinary)
    columns: Sequence[object] = [
        column(one.name, one.type if isinstance(one.type, kept) else None) for one in whole.c
    ]
    return table(whole.name, *columns)  # type: ignore[arg-type]


def _is_numbered(whole: Table) -> bool:
    return any(one.autoincrement is True for one in whole.c)


def _count(connection: Connection, whole: Table) -> int:
    return int(connection.execute(select(func.count()).select_from(whole)).scalar_one())
