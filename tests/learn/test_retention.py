"""Turns older than the configured days are deleted, younger ones are not, and a clock that jumped
ahead deletes nothing.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from metaclaw.domain.ids import TurnId, new_session_id
from metaclaw.learn.retention import Retention
from metaclaw.store import (
    Database,
    LedgerLimits,
    LedgerReader,
    SqlCursors,
    SqlForgetting,
    SqlLedger,
    open_database,
)
from tests.store.recorder import make_turn

pytestmark = pytest.mark.anyio
NOW = datetime(2026, 3, 1, tzinfo=UTC)
DAY, HOUR = timedelta(days=1), timedelta(hours=1)


@dataclass
class Stage:
    """A store, and retention after 30 days with a clock that the test sets."""

    database: Database
    ledger: SqlLedger
    now: datetime = NOW
    turns: list[TurnId] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.retention = Retention(
            SqlForgetting(self.database),
            SqlCursors(self.database),
            LedgerReader(self.database),
            30,
            now=lambda: self.now,
        )

    async def record(self, *, age_days: int) -> None:
        turn = make_turn(new_session_id(), b'{"messages": []}')
        turn = replace(
            turn, times=replace(turn.times, received_at=self.now - timedelta(days=age_days))
        )
        assert await self.ledger.record(turn)
        self.turns.append(turn.id)

    async def run_once(self, at: datetime) -> bool:
        """Whether the clock was believed."""
        self.now = at
        await self.retention.run_once()
        return self.retention.trouble is None

    @property
    def kept(self) -> list[bool]:
        reader = LedgerReader(self.database)
        return [reader.turn(turn) is not None for turn in self.turns]


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    database = open_database(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger = SqlLedger(database, LedgerLimits(patience_s=60))
    await ledger.start()
    yield Stage(database, ledger)
    await ledger.aclose()
    database.close()


async def test_what_is_older_than_the_days_is_deleted_and_nothing_else(stage: Stage) -> None:
    for age_days in (31, 29, 0):
        await stage.record(age_days=age_days)
    assert await stage.run_once(NOW)
    assert stage.kept == [False, True, True]


async def test_a_clock_that_is_ahead_for_a_while_deletes_nothing_then_or_after_a_restart(
    stage: Stage,
) -> None:
    await stage.record(age_days=0)
    assert await stage.run_once(NOW)
    for hours in (1, 2, 23):
        stage.restart()
        assert not await stage.run_once(NOW + 400 * DAY + hours * HOUR)
    assert not await stage.run_once(NOW + 200 * DAY)  # only half of the way back
    assert await stage.run_once(NOW + 24 * HOUR)
    assert stage.kept == [True]


async def test_a_jump_after_the_clock_came_back_is_doubted_anew(stage: Stage) -> None:
    await stage.record(age_days=0)
    assert await stage.run_once(NOW)
    assert not await stage.run_once(NOW + 400 * DAY)
    assert await stage.run_once(NOW + HOUR)
    assert not await stage.run_once(NOW + 402 * DAY)
    assert stage.kept == [True]


async def test_after_a_long_stop_old_turns_go_a_day_later(stage: Stage) -> None:
    await stage.record(age_days=0)
    assert not await stage.run_once(NOW + 60 * DAY)
    assert stage.retention.trouble is not None
    assert "2026-05-01" in stage.retention.trouble
    assert await stage.run_once(NOW + 61 * DAY)
    assert stage.kept == [False]


async def test_turns_recorded_by_a_clock_that_is_ahead_do_not_make_it_believed(
    stage: Stage,
) -> None:
    await stage.record(age_days=0)
    assert not await stage.run_once(NOW + 400 * DAY)
    await stage.record(age_days=0)
    assert not await stage.run_once(NOW + 400 * DAY + HOUR)
    assert stage.kept == [True, True]
