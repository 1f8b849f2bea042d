"""Rows by the dozen: every one is inserted, in its order, and with the number it was given."""

from collections.abc import Callable

import pytest
from sqlalchemy import text

from metaclaw.domain.turn import Turn
from metaclaw.store import Database, open_database, schema
from metaclaw.store.rows import Values, session_rows, turn_row
from metaclaw.store.turn_writer import Insertion

TurnMaker = Callable[..., Turn]


@pytest.fixture
def database(url: str) -> Database:
    return open_database(url)


@pytest.mark.parametrize(
    "count", [0, 1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 63, 64, 65, 96, 113, 200]
)
def test_any_number_of_rows_goes_in_whole_and_in_order(
    database: Database, new_turn: TurnMaker, count: int
) -> None:
    turns = [new_turn("s_1", placements=()) for _ in range(count)]
    rows: list[Values] = [turn_row(turn, None) for turn in turns]
    with database.engine.connect() as connection:
        cursor = connection.connection.cursor()
        Insertion(database.dialect, schema.sessions).run(cursor, session_rows(turns))
        numbers = Insertion(database.dialect, schema.turns).run_numbered(cursor, rows)
        cursor.execute("SELECT seq, id FROM turns ORDER BY seq")
        assert [tuple(row) for row in cursor.fetchall()] == list(
            zip(numbers, [turn.id for turn in turns], strict=True)
        )
        assert (
            connection.execute(text("SELECT coalesce(sum(turns), 0) FROM sessions")).scalar_one()
            == count
        )
    database.close()


def test_statements_are_few_whatever_the_number_of_rows(sqlite_url: str) -> None:
    """The driver keeps 256 compiled; ten tables with one of every size from 1 to 64 would push each
    other out.
    """
    database = open_database(sqlite_url)
    ran: set[str] = set()

    class Cursor:
        lastrowid = 0

        def execute(self, statement: str, _: object) -> None:
            ran.add(statement)

    insertion = Insertion(database.dialect, schema.events)
    for count in range(1, 200):
        insertion.run(Cursor(), [(1, "kind", "{}")] * count)  # type: ignore[arg-type]
    assert len(ran) == 18
    database.close()
