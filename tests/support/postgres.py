"""A PostgreSQL server for tests, where its binaries are installed."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from metaclaw.store import open_database

SERVER_FOLDERS = [
    Path("/usr/lib/postgresql").joinpath(str(version), "bin") for version in range(20, 12, -1)
]


class PostgresServer:
    """A server of our own on a private socket, run by somebody who is not root."""

    def __init__(self, binaries: Path, folder: Path, user: str) -> None:
        self._folder = folder
        self._user = user if os.getuid() == 0 else None
        self._databases = 0
        self._has_template = False
        self._command(
            [
                str(binaries / "initdb"),
                "-D",
                str(folder / "data"),
                "-U",
                "metaclaw",
                "-A",
                "trust",
                "-N",
                "-E",
                "UTF8",
            ]
        )
        self._binaries = binaries
        self.start()

    def start(self) -> None:
        """Start the server, on what it has on disk."""
        self._process = subprocess.Popen(
            [
                str(self._binaries / "postgres"),
                "-D",
                str(self._folder / "data"),
                "-k",
                str(self._folder),
                "-c",
                "listen_addresses=",
                "-c",
                "fsync=off",
                "-c",
                "synchronous_commit=off",
                "-c",
                "full_page_writes=off",
            ],
            user=self._user,
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._wait(self._binaries / "pg_isready")

    def _command(self, command: list[str]) -> None:
        subprocess.run(
            command, check=True, capture_output=True, user=self._user, cwd=self._folder, timeout=60
        )

    def _wait(self, is_ready: Path) -> None:
        # `-t` makes the tool itself wait; it returns at once while the socket does not exist yet,
        # so it is asked a few times.
        for _ in range(200):
            asked = subprocess.run(
                [str(is_ready), "-h", str(self._folder), "-t", "1"],
                capture_output=True,
                check=False,
            )
            if asked.returncode == 0:
                return
            try:
                self._process.wait(timeout=0.05)
            except subprocess.TimeoutExpired:
                continue
            break
        raise RuntimeError("PostgreSQL did not start")

    def new_database(self) -> str:
        """The URL of a fresh schema of the one database, which is a database as far as the store
        can see, and made in no time.
        """
        self._databases += 1
        name = f"ledger_{self._databases}"
        self._command_sql(f"CREATE SCHEMA {name}")
        return f"{self._url('postgres')}&options=-csearch_path%3D{name}"

    def prepared_database(self) -> str:
        """The URL of a database that has the program's tables: a copy, which takes a third of the
        time that making them does.
        """
        if not self._has_template:
            self._command_sql("CREATE DATABASE template_of_ledgers")
            open_database(self._url("template_of_ledgers")).close()
            self._has_template = True
        self._databases += 1
        name = f"ledger_{self._databases}"
        self._command_sql(f"CREATE DATABASE {name} TEMPLATE template_of_ledgers")
        return self._url(name)

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self._folder / ".s.PGSQL.5432"

    def _url(self, database: str) -> str:
        return f"postgresql://metaclaw@/{database}?host={self._folder}"

    def _command_sql(self, command: str) -> None:
        engine = create_engine(
            self._url("postgres").replace("postgresql:", "postgresql+psycopg:"),
            isolation_level="AUTOCOMMIT",
        )
        with engine.connect() as connection:
            connection.execute(text(command))
        engine.dispose()

    def stop_in_order(self) -> None:
        """Stop so that everything that was committed is on disk, for a later `start`."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(timeout=60)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGQUIT)  # at once: nothing in it is wanted any more
        self._process.wait(timeout=20)


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """A server for as long as it is needed; skips the test where there is none to run."""
    pytest.importorskip(
        "psycopg", reason="no PostgreSQL driver: pip install 'metaclaw-proxy[postgres]'"
    )
    binaries = next((folder for folder in SERVER_FOLDERS if (folder / "initdb").exists()), None)
    if binaries is None:
        pytest.skip(
            "no PostgreSQL server binaries under /usr/lib/postgresql: install the package"
            " postgresql to test on it"
        )
    user = next(
        (entry.pw_name for entry in pwd.getpwall() if entry.pw_name in ("postgres", "nobody")),
        "nobody",
    )
    # On the disk, for which this server does not wait: its databases and logs are gigabytes.
    folder = Path(tempfile.mkdtemp(prefix="metaclaw-pg-", dir="/var/tmp"))
    if os.getuid() == 0:
        shutil.chown(folder, user)
    try:
        server = PostgresServer(binaries, folder, user)
        yield server
        server.stop()
    finally:
        shutil.rmtree(folder)
