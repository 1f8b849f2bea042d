"""Recording on a working store."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import anyio
import pytest
from sqlalchemy import insert, select, text

from metaclaw.domain.chat import Usage, Wire
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.status import Health
from metaclaw.domain.turn import Exchange, Scope, Stamp, Turn, TurnKind
from metaclaw.errors import StoreError
from metaclaw.ports import Ledger
from metaclaw.store import Database, LedgerLimits, LedgerReader, SqlLedger
from metaclaw.store.schema import turns
from tests.store.conftest import MOMENT

pytestmark = pytest.mark.anyio
TurnMaker = Callable[..., Turn]


async def test_a_recorded_turn_is_read_back_equal(
    ledger: SqlLedger, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    turn = new_turn()
    assert await ledger.record(turn)
    recorded = reader.turn(turn.id)
    assert recorded is not None
    assert recorded.turn == turn
    assert reader.turn(TurnId("t_unknown")) is None


async def test_text_that_databases_refuse_is_kept_all_the_same(
    ledger: SqlLedger, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    odd = "\x00 \ud800 \x1a0000 \x1a \udfff é 漢 😀 '; DROP TABLE turns; --"
    turn = new_turn(
        odd,
        model=odd,
        error=odd,
        key=odd,
        scope=Scope(odd, odd),
        stamp=Stamp(0, 0, odd, (SkillName(odd),)),
    )
    assert await ledger.record(turn)
    recorded = reader.turn(turn.id)
    assert recorded is not None
    assert recorded.turn == turn
    assert [row.id for row in reader.sessions()] == [odd]
    await ledger.end_session(SessionId(odd), odd)
    session = reader.session(SessionId(odd))
    assert session is not None
    assert session.end_reason == odd


async def test_the_ledger_is_what_the_port_asks_for(ledger: SqlLedger) -> None:
    port: Ledger = ledger
    assert port.health.health is Health.HEALTHY


async def test_a_translated_turn_keeps_both_bodies(
    ledger: SqlLedger, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    first = new_turn(
        "s_1",
        exchange=Exchange(b"a" * 500, (), b"b" * 700, b"said", b""),
        provider_wire=Wire.MESSAGES,
    )
    second = new_turn(
        "s_1", exchange=Exchange(b"a" * 510, (), b"b" * 720, b"", None), provider_wire=Wire.MESSAGES
    )
    for turn in (first, second):
        assert await ledger.record(turn)
    for turn in (first, second):
        recorded = reader.turn(turn.id)
        assert recorded is not None
        assert recorded.turn == turn
        assert recorded.turn.exchange.sent == turn.exchange.sent


async def test_a_growing_conversation_is_stored_once_and_not_again_with_every_turn(
    ledger: SqlLedger, reader: LedgerReader, database: Database, new_turn: TurnMaker
) -> None:
    body = b'{"messages":["' + b"long system text " * 600
    turns = []
    for number in range(100):
        body += b'","message %d' % number
        turns.append(
            new_turn("s_1", exchange=Exchange(body + b'"],"tools":[' + b"0," * 500 + b"0]}"))
        )
        assert await ledger.record(turns[-1])
    for turn in turns:
        recorded = reader.turn(turn.id)
        assert recorded is not None
        assert recorded.turn.exchange.request == turn.exchange.request
    with database.reading("measuring") as connection:
        stored = connection.execute(
            text("SELECT sum(length(middle)), max(link) FROM payloads")
        ).one()
    assert stored[0] < 5 * len(turns[-1].exchange.request)
    assert stored[1] == 31


async def test_side_turns_do_not_break_the_chain_of_main_turns(
    ledger: SqlLedger, database: Database, new_turn: TurnMaker
) -> None:
    for number in range(4):
        await ledger.record(new_turn("s_1", exchange=Exchange(b"x" * 5000 + b"%d" % number)))
        await ledger.record(
            new_turn(
                "s_1", kind=TurnKind.SIDE, exchange=Exchange(b"title please" * 100 + b"%d" % number)
            )
        )
    with database.reading("measuring") as connection:
        assert (
            connection.execute(text("SELECT count(*) FROM payloads WHERE base IS NULL")).scalar()
            == 2
        )


async def test_the_same_placed_text_is_stored_once(
    ledger: SqlLedger, database: Database, new_turn: TurnMaker
) -> None:
    await asyncio.gather(*(ledger.record(new_turn()) for _ in range(20)))
    with database.reading("counting") as connection:
        counts = [
            connection.execute(text(f"SELECT count(*) FROM {name}")).scalar()
            for name in ("snippets", "placements", "splices")
        ]
    assert counts == [2, 1, 1]


async def test_a_session_is_counted_from_its_turns(
    ledger: SqlLedger, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    first, middle, last = (
        new_turn("s_1", parent=SessionId("s_0")),
        new_turn("s_1"),
        new_turn("s_1", kind=TurnKind.SIDE),
    )
    await asyncio.gather(*(ledger.record(turn) for turn in (first, last, middle, new_turn("s_2"))))
    session = reader.session(SessionId("s_1"))
    assert session is not None
    assert (session.turns, session.main_turns, session.parent) == (3, 2, "s_0")
    assert (session.began_at, session.last_at) == (first.times.received_at, last.times.received_at)
    assert (session.key, session.agent, session.scope) == (first.key, first.agent, first.scope)


async def test_many_at_once_are_all_there_exactly_once(
    ledger: SqlLedger, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    made = [new_turn(f"s_{number % 7}") for number in range(300)]
    with anyio.fail_after(60):
        assert all(await asyncio.gather(*(ledger.record(turn) for turn in made)))
    found = [row.id for session in range(7) for row in reader.turns_of(SessionId(f"s_{session}"))]
    assert sorted(found) == sorted(turn.id for turn in made)
    assert reader.counts().turns == 300


@pytest.mark.parametrize("count", [3, 16, 17, 40])
async def test_any_number_of_turns_may_come_at_once_and_each_keeps_its_own_bytes(
    ledger: SqlLedger, reader: LedgerReader, new_turn: TurnMaker, count: int
) -> None:
    made = [new_turn(f"s_{number}") for number in range(count)]
    with anyio.fail_after(60):
        assert all(await asyncio.gather(*(ledger.record(turn) for turn in made)))
    found = [reader.turn(turn.id) for turn in made]
    assert [one.turn for one in found if one is not None] == made


async def test_a_turn_recorded_twice_is_there_once_as_it_was_first(
    ledger: SqlLedger, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    turn = new_turn("s_1")
    assert await ledger.record(turn)
    assert all(
        await asyncio.gather(
            ledger.record(replace(turn, model="another")), ledger.record(new_turn("s_1"))
        )
    )
    recorded = reader.turn(turn.id)
    assert recorded is not None
    assert recorded.turn == turn
    session = reader.session(SessionId("s_1"))
    assert session is not None
    assert session.turns == 2


async def test_a_turn_that_can_never_be_stored_spoils_no_other(
    ledger: SqlLedger, reader: LedgerReader, new_turn: TurnMaker, caplog: pytest.LogCaptureFixture
) -> None:
    good = [new_turn() for _ in range(6)]
    naive = new_turn()
    naive = replace(naive, times=replace(naive.times, received_at=datetime(2026, 1, 1)))
    bad = [naive, new_turn(status=2**70), new_turn(segment=-1)]
    with anyio.fail_after(60):
        kept = await asyncio.gather(*(ledger.record(turn) for turn in (*good[:3], *bad, *good[3:])))
    assert kept == [True, True, True, False, False, False, True, True, True]
    assert all(reader.turn(turn.id) is not None for turn in good)
    assert ledger.health.lost_turns == 3
    assert ledger.health.health is Health.HEALTHY
    assert sum("cannot be stored" in record.message for record in caplog.records) == 3


@pytest.mark.parametrize("others", [0, 5])
async def test_a_turn_whose_usage_no_database_takes_is_kept_without_it(
    ledger: SqlLedger,
    reader: LedgerReader,
    new_turn: TurnMaker,
    caplog: pytest.LogCaptureFixture,
    others: int,
) -> None:
    absurd, *rest = [new_turn(usage=Usage(2**63, 5, 2, 1, 0)), *(new_turn() for _ in range(others))]
    with anyio.fail_after(60):
        assert all(await asyncio.gather(*(ledger.record(turn) for turn in (absurd, *rest))))
    for turn in (replace(absurd, usage=None), *rest):
        recorded = reader.turn(turn.id)
        assert recorded is not None
        assert recorded.turn == turn
    assert (ledger.health.health, ledger.health.lost_turns) == (Health.HEALTHY, 0)
    assert [
        absurd.id in record.message
        for record in caplog.records
        if "stored without its usage" in record.message
    ] == [True]


async def test_a_session_ends_once_with_its_first_reason(
    ledger: SqlLedger, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    await ledger.record(new_turn("s_1"))
    await ledger.end_session(SessionId("s_1"), "the client said so")
    await ledger.end_session(SessionId("s_1"), "silence")
    await ledger.end_session(SessionId("s_unknown"), "silence")
    session = reader.session(SessionId("s_1"))
    assert session is not None
    assert session.end_reason == "the client said so"
    assert session.ended_at is not None
    assert reader.silent_sessions(datetime.max.replace(tzinfo=UTC)) == []


async def test_a_request_after_the_end_opens_the_session_again_and_one_from_before_does_not(
    ledger: SqlLedger, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    session = SessionId("s_1")
    now = datetime.now(UTC)
    early, late = (
        replace(turn, times=replace(turn.times, received_at=at))
        for turn, at in ((new_turn(session), now), (new_turn(session), now + timedelta(hours=1)))
    )
    await asyncio.gather(
        ledger.record(new_turn(session)), ledger.end_session(session, "done"), ledger.record(early)
    )
    row = reader.session(session)
    assert row is not None
    assert row.ended_at is not None
    await ledger.record(late)
    row = reader.session(session)
    assert row is not None
    assert (row.ended_at, row.end_reason, row.turns) == (None, None, 3)


async def test_a_session_that_ended_by_a_clock_that_was_ahead_is_opened_again_once_the_clock_is_right(
    database: Database, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    session = SessionId("s_1")
    clock = iter([MOMENT + timedelta(days=400), MOMENT + timedelta(minutes=5)])
    ledger = SqlLedger(database, LedgerLimits(patience_s=60), clock=lambda: next(clock))
    await ledger.start()
    await ledger.record(new_turn(session))
    await ledger.end_session(session, "silence")
    await ledger.record(new_turn(session))
    assert [(end.id, end.is_open) for end in reader.sessions_ended(0)] == [(session, True)]
    await ledger.end_session(session, "silence")
    assert [(end.id, end.is_open) for end in reader.sessions_ended(0)] == [(session, False)] * 2
    await ledger.aclose()


async def test_events_are_read_in_the_order_they_were_announced(
    ledger: SqlLedger, reader: LedgerReader
) -> None:
    for number in range(5):
        assert await ledger.announce("thing.happened", {"number": number, "text": "a\x00b"})
    first = reader.events(limit=2)
    rest = reader.events(after=first[-1].seq)
    assert [event.data["number"] for event in (*first, *rest)] == [0, 1, 2, 3, 4]
    assert rest[0].kind == "thing.happened"
    assert rest[0].data["text"] == "a\x00b"
    assert reader.events(after=rest[-1].seq) == []


async def test_closing_writes_what_waits(
    database: Database, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    ledger = SqlLedger(database, LedgerLimits(patience_s=60))
    await ledger.start()
    turns = [new_turn() for _ in range(200)]
    async with asyncio.TaskGroup() as group:
        answers = [group.create_task(ledger.record(turn)) for turn in turns]
        await asyncio.sleep(0)
        await ledger.aclose()
    assert all(answer.result() for answer in answers)
    assert reader.counts().turns == 200
    assert not await ledger.record(new_turn())
    assert ledger.health.lost_turns == 1


async def test_whoever_stops_waiting_does_not_stop_the_recording(
    ledger: SqlLedger, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    turn = new_turn()
    task = asyncio.create_task(ledger.record(turn))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await ledger.record(new_turn())
    assert reader.turn(turn.id) is not None


async def test_a_flood_waits_for_room_and_memory_stays_bounded(
    database: Database, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    limits = LedgerLimits(waiting_turns=8, waiting_bytes=200_000, batch_turns=4, patience_s=10)
    ledger = SqlLedger(database, limits)
    await ledger.start()
    highest = 0

    async def record(number: int) -> bool:
        nonlocal highest
        kept = await ledger.record(
            new_turn(f"s_{number}", exchange=Exchange(b"%d" % number * 10_000))
        )
        highest = max(highest, ledger.health.waiting_turns)
        return kept

    with anyio.fail_after(60):
        assert all(await asyncio.gather(*(record(number) for number in range(150))))
    assert highest <= 8
    assert reader.counts().turns == 150
    await ledger.aclose()


async def test_a_turn_larger_than_all_the_room_is_still_recorded(
    database: Database, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    ledger = SqlLedger(
        database, LedgerLimits(waiting_bytes=10_000, request_line_bytes=10_000, patience_s=10)
    )
    await ledger.start()
    turns = [new_turn("s_1", exchange=Exchange(bytes(1_000_000))) for _ in range(3)]
    with anyio.fail_after(60):
        assert all(await asyncio.gather(*(ledger.record(turn) for turn in turns)))
    for turn in turns:
        recorded = reader.turn(turn.id)
        assert recorded is not None
        assert recorded.turn == turn
    await ledger.aclose()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE turns SET model = 'another'",
        "UPDATE payloads SET middle = said",
        "UPDATE tokens SET logprobs = sampled_ids",
        "DELETE FROM sessions",
        "DELETE FROM snippets",
        "DELETE FROM turns",
        "UPDATE sessions SET main_turns = 2",
        "UPDATE sessions SET ended_us = 5",
        "INSERT INTO turns SELECT * FROM turns",
        "INSERT INTO tokens SELECT turn + 1, prompt_ids, sampled_ids, logprobs FROM tokens",
    ],
)
async def test_the_database_itself_keeps_the_record_whole(
    ledger: SqlLedger, reader: LedgerReader, database: Database, new_turn: TurnMaker, statement: str
) -> None:
    turn = new_turn("s_1")
    assert await ledger.record(turn)
    with pytest.raises(StoreError):
        with database.writing("cheating") as connection:
            connection.execute(text(statement))
    recorded = reader.turn(turn.id)
    assert recorded is not None
    assert recorded.turn == turn


@pytest.mark.parametrize(
    "column", ["generation", "policy_version", "library_hash", "skills", "kind", "received_us"]
)
async def test_the_database_itself_refuses_a_turn_without_a_stamp(
    ledger: SqlLedger, database: Database, new_turn: TurnMaker, column: str
) -> None:
    assert await ledger.record(new_turn("s_1"))
    with database.reading("looking") as connection:
        row = dict(connection.execute(select(turns)).mappings().one())
    row |= {"seq": 99, "id": "t_new", column: None}
    with pytest.raises(StoreError):
        with database.writing("cheating") as connection:
            connection.execute(insert(turns), row)


async def test_many_sessions_end_together_and_those_that_never_were_do_no_harm(
    ledger: SqlLedger, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    sessions = [SessionId(f"s_{number}") for number in range(80)]
    await asyncio.gather(*(ledger.record(new_turn(session)) for session in sessions))
    await ledger.end_session(sessions[5], "the client said so")
    await ledger.end_sessions([*sessions[:70], SessionId("s_unknown")], "silence")
    reasons = {row.id: row.end_reason for row in reader.sessions(limit=100)}
    assert [reasons[session] for session in sessions] == ["silence"] * 5 + [
        "the client said so"
    ] + ["silence"] * 64 + [None] * 10
    assert reader.session(SessionId("s_unknown")) is None
    await ledger.end_sessions([], "silence")
