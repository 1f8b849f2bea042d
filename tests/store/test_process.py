"""Recording in a process of its own: one that is killed, one whose disk is full, one that may not
write.
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from metaclaw.domain.ids import TurnId
from metaclaw.store import LedgerReader, open_database

RECORDER = Path(__file__).with_name("recorder.py")
NOBODY = 65534


def _kill_after(url: str, count: int) -> list[str]:
    """Start the recorder, kill it without warning once it has named so many turns, and return all
    it has named.
    """
    process = subprocess.Popen(
        [sys.executable, str(RECORDER), url, "endless"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process:
        named = [process.stdout.readline() for _ in range(count)]
        process.kill()
        named += process.stdout.readlines()
    # The last line may have been cut by the kill.
    return [line.strip() for line in named if line.endswith("\n")]


@pytest.mark.slow
def test_nothing_that_was_promised_is_missing_after_kill_9(sqlite_url: str) -> None:
    randomness = random.Random(5)
    named = [
        turn for _ in range(10) for turn in _kill_after(sqlite_url, randomness.randint(1, 300))
    ]
    assert len(set(named)) == len(named) > 500
    database = open_database(sqlite_url)
    reader = LedgerReader(database)
    for turn in randomness.sample(named, 200):
        recorded = reader.turn(TurnId(turn))
        assert recorded is not None
        assert recorded.turn.exchange.said == turn.encode()
        assert recorded.turn.exchange.request.startswith(b'{"0":"word ')
    with database.reading("looking for the turns") as connection:
        found = connection.execute(text("SELECT id FROM turns")).scalars().all()
        whole = connection.execute(
            text("SELECT count(*) FROM turns JOIN payloads ON turn = seq JOIN tokens USING (turn)")
        ).scalar()
        counted = connection.execute(text("SELECT sum(turns) FROM sessions")).scalar()
        assert connection.execute(text("PRAGMA integrity_check")).scalar() == "ok"
        assert connection.execute(text("PRAGMA foreign_key_check")).all() == []
    database.close()
    assert set(named) <= set(found)
    assert len(set(found)) == len(found) == whole == counted


def test_a_full_disk_degrades_and_what_waited_is_written_once_when_there_is_room(
    sqlite_url: str,
) -> None:
    done = subprocess.run(
        [sys.executable, str(RECORDER), sqlite_url, "full"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    state, summary, *turns = done.stdout.splitlines()
    assert state.startswith("degraded recording: the disk")
    assert "lost 0" in summary
    assert "at once 60" not in summary
    assert done.stderr.count("ledger degraded") == 1
    database = open_database(sqlite_url)
    reader = LedgerReader(database)
    recorded = [reader.turn(TurnId(turn)) for turn in turns]
    assert [found.turn.exchange.request for found in recorded if found] == [
        bytes([number]) * 20_000 for number in range(60)
    ]
    assert reader.counts().turns == 60
    database.close()


def test_a_turn_for_which_there_is_never_room_spoils_no_other(sqlite_url: str) -> None:
    done = subprocess.run(
        [sys.executable, str(RECORDER), sqlite_url, "huge"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    summary, *turns = done.stdout.splitlines()
    assert summary == "lost 1"
    database = open_database(sqlite_url)
    reader = LedgerReader(database)
    assert all(reader.turn(TurnId(turn)) is not None for turn in turns)
    assert reader.counts().turns == len(turns) == 20
    database.close()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that somebody else than its owner can reach, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="metaclaw-"))
    yield folder
    shutil.rmtree(folder)


def test_a_read_only_store_is_said_so(open_folder: Path) -> None:
    path = open_folder / "ledger.db"
    open_database(f"sqlite:///{path}").close()
    if os.getuid() == 0:
        os.chown(open_folder, NOBODY, NOBODY)
        os.chown(path, NOBODY, NOBODY)
    path.chmod(0o400)
    command = [sys.executable, str(RECORDER), f"sqlite:///{path}", "read-only"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout.startswith("False degraded"), done.stderr
    assert "the database is read-only" in done.stdout
