"""`metaclaw store`, on real databases."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from metaclaw.domain.ids import new_session_id
from metaclaw.instance import acquire
from metaclaw.store import LedgerReader, SqlBackups, SqlForgetting, open_database
from tests.cli.program import metaclaw
from tests.cli.recorded import record, store, turn


def damage(path: Path, pages: range) -> None:
    """Overwrite whole pages, as a failing disk does."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    content = bytearray(path.read_bytes())
    for page in pages:
        content[page * size : (page + 1) * size] = b"\xa5" * size
    path.write_bytes(content)


def body_pages(path: Path) -> list[int]:
    """Pages that hold answers, by number from 0."""
    content = path.read_bytes()
    return [
        page
        for page in range(1, len(content) // 4096)
        if b'{"id": "x"}' in content[page * 4096 : (page + 1) * 4096]
    ]


def test_a_sound_database_is_said_to_be_sound_and_needs_no_repair(home: Path) -> None:
    assert metaclaw("store", "check", "--json").facts["sound"] is True
    assert not home.exists()
    record(home, turn(new_session_id()))
    found = metaclaw("store", "check", "--json")
    assert (found.code, found.facts["turns"], found.facts["problems"]) == (0, 1, [])
    assert "sound" in metaclaw("store", "check").out
    assert metaclaw("store", "repair", "--json").facts["repaired"] is False
    assert metaclaw("store", "migrate", "--json").facts == {"schema": found.facts["schema"]}


def test_everything_is_copied_to_another_database(home: Path, tmp_path: Path) -> None:
    one = turn(new_session_id())
    record(home, one)
    place = f"sqlite:///{tmp_path / 'elsewhere' / 'ledger.db'}"
    done = metaclaw("store", "migrate", "--to", place, "--json")
    assert (done.code, done.facts["turns"]) == (0, 1)
    assert metaclaw("config", "set", "store.url", place).code == 0
    with store(home) as database:
        assert LedgerReader(database).turn(one.id) == LedgerReader(open_database(place)).turn(
            one.id
        )
        assert database.path == home / "ledger.db"
    again = metaclaw("store", "migrate", "--to", place)
    assert (again.code, "something is recorded there already" in again.err) == (1, True)


def test_a_damaged_database_is_found_out_and_what_can_be_read_is_saved(home: Path) -> None:
    turns = [turn(session) for session in [new_session_id() for _ in range(20)] for _ in range(15)]
    record(home, *turns)
    path = home / "ledger.db"
    pages = body_pages(path)
    damage(path, range(pages[len(pages) // 2], pages[len(pages) // 2] + 2))
    damaged = path.read_bytes()
    found = metaclaw("store", "check")
    assert (found.code, "metaclaw store repair" in found.out) == (1, True)
    assert "nothing was changed" in metaclaw("store", "repair").err
    assert path.read_bytes() == damaged
    done = metaclaw("store", "repair", "--yes", "--json")
    saved = {table["name"]: table for table in done.facts["tables"]}
    assert done.facts["repaired"] is True
    assert Path(done.facts["former"]).read_bytes() == damaged
    assert saved["turns"]["dropped"] > 0
    after = metaclaw("store", "check", "--json")
    assert (after.code, after.facts["turns"]) == (0, saved["turns"]["saved"])
    with store(home) as database:
        reader = LedgerReader(database)
        kept = [(one, whole.turn) for one in turns if (whole := reader.turn(one.id)) is not None]
        assert all(original == saved_turn for original, saved_turn in kept)
        assert len(kept) == saved["turns"]["saved"] > len(turns) // 2
        assert sum(session.turns for session in reader.sessions(100)) == len(kept)
        assert [backup.path for backup in SqlBackups(database).known()] == [
            Path(done.facts["former"])
        ]


def test_missing_tables_are_made_by_a_repair_and_everything_else_stays(home: Path) -> None:
    one = turn(new_session_id())
    record(home, one)
    with closing(sqlite3.connect(home / "ledger.db")) as connection:
        connection.execute("DROP TABLE uses")
    refused = metaclaw("sessions", "list")
    assert (refused.code, "metaclaw store repair" in refused.err) == (1, True)
    assert metaclaw("store", "repair", "--yes").code == 0
    with store(home) as database:
        assert LedgerReader(database).turn(one.id) is not None


def test_a_file_that_is_no_database_cannot_be_repaired_and_stays(home: Path) -> None:
    home.mkdir()
    path = home / "ledger.db"
    path.write_bytes(b"these are my notes, please keep them" * 100)
    done = metaclaw("store", "repair", "--yes")
    assert (done.code, "metaclaw store restore" in done.err) == (1, True)
    assert "Traceback" not in done.err
    assert [one.name for one in home.iterdir() if one.name.startswith("ledger")] == ["ledger.db"]
    assert path.read_bytes() == b"these are my notes, please keep them" * 100


def test_a_database_of_a_newer_version_is_not_repaired(home: Path) -> None:
    record(home, turn(new_session_id()))
    path = home / "ledger.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    before = path.read_bytes()
    checked = metaclaw("store", "check")
    assert (checked.code, "newer version" in checked.out, "Upgrade the program" in checked.out) == (
        1,
        True,
        True,
    )
    assert "store repair" not in checked.out
    done = metaclaw("store", "repair", "--yes")
    assert (done.code, "newer version" in done.err, "Upgrade the program" in done.err) == (
        1,
        True,
        True,
    )
    assert path.read_bytes() == before
    doctor = metaclaw("doctor").out
    assert "upgrade the program" in doctor
    assert "store repair" not in doctor


def test_a_broken_header_is_said_once_and_a_backup_is_recommended(home: Path) -> None:
    record(home, turn(new_session_id()))
    path = home / "ledger.db"
    damage(path, range(1))
    checked = metaclaw("store", "check", "--json")
    assert (checked.code, len(checked.facts["problems"])) == (1, 1)
    words = metaclaw("store", "check").out
    assert "metaclaw store restore" in words
    assert "metaclaw store repair" not in words


def test_a_backup_is_restored_and_the_former_database_kept(home: Path, tmp_path: Path) -> None:
    before, after = turn(new_session_id()), turn(new_session_id())
    record(home, before)
    (tmp_path / "backups").mkdir()
    made = metaclaw("store", "backup", str(tmp_path / "backups"), "--json")
    backup = Path(made.facts["backup"])
    assert (made.code, made.facts["turns"], backup.parent) == (0, 1, tmp_path / "backups")
    assert backup.stat().st_mode & 0o077 == 0
    assert "nothing was changed" in metaclaw("store", "backup", str(backup)).err
    record(home, after)
    done = metaclaw("store", "restore", str(backup), "--yes", "--json")
    assert (done.code, done.facts["turns"], done.facts["forgotten_again"]) == (0, 1, [])
    with store(home) as database:
        reader = LedgerReader(database)
        assert reader.turn(before.id) is not None
        assert reader.turn(after.id) is None
        known = {backup.path for backup in SqlBackups(database).known()}
    assert known == {backup, Path(done.facts["former"])}
    with closing(sqlite3.connect(done.facts["former"])) as connection:
        assert connection.execute("SELECT count(*) FROM turns").fetchone() == (2,)


def test_a_restored_backup_does_not_bring_back_what_was_forgotten_since(
    home: Path, tmp_path: Path
) -> None:
    kept, forgotten = turn(new_session_id()), turn(new_session_id())
    record(home, kept, forgotten)
    assert metaclaw("store", "backup", str(tmp_path / "copy.db")).code == 0
    with store(home) as database:
        SqlForgetting(database).forget_session(forgotten.session)
    done = metaclaw("store", "restore", str(tmp_path / "copy.db"), "--yes", "--json")
    assert done.facts["forgotten_again"] == [forgotten.session]
    with store(home) as database:
        assert [session.id for session in LedgerReader(database).sessions(10)] == [kept.session]


def test_a_restored_backup_does_not_bring_back_what_was_being_forgotten(
    home: Path, tmp_path: Path
) -> None:
    unwanted = turn(new_session_id())
    record(home, unwanted)
    assert metaclaw("store", "backup", str(tmp_path / "copy.db")).code == 0
    with store(home) as database:  # as if the program had been killed right after it was asked
        SqlForgetting(database).begin(unwanted.session)
    done = metaclaw("store", "restore", str(tmp_path / "copy.db"), "--yes", "--json")
    assert (done.facts["forgotten_again"], done.facts["turns"], done.facts["purged"]) == (
        [unwanted.session],
        0,
        True,
    )


@pytest.mark.parametrize("content", [b"no database " * 500, b""])
def test_what_is_no_sound_backup_is_not_restored(
    home: Path, tmp_path: Path, content: bytes
) -> None:
    one = turn(new_session_id())
    record(home, one)
    (tmp_path / "bad.db").write_bytes(content)
    for path in (tmp_path / "bad.db", tmp_path / "missing.db", home / "ledger.db"):
        done = metaclaw("store", "restore", str(path), "--yes")
        assert (done.code, "Traceback" in done.err) == (1, False)
    with store(home) as database:
        assert LedgerReader(database).turn(one.id) is not None


def test_what_replaces_the_database_needs_the_proxy_to_stand_still(
    home: Path, tmp_path: Path
) -> None:
    record(home, turn(new_session_id()))
    assert metaclaw("store", "backup", str(tmp_path / "copy.db")).code == 0
    with acquire(home):
        for command in (["restore", str(tmp_path / "copy.db"), "--yes"], ["migrate"]):
            done = metaclaw("store", *command)
            assert (done.code, "metaclaw stop" in done.err) == (1, True)


@pytest.mark.parametrize(
    ("command", "tool"),
    [("backup", "pg_dump"), ("restore", "pg_restore"), ("repair", "pg_restore")],
)
def test_for_postgresql_its_own_tools_are_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, command: str, tool: str
) -> None:
    pytest.importorskip("psycopg")
    monkeypatch.setenv("METACLAW__STORE__URL", "postgresql://somebody@127.0.0.1:1/ledger")
    done = metaclaw("store", command, *([] if command == "repair" else ["somewhere.db"]), "--yes")
    assert (done.code, tool in done.err, "Traceback" in done.err) == (1, True, False)
    assert "Traceback" not in metaclaw("store", "check").err
