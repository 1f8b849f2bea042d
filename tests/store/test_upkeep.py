"""The size of the store: a limit that the oldest sessions make room for, and space that is given
back.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from metaclaw.domain.ids import SessionId
from metaclaw.domain.training import RoleKind
from metaclaw.domain.turn import Exchange, Stamp, Turn
from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict
from metaclaw.store import (
    Database,
    LedgerLimits,
    LedgerReader,
    SqlBatches,
    SqlCandidates,
    SqlLedger,
    SqlUpkeep,
    SqlVerdicts,
    compact,
    open_database,
)
from tests.store.conftest import MOMENT

pytestmark = pytest.mark.anyio
BODY = Exchange(b"x" * 50_000, (), None, b"said")


async def record(database: Database, *turns: Turn, ended: bool = True) -> None:
    ledger = SqlLedger(database, LedgerLimits(patience_s=60))
    await ledger.start()
    assert all(await asyncio.gather(*(ledger.record(turn) for turn in turns)))
    if ended:
        await ledger.end_sessions([turn.session for turn in turns], "silence")
    await ledger.aclose()


@pytest.fixture
def sqlite(sqlite_url: str) -> Database:
    return open_database(sqlite_url)


async def test_the_oldest_sessions_make_room_and_the_file_shrinks(
    sqlite: Database, new_turn: Callable[..., Turn]
) -> None:
    turns = [new_turn(f"s_{number}", exchange=BODY) for number in range(40)]
    await record(sqlite, *turns)
    assert SqlUpkeep(sqlite).make_room() == 0
    upkeep = SqlUpkeep(sqlite, 1_500_000)
    before = upkeep.size().size_bytes
    removed = upkeep.make_room()
    assert upkeep.give_back() > 0
    size = upkeep.size()
    assert (size.max_bytes, size.removed_sessions) == (1_500_000, removed)
    assert size.size_bytes - size.free_bytes < 1_500_000 < before
    assert size.size_bytes < 0.8 * before
    reader = LedgerReader(sqlite)
    assert [reader.turn(turn.id) is None for turn in turns] == [
        number < removed for number in range(40)
    ]
    assert upkeep.make_room() == 0, "there is room now"
    sqlite.close()
    path = sqlite.path
    assert path is not None
    assert path.stat().st_size == size.size_bytes
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_sessions_that_go_on_or_are_trained_on_stay_and_what_was_taught_stays(
    sqlite: Database, new_turn: Callable[..., Turn]
) -> None:
    newest = Stamp(0, 0, "", ())
    going_on, trained, taught = (
        new_turn(name, exchange=BODY, stamp=newest) for name in ("s_on", "s_trained", "s_taught")
    )
    others = [new_turn(f"s_{number}", exchange=BODY) for number in range(10)]
    await record(sqlite, going_on, ended=False)
    await record(sqlite, trained, taught, *others)
    batch = SqlBatches(sqlite).open_batch(0, [trained.id])
    SqlVerdicts(sqlite).record_verdict(
        Verdict(taught.id, Outcome.FAIL, Source.USER, 1.0, fault=Fault.AGENT)
    )
    SqlCandidates(sqlite).begin_attempt("kind", 0, [taught.id])
    upkeep = SqlUpkeep(sqlite, 1, now=lambda: MOMENT + timedelta(hours=1))
    assert upkeep.make_room() == 11
    reader = LedgerReader(sqlite)
    assert {session.id for session in reader.sessions(100)} == {
        SessionId("s_on"),
        SessionId("s_trained"),
    }
    standing = reader.standing_of(trained.id)
    assert standing is not None
    assert standing.role is not None
    assert standing.role.kind is RoleKind.QUERY
    assert SqlBatches(sqlite).turns_of(batch) == [trained.id]
    sqlite.close()


async def test_recording_goes_on_while_the_file_shrinks(
    sqlite: Database, new_turn: Callable[..., Turn]
) -> None:
    await record(sqlite, *(new_turn(f"s_{number}", exchange=BODY) for number in range(40)))
    upkeep = SqlUpkeep(sqlite, 700_000)
    ledger = SqlLedger(sqlite, LedgerLimits(patience_s=60))
    await ledger.start()
    kept = [new_turn("s_new") for _ in range(20)]
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, lambda: (upkeep.make_room(), upkeep.give_back()))
        for turn in kept:
            assert await ledger.record(turn), ledger.health
    await ledger.aclose()
    assert all(LedgerReader(sqlite).turn(turn.id) is not None for turn in kept)
    sqlite.close()


async def test_a_file_of_an_older_version_can_shrink_after_it_was_rewritten(
    tmp_path: Path, new_turn: Callable[..., Turn]
) -> None:
    url = f"sqlite:///{tmp_path / 'old.db'}"
    open_database(url).close()
    with closing(sqlite3.connect(tmp_path / "old.db")) as old:
        old.executescript("PRAGMA auto_vacuum = NONE; VACUUM")
    database = open_database(url)
    turns = [replace(new_turn(f"s_{number}"), exchange=BODY) for number in range(40)]
    await record(database, *turns)
    upkeep = SqlUpkeep(database, 500_000)
    assert upkeep.make_room() > 0
    assert upkeep.give_back() == 0
    compact(database)
    before = upkeep.size().size_bytes
    assert before < 1_000_000
    await record(
        database, *(replace(new_turn(f"n_{number}"), exchange=BODY) for number in range(40))
    )
    assert upkeep.make_room() > 0
    assert upkeep.give_back() > 0
    database.close()
