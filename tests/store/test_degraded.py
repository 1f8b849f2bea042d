"""Recording on a store that is broken: serving goes on, nothing waits for long, and what waited is
written once it can be.
"""

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
from sqlalchemy import event, text

from metaclaw.domain.ids import SessionId
from metaclaw.domain.status import Health
from metaclaw.domain.turn import Exchange, Times, Turn
from metaclaw.errors import StoreError
from metaclaw.store import Database, LedgerLimits, LedgerReader, SqlLedger, open_database
from metaclaw.store.turn_writer import Item, TurnWriter

pytestmark = pytest.mark.anyio
TurnMaker = Callable[..., Turn]
QUICK = LedgerLimits(patience_s=0.25, retry_first_s=0.01, retry_max_s=0.05, close_patience_s=0.2)


@asynccontextmanager
async def running(database: Database, limits: LedgerLimits = QUICK) -> AsyncIterator[SqlLedger]:
    ledger = SqlLedger(database, limits)
    await ledger.start()
    try:
        yield ledger
    finally:
        with anyio.fail_after(60):
            await ledger.aclose()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Somebody else is in the middle of a transaction."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


async def until_healthy(ledger: SqlLedger) -> None:
    with anyio.fail_after(60):
        while ledger.health.health is not Health.HEALTHY or ledger.health.waiting_turns:
            await anyio.sleep(0.005)


async def write(ledger: SqlLedger, turn: Turn) -> None:
    """Record a turn and wait until it is written: on a busy machine that takes longer than the
    patience of these ledgers.
    """
    await ledger.record(turn)
    await until_healthy(ledger)


async def until_reason(ledger: SqlLedger, words: str) -> None:
    """Until the store itself has said why; before, it has only not answered in time."""
    with anyio.fail_after(60):
        while words not in str(ledger.health.reason):
            await anyio.sleep(0.005)


@pytest.fixture
def sqlite(sqlite_url: str) -> Iterator[Database]:
    database = open_database(sqlite_url)
    yield database
    database.close()


def file_of(database: Database) -> Path:
    assert database.path is not None
    return database.path


