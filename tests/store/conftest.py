"""Databases to test on (SQLite, and PostgreSQL where its server is installed), and turns to put in them."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
from sqlalchemy import create_engine, text

from metaclaw.domain.chat import Finish, SampledTokens, Usage, Wire
from metaclaw.domain.ids import SessionId, SkillName, new_session_id, new_turn_id
from metaclaw.domain.turn import Exchange, Placement, Scope, Splice, Stamp, Times, Turn, TurnEnd, TurnKind
from metaclaw.store import Database, LedgerReader, Limits, SqlLedger, open_database

SERVER_FOLDERS = [Path("/usr/lib/postgresql").joinpath(str(version), "bin") for version in range(20, 12, -1)]
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


class PostgresServer:
    """A server of our own on a private socket, run by somebody who is not root."""

    def __init__(self, binaries: Path, folder: Path, user: str) -> None:
        self._folder = folder
        self._user = user if os.getuid() == 0 else None
        self._databases = 0
        self._command([str(binaries / "initdb"), "-D", str(folder / "data"), "-U", "metaclaw", "-A", "trust", "-N", "-E", "UTF8"])
        self._process = subprocess.Popen(
            [
                str(binaries / "postgres"),
                "-D",
                str(folder / "data"),
                "-k",
                str(folder),
                "-c",
                "listen_addresses=",
                "-c",
                "fsync=off",
            ],
            user=self._user,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._wait(binaries / "pg_isready")

    def _command(self, command: list[str]) -> None:
        subprocess.run(command, check=True, capture_output=True, user=self._user, cwd=self._folder, timeout=60)

    def _wait(self, is_ready: Path) -> None:
        # `-t` makes the tool itself wait; it returns at once while the socket does not exist yet, so it is asked a few times.
        for _ in range(200):
            asked = subprocess.run([str(is_ready), "-h", str(self._folder), "-t", "1"], capture_output=True, check=False)
            if asked.returncode == 0:
                return
            try:
                self._process.wait(timeout=0.05)
            except subprocess.TimeoutExpired:
                continue
            break
        raise RuntimeError("PostgreSQL did not start")

    def new_database(self) -> str:
        """The URL of a fresh schema of the one database, which is a database as far as the store can see, and made in no time."""
        self._databases += 1
        name = f"ledger_{self._databases}"
        url = f"postgresql://metaclaw@/postgres?host={self._folder}"
        engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE SCHEMA {name}"))
        engine.dispose()
        return f"{url}&options=-csearch_path%3D{name}"

    def stop(self) -> None:
        self._process.send_signal(signal.SIGQUIT)  # at once: nothing in it is wanted any more
        self._process.wait(timeout=20)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    pytest.importorskip("psycopg", reason="no PostgreSQL driver: pip install 'metaclaw[postgres]'")
    binaries = next((folder for folder in SERVER_FOLDERS if (folder / "initdb").exists()), None)
    if binaries is None:
        pytest.skip("no PostgreSQL server binaries under /usr/lib/postgresql: install the package postgresql to test on it")
    user = next((entry.pw_name for entry in pwd.getpwall() if entry.pw_name in ("postgres", "nobody")), "nobody")
    folder = Path(tempfile.mkdtemp(prefix="metaclaw-pg-"))
    if os.getuid() == 0:
        shutil.chown(folder, user)
    try:
        server = PostgresServer(binaries, folder, user)
        yield server
        server.stop()
    finally:
        shutil.rmtree(folder)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """Where no database is yet; every test that takes it runs on both kinds."""
    if request.param == "sqlite":
        found: str = request.getfixturevalue("sqlite_url")
        return found
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    opened = open_database(url)
    yield opened
    opened.close()


@pytest.fixture
async def ledger(database: Database) -> AsyncIterator[SqlLedger]:
    # Patient, because a busy test machine is not a broken store.
    running = SqlLedger(database, Limits(patience_s=10))
    await running.start()
    yield running
    with anyio.fail_after(10):
        await running.aclose()


@pytest.fixture
def reader(database: Database) -> LedgerReader:
    return LedgerReader(database)
