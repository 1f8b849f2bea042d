"""Turns older than the configured days are forgotten, younger ones are not."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from metaclaw.domain.ids import new_session_id
from metaclaw.learn.retention import Retention
from metaclaw.store import LedgerReader, SqlForgetting, SqlLedger, open_database
from tests.store.recorder import make_turn


@pytest.mark.anyio
async def test_what_is_older_than_the_days_is_forgotten_and_nothing_else(tmp_path: Path) -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    database = open_database(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger = SqlLedger(database)
    await ledger.start()
    turns = []
    for age_days in (31, 29):
        turn = make_turn(new_session_id(), b'{"messages": []}')
        turns.append(replace(turn, times=replace(turn.times, received_at=now - timedelta(days=age_days))))
        assert await ledger.record(turns[-1])
    await Retention(SqlForgetting(database), 30, now=lambda: now).look()
    reader = LedgerReader(database)
    assert [reader.turn(turn.id) is not None for turn in turns] == [False, True]
    await ledger.aclose()
    database.close()
