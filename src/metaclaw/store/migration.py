"""Schema revisions: which this program knows, and how a database is brought to the newest.

A revision is `migrations/<revision>.sqlite.sql` and `migrations/<revision>.postgresql.sql`. A landed one is never edited. To change
the schema: add the two files and the revision to `REVISIONS`, change `schema` to match, run
`python tests/store/snapshot.py`, and add the digests to `tests/store/test_migrations.py`.
"""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from metaclaw.errors import StoreError
from metaclaw.store.schema import metadata

FOLDER = Path(__file__).with_name("migrations")
REVISIONS = ("0004", "0005", "0006", "0007", "0008", "0009", "0010", "0011")
"""Revisions that have files, oldest first. The first is the baseline, from which a new database begins."""
ABSORBED = ("0001", "0002", "0003")
"""Revisions from before the baseline. Their homes differ by age, since 0002 was edited after it had landed."""
HEAD = REVISIONS[-1]
STORED_REVISION = "SELECT version_num FROM alembic_version"

_VERSION_TABLE = "alembic_version"  # of the migrations before the baseline, so that their programs refuse newer homes

_DROP_OLD_BATCHES = """
    UPDATE batches SET state = 'dropped', ended_us = at_us, note = 'opened before versions were kept',
    size = (SELECT count(*) FROM batch_turns WHERE batch = batches.seq),
    generation = COALESCE((SELECT max(generation) FROM turns JOIN batch_turns ON turn = seq WHERE batch = batches.seq), 0)"""
_LOCK = 0x6D65_7461  # any number, the same in every program that migrates


class NewerSchemaError(StoreError):
    """The database belongs to a newer version of this program."""


def stored_revision(connection: Connection) -> str | None:
    """The revision of a database that has been set up."""
    found: str | None = connection.exec_driver_sql(STORED_REVISION).scalar()
    return found


def require_head(stored: str | None, doing: str) -> None:
    """Raise StoreError for a database that is not at this program's schema."""
    if stored == HEAD:
        return
    _require_known(stored, doing)
    raise StoreError(f"{doing}: its schema ({stored}) is older than this program's ({HEAD}); run `metaclaw store migrate`")


def check_schema(connection: Connection, doing: str) -> str | None:
    """The revision, None for a database that is empty. Raises StoreError if it is not ours, or not of this version or an older."""
    present, ours = set(inspect(connection).get_table_names()), set(metadata.tables)
    if _VERSION_TABLE in present:
        stored = stored_revision(connection)
        _require_known(stored, doing)
        if stored == HEAD and (missing := sorted(ours - present)):
            raise StoreError(f"{doing}: the tables {', '.join(missing)} are missing; run `metaclaw store repair`")
        return stored
    # A PostgreSQL database may be shared with tables of others, a file may not.
    foreign = present & ours if connection.dialect.name == "postgresql" else present
    if foreign:
        raise StoreError(
            f"{doing}: it holds tables ({', '.join(sorted(foreign)[:3])}) but no schema version of this program,"
            " so it seems to be another program's database. Give another store.url"
        )
    return None


def is_newer(stored: str | None) -> bool:
    """Whether a revision is none that this program knows."""
    return stored not in (*ABSORBED, *REVISIONS)


def _require_known(stored: str | None, doing: str) -> None:
    if is_newer(stored):
        raise NewerSchemaError(
            f"{doing}: it was written by a newer version of this program (schema {stored}; this one knows up to {HEAD})"
            " and is left untouched. Upgrade the program, or give another store.url"
        )


def upgrade(connection: Connection, doing: str) -> None:
    """Apply the missing revisions in the caller's transaction. A database that is at HEAD already is left as it is."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    stored = check_schema(connection, doing)  # again: another program may have migrated it since
    if stored == HEAD:
        return
    if stored in ABSORBED:
        _add_missing_columns(connection)
    begin = REVISIONS.index(stored) + 1 if stored in REVISIONS else 0
    for revision in REVISIONS[begin:]:
        run_script(connection, FOLDER / f"{revision}.{connection.dialect.name}.sql")
    connection.execute(text("DELETE FROM alembic_version"))
    connection.execute(text("INSERT INTO alembic_version (version_num) VALUES (:head)"), {"head": HEAD})


def run_script(connection: Connection, script: Path) -> None:
    """Execute a file of SQL statements."""
    # Below SQLAlchemy, which would take a percent sign for a parameter.
    cursor = connection.connection.cursor()
    for statement in _statements(script) if connection.dialect.name == "sqlite" else [script.read_text("utf-8")]:
        cursor.execute(statement)
    cursor.close()


def _statements(script: Path) -> Iterator[str]:
    # `executescript` would commit the caller's transaction.
    statement = ""
    for line in script.read_text("utf-8").splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _add_missing_columns(connection: Connection) -> None:
    """Add what the baseline has and tables of revisions before it may lack; the baseline itself adds whole tables and the rest."""
    tables = set(inspect(connection).get_table_names())
    for table, columns in _added_columns("0" if connection.dialect.name == "sqlite" else "false").items():
        if table not in tables:
            continue
        present = {column["name"] for column in inspect(connection).get_columns(table)}
        for column in columns:
            if column.split()[0] not in present:
                connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {column}")
        if table == "batches" and "state" not in present:
            # A batch that was opened before versions were kept cannot be finished: how its run began is not known.
            connection.exec_driver_sql(_DROP_OLD_BATCHES)


def _added_columns(false: str) -> dict[str, tuple[str, ...]]:
    return {
        "skill_texts": (
            "state TEXT DEFAULT 'live' NOT NULL",
            "author TEXT DEFAULT 'person' NOT NULL",
            f"pinned BOOLEAN DEFAULT {false} NOT NULL",
        ),
        "attempts": ("ended_us BIGINT",),
        "batches": (
            "state TEXT DEFAULT 'open' NOT NULL CONSTRAINT ck_batches_state_is_known CHECK (state IN ('open', 'done', 'dropped'))",
            "generation INTEGER DEFAULT 0 NOT NULL",
            "seed BIGINT DEFAULT 0 NOT NULL",
            "size INTEGER DEFAULT 0 NOT NULL",
            "note TEXT DEFAULT '' NOT NULL",
            "ended_us BIGINT CONSTRAINT ck_batches_what_ended_says_when CHECK ((state = 'open') = (ended_us IS NULL))",
        ),
    }
