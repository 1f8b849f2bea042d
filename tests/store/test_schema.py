"""The schema: both databases get the same one, and a database of the schema before is brought over with
all it holds.

`home_0012.db.gz` is the database of a home that the program of schema 0012 made (requests, rules and
feedback over HTTP, the rest by its own store), `home_0012.json` what that program read from it, and
`schema_0012.postgresql.sql.gz` how it made its tables in PostgreSQL."""

import gzip
import os
import signal
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import Connection, MetaData, create_engine, inspect, text

from metaclaw.domain.front_matter import record_of
from metaclaw.errors import StoreError
from metaclaw.store import (
    SCHEMA_REVISION,
    Database,
    LedgerReader,
    SqlBackups,
    SqlBatches,
    SqlCandidates,
    SqlGenerations,
    SqlPolicies,
    SqlSpending,
    SqlVerdicts,
    check_file,
    open_database,
    repair,
    restore,
)
from metaclaw.store import schema as store_schema
from metaclaw.store.schema import metadata
from tests.support.postgres import PostgresServer

HERE = Path(__file__).parent


def old_file(path: Path) -> str:
    """The URL of a database that the program of schema 0012 wrote."""
    path.write_bytes(gzip.decompress((HERE / "home_0012.db.gz").read_bytes()))
    return f"sqlite:///{path}"


def old_postgres(path: Path, server: PostgresServer) -> str:
    """The same in PostgreSQL, with the tables that the program of that schema made."""
    source, url = create_engine(old_file(path)), server.new_database()
    target = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    tables = MetaData()
    tables.reflect(source)
    with source.connect() as old, target.begin() as connection:
        script = gzip.decompress((HERE / "schema_0012.postgresql.sql.gz").read_bytes()).decode()
        connection.connection.cursor().execute(script)
        # Without triggers, which would judge each row by those that are not there yet.
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        connection.execute(text("DELETE FROM generations"))
        reflected = MetaData()
        reflected.reflect(connection)
        for name, table in tables.tables.items():
            rows = [dict(row._mapping) for row in old.execute(table.select())]
            if rows and name not in ("alembic_version", "sqlite_sequence"):
                connection.execute(reflected.tables[name].insert(), rows)
    source.dispose()
    target.dispose()
    return url


def facts_of(database: Database) -> dict[str, object]:
    """All that the program reads from a database, as in `home_0012.json`."""
    reader, generations = LedgerReader(database), SqlGenerations(database)
    ids = [row.id for row in reader.turns_after(0, 1000)]
    turns = [found.turn for turn in ids if (found := reader.turn(turn)) is not None]
    return {
        "turns": turns,
        "sessions": reader.sessions(100),
        "verdicts": [one for turn in ids for one in SqlVerdicts(database).verdicts_of(turn)],
        "generations": [
            _fields(made, skills=[record_of(skill) for skill in made.skills])
            for number in range(generations.latest().number + 1)
            if (made := generations.at(number)) is not None
        ],
        "history": generations.history(),
        "candidates": [
            _fields(one, proposal=_fields(one.proposal, skill=record_of(one.proposal.skill)))
            for one in SqlCandidates(database).candidates()
        ],
        "versions": SqlPolicies(database).versions(),
        "batch": SqlBatches(database).batch(1),
        "events": reader.events(0, 1000),
        "spending": [[key, sums] for key, sums in SqlSpending(database).sums().items()],
        "counts": reader.counts(),
        "learning": reader.learning_counts(),
    }


def _fields(value: Any, **others: object) -> dict[str, object]:
    """The fields of a value, some of them in another form: skills are compared as they are stored,
    because the program that made the home had other fields for them."""
    return {field.name: getattr(value, field.name) for field in fields(value)} | others


def as_json(facts: dict[str, object]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(facts, enc_hook=sorted))


