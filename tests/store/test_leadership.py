"""One of several programs on a store leads, and what a former leader writes is refused."""

import time
from collections.abc import Callable, Iterator

import anyio
import pytest
from anyio.to_thread import run_sync
from sqlalchemy import select

from metaclaw.domain.turn import Scope, Turn
from metaclaw.errors import DeposedError, StoreError
from metaclaw.store import (
    Database,
    Leadership,
    LedgerLimits,
    LedgerReader,
    SqlCursors,
    SqlForgetting,
    SqlLedger,
    carrying,
    open_database,
    shared_state,
)
from metaclaw.store import leadership as module
from metaclaw.store.schema import cursors


@pytest.fixture
def other(database: Database, url: str) -> Iterator[Database]:
    """The same store, as another program opens it."""
    opened = open_database(url)
    opened.is_shared = True
    yield opened
    opened.close()


def write(database: Database, epoch: int, value: int) -> None:
    with carrying(epoch):
        SqlCursors(database).move_cursor("learned", value)


def test_one_leads_and_another_when_it_resigns(database: Database, other: Database) -> None:
    first, second = Leadership(database), Leadership(other)
    assert [first.claim(), second.claim(), first.claim()] == [1, None, 1]
    write(database, 1, 10)
    first.resign()
    assert [second.claim(), first.claim()] == [2, None]
    with pytest.raises(DeposedError):
        write(database, 1, 11)
    write(other, 2, 12)
    assert SqlCursors(database).cursor("learned") == 12
    second.resign()


def test_a_lease_that_runs_out_deposes_and_one_that_is_renewed_late_does_not(
    database: Database, other: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    if database.kind == "sqlite":
        pytest.skip("on SQLite the leader holds a lock and no lease")
    monkeypatch.setattr(module, "LEASE_S", 0.2)
    first, second = Leadership(database), Leadership(other)
    assert first.claim() == 1
    time.sleep(0.3)
    assert first.claim() == 1, "nobody has taken over"
    time.sleep(0.3)
    monkeypatch.setattr(module, "LEASE_S", 60.0)
    assert [second.claim(), first.claim(), first.claim()] == [2, None, None]
    with pytest.raises(DeposedError):
        write(database, 1, 11)


def test_a_leader_that_stops_inside_a_transaction_is_deposed_and_has_written_nothing(
    database: Database, other: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    if database.kind == "sqlite":
        pytest.skip("on SQLite a stopped program keeps the database locked")
    monkeypatch.setattr(module, "LEASE_S", 0.2)
    first, second = Leadership(database), Leadership(other)
    assert first.claim() == 1

    def pause() -> None:
        with carrying(1), database.writing("a long pause") as connection:
            connection.execute(cursors.insert(), {"name": "late", "seq": 1})
            time.sleep(0.3)
            began = time.monotonic()
            assert second.claim() == 2, "waits for the former leader's transaction, then leads"
            assert time.monotonic() - began < 5
            connection.execute(select(cursors))

    with pytest.raises(StoreError, match="idle-in-transaction timeout"):
        pause()
    assert not SqlCursors(other).has_cursor("late")


def test_what_programs_follow_changes_with_what_it_says(database: Database) -> None:
    before = shared_state(database)
    SqlCursors(database).count_up(module.TRAINING_WANTED)
    after = shared_state(database)
    assert after == before._replace(training_wanted=before.training_wanted + 1)


@pytest.mark.anyio
async def test_a_turn_under_way_at_another_program_is_not_recorded_once_its_session_is_forgotten(
    database: Database, other: Database, new_turn: Callable[..., Turn]
) -> None:
    elsewhere = SqlLedger(other, LedgerLimits(patience_s=60))
    await elsewhere.start()
    told, kept = new_turn("told"), new_turn("kept")
    assert await elsewhere.record(told)
    forgetting = SqlForgetting(database)
    late, meant = new_turn("told"), new_turn("kept")
    await run_sync(forgetting.begin, told.session)
    await run_sync(forgetting.delete_begun)
    await run_sync(forgetting.end, [told.session])
    with anyio.fail_after(60):
        for turn in (late, kept, meant):
            assert await elsewhere.record(turn)
        await elsewhere.aclose()
    reader = LedgerReader(database)
    found = {turn.id for turn in (told, late, kept, meant) if reader.turn(turn.id) is not None}
    assert found == {kept.id, meant.id}


@pytest.mark.anyio
async def test_first_answers_under_way_at_another_program_are_not_recorded_once_they_are_forgotten(
    database: Database, other: Database, new_turn: Callable[..., Turn]
) -> None:
    elsewhere = SqlLedger(other, LedgerLimits(patience_s=60))
    await elsewhere.start()
    first, of_ada = new_turn("first"), new_turn("ada's", scope=Scope("ada"))
    of_bob = new_turn("bob's", scope=Scope("bob"))
    forgetting = SqlForgetting(database)
    await run_sync(forgetting.begin, first.session)
    await run_sync(forgetting.begin_user, "ada")
    with anyio.fail_after(60):
        for turn in (first, of_ada, of_bob):
            assert await elsewhere.record(turn)
        await elsewhere.aclose()
    reader = LedgerReader(database)
    found = {turn.id for turn in (first, of_ada, of_bob) if reader.turn(turn.id) is not None}
    assert found == {of_bob.id}