async def test_a_locked_store_is_waited_for_shortly_then_not_at_all_and_takes_everything_when_it_is_free(
    sqlite: Database, new_turn: TurnMaker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    turns = [new_turn(f"s_{number % 3}") for number in range(20)]
    limits = replace(
        QUICK, patience_s=4
    )  # a stalled disk for some seconds is not the ledger waiting
    async with running(sqlite, limits) as ledger:
        await write(ledger, new_turn())
        with locked(file_of(sqlite)):
            with anyio.fail_after(60):
                assert not await ledger.record(turns[0])
            began = time.monotonic()
            assert not any([await ledger.record(turn) for turn in turns[1:]])
            assert time.monotonic() - began < len(turns[1:]) * limits.patience_s / 2
            assert ledger.health.health is Health.DEGRADED
            await until_reason(ledger, "another program holds the database locked")
            assert ledger.health.waiting_turns == 20
        await until_healthy(ledger)
        assert ledger.health.lost_turns == 0
        assert ledger.health.reason is None
        await write(ledger, new_turn())
    reader = LedgerReader(sqlite)
    recorded = [reader.turn(turn.id) for turn in turns]
    assert [found.turn for found in recorded if found is not None] == turns
    assert reader.counts().turns == 22
    said = [record.levelname for record in caplog.records if record.name == "metaclaw.store.ledger"]
    assert said, "that it waits is said"
    # Said once, and once that it is over; on a busy machine the store may be slow, and recover,
    # before it is locked.
    assert said == ["ERROR", "WARNING"] * (len(said) // 2)


async def test_session_ends_and_events_wait_too_and_keep_their_place(
    sqlite: Database, new_turn: TurnMaker
) -> None:
    async with running(sqlite) as ledger:
        with locked(file_of(sqlite)):
            assert not await ledger.record(new_turn("s_1"))
            await ledger.end_session(SessionId("s_1"), "done")
            assert not await ledger.announce("late", {})
        await until_healthy(ledger)
    reader = LedgerReader(sqlite)
    session = reader.session(SessionId("s_1"))
    assert session is not None
    assert session.end_reason == "done"
    assert [event.kind for event in reader.events()] == ["late"]


async def test_any_number_of_session_ends_and_events_push_no_waiting_turn_out_of_memory(
    sqlite: Database, new_turn: TurnMaker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "metaclaw.store")
    turns = [new_turn() for _ in range(20)]
    async with running(sqlite, replace(QUICK, waiting_turns=100)) as ledger:
        with locked(file_of(sqlite)):
            for turn in turns:
                assert not await ledger.record(turn)
            for number in range(1000):
                await ledger.end_session(SessionId(f"s_{number}"), "silence")
                assert not await ledger.announce("noise", {"number": number})
            assert (ledger.health.waiting_turns, ledger.health.lost_turns) == (20, 0)
        await until_healthy(ledger)
        assert ledger.health.lost_turns == 0
    reader = LedgerReader(sqlite)
    assert all(reader.turn(turn.id) is not None for turn in turns)
    said = [
        record.message
        for record in caplog.records
        if record.levelname != "DEBUG" and " los" in record.message.split("=")[0]
    ]
    # Which of the two is the first depends on what the thread has in hand.
    first = ("session_end", "event")
    assert said[0] in [f"ledger has begun to lose what it cannot keep first={one}" for one in first]
    assert [line.split("=")[0] for line in said[1:]] == ["ledger lost turns"]
    assert "turns=0 session_ends=9" in said[1]


async def test_what_is_lost_is_counted_by_kind_and_each_turn_named_for_those_who_look(
    sqlite: Database, new_turn: TurnMaker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "metaclaw.store")
    turns = [new_turn() for _ in range(3)]
    ledger = SqlLedger(sqlite, QUICK)
    await ledger.start()
    with locked(file_of(sqlite)):
        for turn in turns:
            assert not await ledger.record(turn)
        await ledger.end_session(SessionId("s_1"), "done")
        assert not await ledger.announce("late", {})
        with anyio.fail_after(60):
            await ledger.aclose()
    lines = [
        (record.levelname, record.message)
        for record in caplog.records
        if record.name == "metaclaw.store.ledger"
    ]
    assert lines[-1] == ("WARNING", "ledger lost turns=3 session_ends=1 events=1")
    assert all(("DEBUG", f"ledger lost kind=turn which={turn.id}") in lines for turn in turns)
    assert [level for level, _ in lines].count("WARNING") == 2


async def test_a_session_that_ends_again_and_again_waits_once_and_ends_as_on_a_working_store(
    sqlite: Database, new_turn: TurnMaker
) -> None:
    once, again = SessionId("s_once"), SessionId("s_again")
    late = replace(new_turn(again), times=Times(datetime.now(UTC) + timedelta(hours=1), None, 0.0))
    async with running(sqlite, replace(QUICK, waiting_turns=8)) as ledger:
        with locked(file_of(sqlite)):
            assert not await ledger.record(new_turn(once))
            assert not await ledger.record(new_turn(again))
            assert not await ledger.announce("kept", {})
            for _ in range(50):
                await ledger.end_session(once, "the client said so")
            await ledger.end_session(once, "silence")
            await ledger.end_session(again, "the client said so")
            assert not await ledger.record(late)
            await ledger.end_session(again, "silence")
        await until_healthy(ledger)
    reader = LedgerReader(sqlite)
    reasons = [
        None if row is None else row.end_reason for row in map(reader.session, (once, again))
    ]
    assert reasons == ["the client said so", "silence"]
    assert [found.kind for found in reader.events()] == ["kept"]


async def test_memory_is_bounded_while_the_store_is_broken_and_the_oldest_turns_are_lost(
    sqlite: Database, new_turn: TurnMaker
) -> None:
    turns = [new_turn(exchange=Exchange(bytes(1000))) for _ in range(50)]
    async with running(
        sqlite, LedgerLimits(waiting_turns=10, retry_first_s=0.01, retry_max_s=0.02)
    ) as ledger:
        with locked(file_of(sqlite)):
            for turn in turns:
                assert not await ledger.record(turn)
                assert ledger.health.waiting_turns <= 11
        await until_healthy(ledger)
        lost = ledger.health.lost_turns
    reader = LedgerReader(sqlite)
    kept = [turn for turn in turns if reader.turn(turn.id) is not None]
    assert 40 <= lost <= 41
    assert len(kept) + lost == 50
    assert set(turns[-9:]) <= set(kept)


async def test_bytes_are_bounded_while_the_store_is_broken(
    sqlite: Database, new_turn: TurnMaker
) -> None:
    async with running(
        sqlite, LedgerLimits(waiting_bytes=100_000, retry_first_s=0.01, retry_max_s=0.02)
    ) as ledger:
        with locked(file_of(sqlite)):
            for _ in range(30):
                await ledger.record(new_turn(exchange=Exchange(bytes(20_000))))
            assert ledger.health.waiting_turns <= 5
            assert not await ledger.record(new_turn(exchange=Exchange(bytes(500_000))))
        await until_healthy(ledger)
        assert ledger.health.lost_turns >= 26


async def test_whoever_waits_for_room_is_let_go_when_the_store_breaks(
    sqlite: Database, new_turn: TurnMaker
) -> None:
    async with running(
        sqlite, LedgerLimits(waiting_turns=2, retry_first_s=0.01, retry_max_s=0.02)
    ) as ledger:
        with locked(file_of(sqlite)):
            with anyio.fail_after(60):
                assert not any(
                    await asyncio.gather(*(ledger.record(new_turn()) for _ in range(10)))
                )
        await until_healthy(ledger)
        assert ledger.health.lost_turns >= 7


async def test_a_store_that_works_again_is_noticed_even_when_nothing_waits(
    sqlite: Database, new_turn: TurnMaker
) -> None:
    async with running(
        sqlite, LedgerLimits(waiting_bytes=10_000, retry_first_s=0.01, retry_max_s=0.02)
    ) as ledger:
        with locked(file_of(sqlite)):
            assert not await ledger.record(new_turn(exchange=Exchange(bytes(20_000))))
            with anyio.fail_after(60):
                while ledger.health.waiting_turns:
                    await anyio.sleep(0.005)
            assert ledger.health.health is Health.DEGRADED
        await until_healthy(ledger)


async def test_a_file_that_is_damaged_is_said_so(sqlite: Database, new_turn: TurnMaker) -> None:
    path = file_of(sqlite)
    async with running(sqlite) as ledger:
        await write(ledger, new_turn())
    sqlite.close()
    good = path.read_bytes()
    path.write_bytes(b"\xde\xad\xbe\xef" * (len(good) // 4))
    async with running(sqlite) as ledger:
        turn = new_turn()
        assert not await ledger.record(turn)
        await until_reason(ledger, "damaged")
        repaired = path.with_name("repaired.db")
        repaired.write_bytes(good)
        repaired.replace(path)  # at once: a file that is empty for a moment would be a new database
        await until_healthy(ledger)
    assert LedgerReader(sqlite).turn(turn.id) is not None
    assert LedgerReader(sqlite).counts().turns == 2


@pytest.mark.parametrize(
    "removed", [("-wal",), ("-shm",), ("-wal", "-shm"), ("",), ("", "-wal", "-shm")]
)
async def test_files_that_were_deleted_are_written_anew_with_everything_that_was_recorded(
    sqlite: Database, new_turn: TurnMaker, removed: tuple[str, ...]
) -> None:
    path = file_of(sqlite)
    turns = [new_turn("s_1", exchange=Exchange(b"x" * 1000)) for _ in range(4)]
    async with running(sqlite, LedgerLimits(patience_s=60)) as ledger:
        for turn in turns[:2]:
            assert await ledger.record(turn)
        assert ledger.health.notice is None
        for suffix in removed:
            path.with_name(path.name + suffix).unlink()
        for turn in turns[2:]:
            assert await ledger.record(turn), ledger.health
        assert "had been removed" in str(ledger.health.notice)
        # What a process that is killed now leaves behind.
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            assert connection.execute("SELECT count(*) FROM turns").fetchone() == (4,)
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    reader = LedgerReader(sqlite)
    assert [found.turn for turn in turns if (found := reader.turn(turn.id))] == turns


async def test_a_deleted_file_is_written_anew_at_the_end_if_not_before(
    sqlite: Database, new_turn: TurnMaker
) -> None:
    path, turn = file_of(sqlite), new_turn()
    async with running(sqlite) as ledger:
        await write(ledger, turn)
        path.unlink()
    assert LedgerReader(sqlite).turn(turn.id) is not None


async def test_a_file_that_was_replaced_stays_and_what_was_recorded_is_saved_beside_it(
    sqlite: Database, new_turn: TurnMaker
) -> None:
    path, before, after = file_of(sqlite), new_turn(), new_turn()
    other = path.with_name("other.db")
    open_database(f"sqlite:///{other}").close()
    async with running(sqlite, LedgerLimits(patience_s=60)) as ledger:
        assert await ledger.record(before)
        other.replace(path)
        assert await ledger.record(after)
    (saved,) = path.parent.glob("ledger.db.rescued-*")
    assert LedgerReader(sqlite).turn(before.id) is None
    assert LedgerReader(sqlite).turn(after.id) is not None
    rescued = open_database(f"sqlite:///{saved}")
    assert LedgerReader(rescued).turn(before.id) is not None
    rescued.close()


async def test_closing_on_a_broken_store_ends_and_says_what_was_lost(
    sqlite: Database, new_turn: TurnMaker
) -> None:
    ledger = SqlLedger(sqlite, QUICK)
    await ledger.start()
    with locked(file_of(sqlite)):
        assert not await ledger.record(new_turn())
        assert not await ledger.record(new_turn())
        with anyio.fail_after(60):
            await ledger.aclose()
    assert (ledger.health.waiting_turns, ledger.health.lost_turns) == (0, 2)


@contextmanager
def slow_commits(database: Database, gate: threading.Event, seconds: float) -> Iterator[None]:
    """A disk that takes its time over a commit and complains of nothing, until the gate opens."""

    def wait(statement: str) -> None:
        if statement == "COMMIT":
            gate.wait(seconds)

    def checkout(connection: sqlite3.Connection, *_: object) -> None:
        connection.set_trace_callback(wait)

    event.listen(database.engine, "checkout", checkout)
    try:
        yield
    finally:
        gate.set()
        event.remove(database.engine, "checkout", checkout)


async def test_one_slow_commit_is_not_a_broken_store(sqlite: Database, new_turn: TurnMaker) -> None:
    with slow_commits(sqlite, threading.Event(), 0.5):
        async with running(sqlite, LedgerLimits(patience_s=60)) as ledger:
            assert await ledger.record(new_turn())
            assert ledger.health.health is Health.HEALTHY


async def test_a_commit_that_does_not_return_is_waited_for_as_long_as_the_patience_lasts_and_then_not_at_all(
    sqlite: Database, new_turn: TurnMaker
) -> None:
    gate = threading.Event()
    turns = [new_turn() for _ in range(10)]
    limits = replace(QUICK, patience_s=2)
    with slow_commits(sqlite, gate, 60):
        async with running(sqlite, limits) as ledger:
            assert not await ledger.record(turns[0])
            assert "has not answered" in str(ledger.health.reason)
            began = time.monotonic()
            assert not any([await ledger.record(turn) for turn in turns[1:]])
            assert time.monotonic() - began < len(turns[1:]) * limits.patience_s / 2
            gate.set()
            await until_healthy(ledger)
    assert LedgerReader(sqlite).counts().turns == 10


async def test_a_store_that_hangs_without_an_error_is_not_waited_for(
    url: str, new_turn: TurnMaker
) -> None:
    """On PostgreSQL a table locked by somebody else; on SQLite the whole file."""
    database = open_database(url)
    async with running(database) as ledger:
        await write(ledger, new_turn())
        with database.writing("holding a lock") as connection:
            if database.kind == "postgresql":
                connection.execute(text("LOCK TABLE turns IN ACCESS EXCLUSIVE MODE"))
            turn = new_turn()
            with anyio.fail_after(60):
                assert not await ledger.record(turn)
            assert ledger.health.health is Health.DEGRADED
        await until_healthy(ledger)
        await write(ledger, new_turn())
    assert LedgerReader(database).turn(turn.id) is not None
    assert LedgerReader(database).counts().turns == 3
    database.close()


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("can't start new thread"), AttributeError("a mistake")]
)
async def test_no_error_ends_recording(
    database: Database, new_turn: TurnMaker, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Whatever goes wrong while turns are written, they wait and are written when it is over."""
    is_over = threading.Event()
    real = TurnWriter.write

    def write_or_fail(writer: TurnWriter, items: Sequence[Item]) -> None:
        if not is_over.is_set():
            raise error
        real(writer, items)

    monkeypatch.setattr(TurnWriter, "write", write_or_fail)
    async with running(database) as ledger:
        turns = [new_turn() for _ in range(3)]
        for turn in turns:
            assert not await ledger.record(turn)
        await until_reason(ledger, "recording: ")
        is_over.set()
        await until_healthy(ledger)
        assert ledger.health.lost_turns == 0
    reader = LedgerReader(database)
    assert all(reader.turn(turn.id) is not None for turn in turns)


async def test_a_ledger_whose_thread_cannot_be_started_keeps_turns_until_it_can(
    database: Database, new_turn: TurnMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ledger, turn = SqlLedger(database, QUICK), new_turn()
    with monkeypatch.context() as without_threads:
        without_threads.setattr(threading.Thread, "start", refuse)
        with pytest.raises(StoreError, match="can't start new thread"):
            await ledger.start()
    assert not await ledger.record(turn)
    assert ledger.health.health is Health.DEGRADED
    await ledger.start()
    await until_healthy(ledger)
    await ledger.aclose()
    assert LedgerReader(database).turn(turn.id) is not None


async def test_a_ledger_that_never_ran_can_be_closed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ledger = SqlLedger(database, QUICK)
    with monkeypatch.context() as without_threads:
        without_threads.setattr(threading.Thread, "start", refuse)
        with pytest.raises(StoreError):
            await ledger.start()
    with anyio.fail_after(60):
        await ledger.aclose()