def expected() -> Any:
    """What the old program read, with the fields that its turns, proposals and reports did not have."""
    known = msgspec.json.decode((HERE / "home_0012.json").read_bytes())
    for one in (*known["sessions"], *known["turns"]):
        one["scope"]["channel"] = None
    for one in known["candidates"]:
        one["proposal"]["said_by"] = ""
    for version in known["versions"]:
        if version["report"] is not None:
            version["report"]["left_recording"] = None
            # What a report was compared with has changed, and its name with it.
            version["report"]["golden_untrained"] = None
            del version["report"]["golden_serving"]
    for turn in known["turns"]:
        turn["times"]["asked_s"] = None
    return known


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_database_of_the_schema_before_is_brought_over_with_all_it_holds(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "ledger.db"
    url = (
        old_file(path)
        if kind == "sqlite"
        else old_postgres(path, request.getfixturevalue("postgres"))
    )
    for _ in range(2):  # the second time there is nothing to do
        database = open_database(url)
        assert as_json(facts_of(database)) == expected()
        database.close()


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


def test_the_backup_of_a_file_that_is_brought_over_is_the_file_as_it_was(tmp_path: Path) -> None:
    url, before = old_file(tmp_path / "ledger.db"), dump(tmp_path / "ledger.db")
    database = open_database(url)
    (kept,) = (tmp_path / "backups").iterdir()
    assert (dump(kept), kept.stat().st_mode & 0o777) == (before, 0o600)
    assert check_file(kept).problems == ()
    assert [backup.path for backup in SqlBackups(database).known()] == [kept]
    database.close()


def test_a_backup_of_the_schema_before_is_restored_and_not_backed_up_again(tmp_path: Path) -> None:
    backup, path = tmp_path / "kept.db", tmp_path / "home" / "ledger.db"
    old_file(backup)
    open_database(f"sqlite:///{path}").close()
    restore(path, backup)
    assert check_file(path).revision == SCHEMA_REVISION
    assert not (path.parent / "backups").exists()


def test_a_repair_of_the_schema_before_keeps_its_turns(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    old_file(path)
    repair(path)
    database = open_database(f"sqlite:///{path}")
    assert as_json(facts_of(database))["turns"] == expected()["turns"]
    database.close()


def test_a_program_killed_anywhere_while_it_brings_a_file_over_leaves_the_old_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, before = old_file(tmp_path / "ledger.db"), dump(tmp_path / "ledger.db")
    run, statements = store_schema._run, 0

    def count(connection: Connection, all_of: Iterable[str]) -> None:
        nonlocal statements
        found = list(all_of)
        statements = len(found)
        run(connection, found)

    monkeypatch.setattr(store_schema, "_run", count)
    open_database(url).close()
    for at in (0, 1, 2, 3, statements // 2, statements - 1, statements):
        old_file(tmp_path / "ledger.db")

        def dies(connection: Connection, all_of: Iterable[str], upto: int = at) -> None:
            run(connection, list(all_of)[:upto])
            os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr(store_schema, "_run", dies)
        if (child := os.fork()) == 0:
            open_database(url)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        assert dump(tmp_path / "ledger.db") == before
        assert all(dump(kept) == before for kept in (tmp_path / "backups").iterdir())
        monkeypatch.setattr(store_schema, "_run", run)
        database = open_database(url)
        assert as_json(facts_of(database)) == expected()
        database.close()


def test_an_older_schema_is_left_alone_and_told_how_to_bring_it_over(tmp_path: Path) -> None:
    url = old_file(tmp_path / "ledger.db")
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0009'")
    before = dump(tmp_path / "ledger.db")
    with pytest.raises(StoreError, match=r"0009.*too old.*`metaclaw store migrate` of the version"):
        open_database(url)
    assert dump(tmp_path / "ledger.db") == before
    assert not (tmp_path / "backups").exists()


def shape_of(connection: Connection) -> dict[str, object]:
    """The tables with their columns, keys, indices and constraints, and the triggers."""
    look = inspect(connection)
    found: dict[str, object] = {
        name: (
            {
                one["name"]: (str(one["type"]).removesuffix(" PRECISION"), one["nullable"])
                for one in look.get_columns(name)
            },
            look.get_pk_constraint(name)["constrained_columns"],
            sorted(str(one["name"]) for one in look.get_indexes(name)),
            sorted(str(one["name"]) for one in look.get_check_constraints(name)),
            sorted(str(one["name"]) for one in look.get_foreign_keys(name)),
        )
        for name in sorted(look.get_table_names())
    }
    if connection.dialect.name == "sqlite":
        triggers = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY name"
    else:
        triggers = (
            "SELECT tgname, prosrc, tgattr::text FROM pg_trigger JOIN pg_proc ON pg_proc.oid = tgfoid"
            " JOIN pg_class ON pg_class.oid = tgrelid WHERE NOT tgisinternal AND relnamespace ="
            " current_schema()::regnamespace ORDER BY tgname"
        )
    return found | {"triggers": [tuple(row) for row in connection.execute(text(triggers))]}


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_database_that_was_brought_over_has_the_schema_of_a_new_one(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "sqlite":
        urls = [old_file(tmp_path / "old.db"), f"sqlite:///{tmp_path / 'new.db'}"]
    else:
        server = request.getfixturevalue("postgres")
        urls = [old_postgres(tmp_path / "old.db", server), server.new_database()]
    shapes = []
    for url in urls:
        database = open_database(url)
        with database.reading("comparing") as connection:
            shapes.append(shape_of(connection))
        database.close()
    assert shapes[0] == shapes[1]


def names_of(connection: Connection) -> dict[str, list[str]]:
    """The names of each table's indices and constraints but for keys, which SQLite does not name,
    and the index that only a shared store gets.
    """
    look = inspect(connection)
    return {
        table: sorted(
            one["name"] or ""
            for one in (*look.get_indexes(table), *look.get_check_constraints(table))
            if not (one["name"] or "").startswith(("uq_", "ix_turns_head"))
        )
        for table in metadata.tables
    }


def test_both_databases_have_the_same_indices_and_constraints(
    sqlite_url: str, postgres: PostgresServer
) -> None:
    found = []
    for url in (sqlite_url, postgres.new_database()):
        database = open_database(url)
        with database.reading("comparing") as connection:
            found.append(names_of(connection))
        database.close()
    assert found[0] == found[1]
