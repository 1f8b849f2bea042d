"""A database is copied to one of the other kind and back, and is the same row for row."""

import gzip
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from metaclaw.errors import StoreError
from metaclaw.store import Database, SqlCursors, open_database, transfer
from metaclaw.store.dialects import last_number
from metaclaw.store.schema import metadata
from tests.support.postgres import PostgresServer

RECORDED = Path(__file__).with_name("home_0012.db.gz")


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Database]:
    """A home that was used."""
    path = tmp_path / "recorded.db"
    with gzip.open(RECORDED) as packed, path.open("wb") as file:
        shutil.copyfileobj(packed, file)
    database = open_database(f"sqlite:///{path}")
    with database.writing("giving a number away") as connection:
        connection.execute(text("INSERT INTO events (at_us, kind, data) VALUES (1, 'x', '{}')"))
        connection.execute(text("DELETE FROM events WHERE kind = 'x'"))
    yield database
    database.close()


def everything(database: Database) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    with database.reading("comparing") as connection:
        for table in metadata.sorted_tables:
            rows = connection.execute(text(f"SELECT * FROM {table.name}")).all()
            found[table.name] = sorted(repr(_plain(row)) for row in rows)
            if any(column.autoincrement is True for column in table.columns):
                found[f"the last number of {table.name}"] = [last_number(connection, table)]
    return found


def _plain(row: Any) -> tuple[object, ...]:
    """Values as both databases' drivers give them."""
    return tuple(int(one) if isinstance(one, bool) else one for one in row)


def test_a_copy_on_postgresql_and_its_copy_back_are_the_same_row_for_row(
    recorded: Database, postgres: PostgresServer, tmp_path: Path
) -> None:
    wanted = everything(recorded)
    filled = [name for name, rows in wanted.items() if rows and rows != [0]]
    assert len(filled) > 25, f"the recorded home has too little: {filled}"
    with ExitStack() as opened:
        server = open_database(postgres.prepared_database())
        opened.callback(server.close)
        copied = transfer(recorded, server)
        assert everything(server) == wanted
        assert copied["turns"] == len(wanted["turns"]) > 0
        back = open_database(f"sqlite:///{tmp_path / 'back.db'}")
        opened.callback(back.close)
        transfer(server, back)
        assert everything(back) == wanted
        for database in (server, back):
            SqlCursors(database).move_cursor("it works", 1)
            with pytest.raises(StoreError, match="never edited"), database.writing("edit") as found:
                found.execute(text("UPDATE turns SET model = 'other'"))
        with pytest.raises(StoreError, match="something is recorded there already"):
            transfer(recorded, server)
