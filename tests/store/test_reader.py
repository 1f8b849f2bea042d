"""Reading back: lists, cursors, and what is needed to go on after a restart."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.turn import Placement, Turn, TurnKind
from metaclaw.errors import StoreError
from metaclaw.store import Counts, Database, LedgerReader, SqlLedger

pytestmark = pytest.mark.anyio
TurnMaker = Callable[..., Turn]


async def record(ledger: SqlLedger, *turns: Turn) -> None:
    assert all(await asyncio.gather(*(ledger.record(turn) for turn in turns)))


async def test_an_empty_ledger_is_empty(reader: LedgerReader) -> None:
    assert reader.sessions() == []
    assert reader.session(SessionId("s_1")) is None
    assert reader.turns_of(SessionId("s_1")) == []
    assert reader.counts() == Counts(0, 0, 0, 0)
    assert reader.last_placements(SessionId("s_1")) == ()


async def test_sessions_come_newest_first_in_pages(ledger: SqlLedger, reader: LedgerReader, new_turn: TurnMaker) -> None:
    await record(ledger, *(new_turn(f"s_{number}") for number in range(7)), new_turn("s_0"))
    first = reader.sessions(limit=3)
    rest = reader.sessions(limit=10, before=first[-1].id)
    assert [row.id for row in (*first, *rest)] == ["s_0", "s_6", "s_5", "s_4", "s_3", "s_2", "s_1"]
    assert reader.sessions(before=rest[-1].id) == []
    assert reader.counts() == Counts(sessions=7, open_sessions=7, turns=8, main_turns=8)


async def test_sessions_of_one_moment_are_all_listed(ledger: SqlLedger, reader: LedgerReader, new_turn: TurnMaker) -> None:
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
    assert (row.session, row.kind, row.stamp, row.usage, row.times) == (turn.session, turn.kind, turn.stamp, turn.usage, turn.times)
    assert (row.model, row.provider, row.end, row.finish) == (turn.model, turn.provider, turn.end, turn.finish)


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
    assert (first.session, first.head, first.segment, first.last_turn) == ("s_1", b"main", 4, main.id)
    assert (first.key, first.agent, first.scope, first.last_at) == (main.key, main.agent, main.scope, side.times.received_at)
    assert (second.session, second.head) == ("s_2", b"only")
    assert len(reader.recent_traces(since=old.times.received_at)) == 3
    assert [trace.session for trace in reader.recent_traces(since=old.times.received_at, limit=1)] == ["s_2"]


async def test_the_placements_of_the_last_main_turn_are_known(ledger: SqlLedger, reader: LedgerReader, new_turn: TurnMaker) -> None:
    placed: tuple[Placement, ...] = ()
    for number in range(5):
        placed = (*placed, Placement(bytes([number]), (SkillName(f"skill-{number}"),), f"text {number} \ud800"))
        await record(ledger, new_turn("s_1", placements=placed))
    await record(ledger, new_turn("s_1", placements=(), kind=TurnKind.SIDE), new_turn("s_2", placements=()))
    assert reader.last_placements(SessionId("s_1")) == placed
    assert reader.last_placements(SessionId("s_2")) == ()


async def test_a_store_that_cannot_be_read_is_a_store_error(database: Database, reader: LedgerReader) -> None:
    with pytest.raises(StoreError, match="listing sessions"):
        reader.sessions(limit=2**70)


async def test_an_instant_without_a_time_zone_is_no_cursor(reader: LedgerReader) -> None:
    with pytest.raises(ValueError, match="time zone"):
        reader.recent_traces(since=datetime(2026, 1, 1))
