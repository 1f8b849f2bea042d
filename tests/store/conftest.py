"""Databases to test on (SQLite, and PostgreSQL where its server is installed), and turns to put in
them.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from metaclaw.domain.chat import Finish, SampledTokens, Usage, Wire
from metaclaw.domain.ids import SessionId, SkillName, new_session_id, new_turn_id
from metaclaw.domain.turn import (
    Exchange,
    Placement,
    Scope,
    Splice,
    Stamp,
    Times,
    Turn,
    TurnEnd,
    TurnKind,
)
from metaclaw.store import Database, LedgerLimits, LedgerReader, SqlLedger, open_database
from tests.support.postgres import PostgresServer, running_postgres

MOMENT = datetime(2026, 3, 4, 5, 6, 7, 890123, tzinfo=UTC)


@pytest.fixture
def new_turn() -> Callable[..., Turn]:
    """Makes whole turns, each a second later than the one before; any field can be given."""
    count = 0

    def make(session: str | None = None, **fields: object) -> Turn:
        nonlocal count
        count += 1
        turn = Turn(
            id=new_turn_id(),
            session=SessionId(session) if session is not None else new_session_id(),
            kind=TurnKind.MAIN,
            kind_reason="the agent at work",
            scope=Scope("ada", "lab"),
            stamp=Stamp(3, 2, "c0ffee", (SkillName("wash-hands"), SkillName("dry-hands"))),
            agent="openclaw",
            wire=Wire.CHAT,
            path="/v1/chat/completions",
            stream=True,
            model="gpt-x",
            provider="main",
            provider_wire=Wire.CHAT,
            status=200,
            end=TurnEnd.COMPLETED,
            error=None,
            exchange=Exchange(b'{"messages":[1]}', (Splice(3, b"skill"),), None, b"said", b"seen"),
            finish=Finish.STOP,
            usage=Usage(10, 5, 2, 1, 0),
            tokens=SampledTokens((1, 2, 3), (4, 5), (-0.1, -2.5)),
            times=Times(MOMENT + timedelta(seconds=count), 0.25, 1.5),
            segment=1,
            key="client-key",
            head=b"\x00\xff head",
            placements=(Placement(b"anchor", (SkillName("wash-hands"),), "Wash your hands."),),
        )
        return replace(turn, **fields)  # type: ignore[arg-type]

    return make


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'folder' / 'ledger.db'}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest) -> str:
    """Where no database is yet; every test that takes it runs on both kinds."""
    if request.param == "sqlite":
        found: str = request.getfixturevalue("sqlite_url")
        return found
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """Where a database with nothing in it is, or may be made; every test that takes it runs on both
    kinds.
    """
    if request.param == "sqlite":
        found: str = request.getfixturevalue("sqlite_url")
        return found
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.prepared_database()


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    opened = open_database(url)
    yield opened
    opened.close()


@pytest.fixture
async def ledger(database: Database) -> AsyncIterator[SqlLedger]:
    # Patient, because a busy test machine is not a broken store.
    running = SqlLedger(database, LedgerLimits(patience_s=60))
    await running.start()
    yield running
    with anyio.fail_after(60):
        await running.aclose()


@pytest.fixture
def reader(database: Database) -> LedgerReader:
    return LedgerReader(database)
