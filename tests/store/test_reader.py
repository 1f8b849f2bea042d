"""Reading back: lists, cursors, and what is needed to go on after a restart."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.turn import Placement, Turn, TurnKind
from metaclaw.errors import StoreError
from metaclaw.store import (
    Database,
    LedgerCounts,
    LedgerLimits,
    LedgerReader,
    RefusedError,
    SqlCursors,
    SqlLedger,
    open_database,
)
from metaclaw.store.turn_writer import TurnWriter
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.anyio
MOMENT = datetime(2026, 7, 1, tzinfo=UTC)
TurnMaker = Callable[..., Turn]


async def record(ledger: SqlLedger, *turns: Turn) -> None:
    assert all(await asyncio.gather(*(ledger.record(turn) for turn in turns)))


async def test_an_empty_ledger_is_empty(reader: LedgerReader) -> None:
    assert reader.sessions() == []
    assert reader.session(SessionId("s_1")) is None
    assert reader.turns_of(SessionId("s_1")) == []
    assert reader.counts() == LedgerCounts(0, 0, 0)


async def test_sessions_come_newest_first_in_pages(
    ledger: SqlLedger, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    await record(ledger, *(new_turn(f"s_{number}") for number in range(7)), new_turn("s_0"))
    first = reader.sessions(limit=3)
    rest = reader.sessions(limit=10, before=first[-1].id)
    assert [row.id for row in (*first, *rest)] == ["s_0", "s_6", "s_5", "s_4", "s_3", "s_2", "s_1"]
    assert reader.sessions(before=rest[-1].id) == []
    assert reader.counts() == LedgerCounts(sessions=7, turns=8, main_turns=8)


async def test_sessions_of_one_moment_are_all_listed(
    ledger: SqlLedger, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    moment = new_turn().times
    await record(ledger, *(new_turn(f"s_{number}", times=moment) for number in range(5)))
    pages = [reader.sessions(limit=2)]
    while pages[-1]:
        pages.append(reader.sessions(limit=2, before=pages[-1][-1].id))
    assert [row.id for page in pages for row in page] == ["s_4", "s_3", "s_2", "s_1", "s_0"]


async def test_turns_of_a_session_are_listed_from_a_cursor_with_their_facts(
    ledger: SqlLedger, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    turns = [new_turn("s_1", segment=number) for number in range(5)]
    for turn in turns:
        await record(ledger, turn, new_turn("s_2"))
    first = reader.turns_of(SessionId("s_1"), limit=2)
    rest = reader.turns_of(SessionId("s_1"), after=first[-1].seq)
    assert [row.id for row in (*first, *rest)] == [turn.id for turn in turns]
    row, turn = first[0], turns[0]
    assert (row.session, row.kind, row.stamp, row.usage, row.times) == (
        turn.session,
        turn.kind,
        turn.stamp,
        turn.usage,
        turn.times,
    )
    assert (row.model, row.provider, row.end, row.finish) == (
        turn.model,
        turn.provider,
        turn.end,
        turn.finish,
    )


async def test_a_trace_is_of_the_last_main_turn_of_each_session_that_goes_on(
    ledger: SqlLedger, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    old, first_main = new_turn("s_old"), new_turn("s_1", head=b"first")
    main = new_turn("s_1", head=b"main", segment=4)
    side = new_turn("s_1", head=b"side", kind=TurnKind.SIDE)
    only_side = new_turn("s_2", head=b"only", kind=TurnKind.SIDE)
    for turn in (old, first_main, main, side, only_side, new_turn("s_ended")):
        await record(ledger, turn)
    await ledger.end_session(SessionId("s_ended"), "done")
    second, first = reader.recent_traces(since=old.times.received_at + timedelta(microseconds=1))
    assert (first.session, first.head, first.segment, first.last_turn) == (
        "s_1",
        b"main",
        4,
        main.id,
    )
    assert (first.key, first.agent, first.scope, first.last_at) == (
        main.key,
        main.agent,
        main.scope,
        side.times.received_at,
    )
    assert (second.session, second.head) == ("s_2", b"only")
    assert len(reader.recent_traces(since=old.times.received_at)) == 3
    assert [
        trace.session for trace in reader.recent_traces(since=old.times.received_at, limit=1)
    ] == ["s_2"]


async def test_placements_that_share_a_beginning_are_read_back_whole(
    ledger: SqlLedger, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    placed: tuple[Placement, ...] = ()
    for number in range(5):
        placed = (
            *placed,
            Placement(bytes([number]), (SkillName(f"skill-{number}"),), f"text {number} \ud800"),
        )
        turn = new_turn("s_1", placements=placed)
        await record(ledger, turn)
        found = reader.turn(turn.id)
        assert found is not None
        assert found.turn.placements == placed


async def test_whoever_reads_on_from_the_last_turn_misses_none(
    ledger: SqlLedger, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    turns = [
        new_turn(f"s_{number % 2}", kind=TurnKind.SIDE if number % 3 else TurnKind.MAIN)
        for number in range(7)
    ]
    for turn in turns:
        await record(ledger, turn)
    pages = [reader.turns_after(0, limit=3)]
    while pages[-1]:
        pages.append(reader.turns_after(pages[-1][-1].seq, limit=3))
    assert [row.id for page in pages for row in page] == [turn.id for turn in turns]
    assert pages[0][0].kind is TurnKind.MAIN


async def test_a_turn_that_is_committed_after_a_later_one_is_not_passed_over(
    postgres: PostgresServer, new_turn: TurnMaker
) -> None:
    database = open_database(postgres.new_database())
    reader = LedgerReader(database)
    early, late = TurnWriter(database, 1000), SqlLedger(database, LedgerLimits(patience_s=60))
    await late.start()
    first, second = new_turn("s_1"), new_turn("s_2")
    with database.engine.connect() as connection:
        # A program that took the lower number and has not committed yet.
        connection.execute(text("SELECT nextval(pg_get_serial_sequence('turns', 'seq'))"))
        connection.execute(text("INSERT INTO events (at_us, kind, data) VALUES (0, 'slow', '{}')"))
        await record(late, second)
        assert reader.turns_after(0) == []
        connection.commit()
    early.write([first])
    assert [row.id for row in reader.turns_after(0)] == [second.id, first.id]
    early.close()
    await late.aclose()
    database.close()


async def test_the_next_and_the_last_main_turn_of_a_session_are_found(
    ledger: SqlLedger, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    first, side, second = new_turn("s_1"), new_turn("s_1", kind=TurnKind.SIDE), new_turn("s_1")
    for turn in (first, side, new_turn("s_2"), second, new_turn("s_1", kind=TurnKind.SIDE)):
        await record(ledger, turn)
    session = SessionId("s_1")
    begin = reader.next_main_turn(session, 0)
    assert begin is not None
    assert begin.id == first.id
    after = reader.next_main_turn(session, begin.seq)
    assert after is not None
    assert after.id == second.id
    assert reader.next_main_turn(session, after.seq) is None
    assert reader.last_main_turn(session) == after
    assert reader.last_main_turn(SessionId("s_nobody")) is None


async def test_ended_sessions_come_in_the_order_in_which_they_were_recorded_whatever_the_clock_said(
    database: Database, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    ends = iter([MOMENT + timedelta(hours=hours) for hours in (2, 1, 1, 3)])
    ledger = SqlLedger(database, LedgerLimits(patience_s=60), clock=lambda: next(ends))
    await ledger.start()
    await record(ledger, *(new_turn(f"s_{number}") for number in range(5)))
    for number in range(4):
        await ledger.end_session(SessionId(f"s_{number}"), "done")
    await ledger.aclose()
    pages = [reader.sessions_ended(0, limit=1)]
    while last := pages[-1]:
        pages.append(reader.sessions_ended(last[0].seq, limit=1))
    ended = [row for page in pages for row in page]
    assert [(row.id, row.is_open) for row in ended] == [
        (f"s_{number}", False) for number in range(4)
    ]
    assert [reader.ends_behind(cursor) for cursor in (0, ended[2].seq, ended[3].seq)] == [4, 1, 0]


async def test_a_cursor_is_where_its_reader_left_it(url: str) -> None:
    database = open_database(url)
    cursors = SqlCursors(database)
    assert cursors.cursor("sensing") == 0
    cursors.move_cursor("sensing", 5)
    cursors.move_cursor("sensing", 2**40)
    cursors.move_cursor("another", 1)
    database.close()
    assert SqlCursors(database).cursor("sensing") == 2**40
    database.close()


async def test_a_store_that_cannot_be_read_is_a_store_error(
    database: Database, reader: LedgerReader
) -> None:
    with pytest.raises(StoreError, match="listing sessions"):
        reader.sessions(limit=2**70)


async def test_an_instant_without_a_time_zone_is_no_cursor(reader: LedgerReader) -> None:
    with pytest.raises(RefusedError, match="time zone"):
        reader.recent_traces(since=datetime(2026, 1, 1))
