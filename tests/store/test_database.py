"""Opening databases: made privately, migrated once, refused when unknown."""

import stat
import threading
from pathlib import Path

import pytest
from sqlalchemy import text

from metaclaw.errors import StoreError
from metaclaw.store import (
    SqlGenerations,
    open_database,
)
from tests.support.postgres import PostgresServer

SNAPSHOTS = Path(__file__).with_name("snapshots")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_file_and_its_folder_are_the_owners_alone(sqlite_url: str, tmp_path: Path) -> None:
    database = open_database(sqlite_url)
    folder = tmp_path / "folder"
    with database.writing("writing something") as connection:
        connection.execute(text("UPDATE generations SET reason = 'x'"))
    assert mode(folder) == 0o700
    assert sorted(path.name for path in folder.iterdir()) == [
        "ledger.db",
        "ledger.db-shm",
        "ledger.db-wal",
    ]
    assert {mode(path) for path in folder.iterdir()} == {0o600}
    database.close()


def test_a_file_that_others_could_read_is_closed_to_them(sqlite_url: str, tmp_path: Path) -> None:
    open_database(sqlite_url).close()
    (tmp_path / "folder" / "ledger.db").chmod(0o644)
    open_database(sqlite_url).close()
    assert mode(tmp_path / "folder" / "ledger.db") == 0o600


def test_sqlite_keeps_a_log_ahead_and_checks_references(sqlite_url: str) -> None:
    database = open_database(sqlite_url)
    with database.reading("looking") as connection:
        pragmas = [
            connection.execute(text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        ]
    assert pragmas == ["wal", 1, 1]
    database.close()


def test_postgresql_does_not_compile_queries(postgres: PostgresServer) -> None:
    database = open_database(postgres.new_database())
    with database.reading("asking for a setting") as connection:
        assert connection.execute(text("SHOW jit")).scalar() == "off"
    database.close()


def test_programs_that_start_at_once_migrate_once(empty_url: str) -> None:
    failures: list[StoreError] = []

    def start() -> None:
        try:
            open_database(empty_url).close()
        except StoreError as error:
            failures.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    database = open_database(empty_url)
    assert SqlGenerations(database).latest().number == 0
    database.close()


def test_a_database_of_a_newer_program_is_refused_and_left_alone(url: str) -> None:
    database = open_database(url)
    with database.writing("pretending") as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    database.close()
    with pytest.raises(StoreError, match="newer version"):
        open_database(url)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("not a url", "not a URL"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("mysql://host/name", "only sqlite and postgresql"),
    ],
)
def test_a_url_that_cannot_be_used_is_explained(bad: str, words: str) -> None:
    with pytest.raises(StoreError, match=words):
        open_database(bad)


def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    pytest.importorskip(
        "psycopg", reason="needs a PostgreSQL driver: pip install 'metaclaw-proxy[postgres]'"
    )
    with pytest.raises(StoreError) as caught:
        open_database("postgresql://ada:hunter2@127.0.0.1:1/ledger")
    assert "127.0.0.1" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_file_that_is_no_database_is_refused(sqlite_url: str, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "ledger.db"
    path.parent.mkdir()
    path.write_bytes(b"these are my notes, please keep them" * 100)
    with pytest.raises(StoreError, match="damaged or not a database"):
        open_database(sqlite_url)
    assert path.read_bytes() == b"these are my notes, please keep them" * 100
