"""The store of the running program: databases it must not touch, files that vanish, and the `store`
commands.
"""

import gzip
import json
import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.support.program import NOT_LEARNING, Program, providers_toml
from tests.support.provider import Provider


def ask(program: Program, word: str = "hello") -> str:
    """The id of a turn that was answered."""
    body = {"model": "echo", "messages": [{"role": "user", "content": word}]}
    answer = httpx.post(
        f"{program.url}/v1/chat/completions", json=body, headers=program.auth, timeout=20
    )
    assert answer.status_code == 200, answer.text
    return answer.headers["x-metaclaw-turn"]


def recorded(database: Path) -> set[str]:
    with closing(sqlite3.connect(database)) as connection:
        return {turn for (turn,) in connection.execute("SELECT id FROM turns")}


@pytest.fixture
def home(provider: Provider, tmp_path: Path) -> Iterator[Program]:
    program = Program(tmp_path / "home", providers_toml(provider.url), env=NOT_LEARNING)
    yield program
    program.kill()


@pytest.fixture(scope="module")
def used_database(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a database that a program has recorded a turn in."""
    program = Program(
        tmp_path_factory.mktemp("used") / "home", providers_toml(provider.url), env=NOT_LEARNING
    ).start()
    ask(program)
    assert program.stop() == 0
    return (program.home / "ledger.db").read_bytes()


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def from_a_newer_version(path: Path) -> None:
    change(path, "UPDATE alembic_version SET version_num = '9999'")


def half_migrated(path: Path) -> None:
    change(path, "DROP TABLE uses")


def of_another_program(path: Path) -> None:
    path.unlink()
    change(path, "CREATE TABLE recipes (name TEXT)", "INSERT INTO recipes VALUES ('soup')")


def not_a_database(path: Path) -> None:
    path.write_bytes(b"these are my notes, please keep them" * 100)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (from_a_newer_version, "newer version"),
        (half_migrated, "the tables uses are missing; run `metaclaw store repair`"),
        (of_another_program, "another program's database"),
        (not_a_database, "damaged or not a database"),
    ],
)
def test_a_database_that_cannot_be_used_is_never_written_to_and_the_program_says_so(
    home: Program, used_database: bytes, spoil: Callable[[Path], None], words: str
) -> None:
    path = home.home / "ledger.db"
    path.write_bytes(used_database)
    spoil(path)
    before = path.read_bytes(), path.stat().st_mode
    home.start()
    store = home.get("/api/status")["store"]  # before the first request
    assert store["health"] == "degraded"
    assert words in store["reason"]
    ready = httpx.get(f"{home.url}/readyz", headers=home.auth)
    assert (ready.status_code, words in ready.text) == (503, True)
    ask(home)
    assert home.get("/api/status")["store"]["waiting_turns"] == 1
    doctor = json.loads(home.command("doctor", "--json").stdout)
    (found,) = [check for check in doctor["checks"] if check["name"] == "store"]
    assert found["state"] == "fail"
    assert words in found["what"]
    assert home.stop() == 0
    assert (path.read_bytes(), path.stat().st_mode) == before


def test_a_database_that_a_newer_version_migrates_meanwhile_gets_no_more_turns(
    home: Program,
) -> None:
    home.start()
    kept = ask(home)
    with closing(sqlite3.connect(home.home / "ledger.db")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    ask(home)
    assert "newer version" in home.get("/api/status")["store"]["reason"]
    assert home.stop() == 0
    assert recorded(home.home / "ledger.db") == {kept}


@pytest.mark.parametrize("removed", [("-wal",), ("", "-wal", "-shm")])
def test_no_acknowledged_turn_is_lost_when_the_files_are_deleted_and_the_program_is_killed(
    home: Program, removed: tuple[str, ...]
) -> None:
    def remove() -> None:
        for suffix in removed:
            (home.home / f"ledger.db{suffix}").unlink()

    home.start()
    acknowledged = {ask(home, f"word {number}") for number in range(5)}
    remove()
    # Without a request that would make it look.
    store = home.wait_for(
        "/api/status", lambda status: status["store"]["notice"] is not None, within_s=20
    )["store"]
    assert (store["health"], "had been removed" in store["notice"]) == ("healthy", True)
    acknowledged.add(ask(home, "after it was noticed"))
    remove()
    acknowledged.add(ask(home, "before it is noticed"))
    home.kill()
    assert recorded(home.home / "ledger.db") == acknowledged
    assert "store files removed" in home.log.read_text()


def test_a_truncated_file_is_written_anew_where_the_log_still_holds_everything(
    home: Program,
) -> None:
    home.start()
    acknowledged = {ask(home, f"word {number}") for number in range(5)}
    with closing(sqlite3.connect(home.home / "ledger.db", isolation_level=None)) as connection:
        connection.execute("VACUUM")  # so that the log holds every page
        os.truncate(home.home / "ledger.db", 0)
    acknowledged.add(ask(home, "before it is noticed"))
    store = home.get("/api/status")["store"]
    assert (store["health"], "truncated" in store["notice"]) == ("healthy", True)
    home.kill()
    assert recorded(home.home / "ledger.db") == acknowledged


def test_a_truncated_file_that_cannot_be_written_anew_degrades_the_store(home: Program) -> None:
    path = home.home / "ledger.db"
    home.start()
    ask(home)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    os.truncate(path, 0)
    ask(home)
    store = home.get("/api/status")["store"]
    assert (store["health"], store["waiting_turns"]) == ("degraded", 1)
    assert "truncated to 0 bytes" in store["reason"]
    assert "metaclaw store restore" in store["reason"]


def test_an_empty_file_at_the_start_is_said(home: Program) -> None:
    (home.home / "ledger.db").touch()
    assert "0 bytes" in home.command("doctor").stdout
    home.start()
    assert "was empty (0 bytes)" in home.get("/api/status")["store"]["notice"]
    assert "was empty" in home.log.read_text()


def test_a_backup_made_while_the_program_runs_is_restored_after_a_disaster(
    home: Program, tmp_path: Path
) -> None:
    home.start()
    kept = {ask(home, f"word {number}") for number in range(3)}
    made = home.command("store", "backup", str(tmp_path / "copy.db"), "--json")
    assert json.loads(made.stdout)["turns"] == 3, made.stderr
    checked = home.command("store", "check", "--json")
    assert (json.loads(checked.stdout)["sound"], json.loads(checked.stdout)["turns"]) == (True, 3)
    ask(home)
    refused = home.command("store", "restore", str(tmp_path / "copy.db"), "--yes")
    assert (refused.returncode, "metaclaw stop" in refused.stderr) == (1, True)
    home.kill()
    (home.home / "ledger.db").write_bytes(b"disaster" * 1000)
    assert home.command("store", "restore", str(tmp_path / "copy.db"), "--yes").returncode == 0
    home.start()
    assert home.get("/api/status")["store"]["health"] == "healthy"
    kept.add(ask(home))
    assert home.stop() == 0
    assert recorded(home.home / "ledger.db") == kept


def test_damage_inside_the_database_is_said_although_recording_goes_on(home: Program) -> None:
    home.start()
    for number in range(10):
        ask(home, f"{number} " + "word " * 10_000)
    assert home.stop() == 0
    path = home.home / "ledger.db"
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 8192 * 4096)
        file.write(random.Random(5).randbytes(6 * 4096))
    home.start()
    store = home.wait_for(
        "/api/status", lambda status: status["store"]["notice"] is not None, within_s=30
    )["store"]
    assert "damaged" in store["notice"]
    assert "metaclaw store repair" in store["notice"]
    assert "store is damaged" in home.log.read_text()
    assert (
        "! The store needs attention: the database is damaged"
        in home.command("status", "--all").stdout
    )
    assert "is damaged" in home.command("doctor").stdout
    assert home.stop() == 0
    doctor = json.loads(home.command("doctor", "--json").stdout)
    (found,) = [check for check in doctor["checks"] if check["name"] == "store"]
    assert (found["state"], "damaged" in found["what"]) == ("fail", True)


def test_a_store_over_its_limit_with_nothing_to_remove_is_said(home: Program) -> None:
    home.env["METACLAW__STORE__MAX_GB"] = "0.0001"
    home.start()
    ask(home, "word " * 20_000)
    store = home.wait_for(
        "/api/status", lambda status: status["store"]["notice"] is not None, within_s=30
    )["store"]
    assert "over its limit (store.max_gb)" in store["notice"]
    assert "every session is active" in store["notice"]
    assert "over its limit" in home.command("status", "--all").stdout
    assert "over its limit" in home.command("doctor").stdout


def test_the_store_is_kept_below_its_limit_and_the_file_shrinks(home: Program) -> None:
    home.start()
    old = {ask(home, f"{number} " + "word " * 20_000) for number in range(20)}
    assert home.stop() == 0
    path = home.home / "ledger.db"
    before = path.stat().st_size
    home.env["METACLAW__STORE__MAX_GB"] = "0.001"
    # A day later these sessions are over, whether or not anybody said so.
    change(
        path,
        "UPDATE sessions SET began_us = began_us - 200000000000, last_us = last_us - 200000000000",
    )
    home.start()
    told = home.wait_for(
        "/api/status", lambda status: status["store"]["removed_sessions"], within_s=30
    )["store"]
    assert told["max_bytes"] == 1_000_000
    kept = ask(home)
    home.wait_for(
        "/api/status", lambda status: status["store"]["size_bytes"] < 0.7 * before, within_s=30
    )
    assert "removed to make room" in home.command("status", "--all").stdout
    assert home.stop() == 0
    assert path.stat().st_size < 0.7 * before
    left = recorded(path)
    assert kept in left
    assert 0 < len(left & old) < len(old), "only as many as necessary"


def test_a_home_of_the_schema_before_is_brought_over_and_its_turns_are_shown(home: Program) -> None:
    packed = Path(__file__).parents[1] / "store" / "home_0012.db.gz"
    (home.home / "ledger.db").write_bytes(gzip.decompress(packed.read_bytes()))
    before = recorded(home.home / "ledger.db")
    home.start()
    shown = {session["id"] for session in home.get("/api/sessions")["sessions"]}
    assert shown == {"first", "second", "s_growing"}
    assert home.get("/api/turns/t_cut")["truncated"]
    assert not home.get("/api/turns/t_0001")["truncated"]
    asked = ask(home)
    assert home.stop() == 0
    assert recorded(home.home / "ledger.db") == {*before, asked}
    (kept,) = (home.home / "backups").iterdir()
    assert recorded(kept) == before
