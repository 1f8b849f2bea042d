"""The barrier between days: wait until the proxy has learned what it can from a day, so that the next one begins with all of it.

Nothing in the proxy waits for learning, so it has to be looked at from outside: what its loops have read (their cursors), what is
being written or tried (attempts and drafts), and whether anything still changes. Only quiet that lasts counts.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import anyio
from anyio.to_thread import run_sync

from metaclaw.bench.running.api import Api, at
from metaclaw.bench.running.plan import Patience
from metaclaw.domain.candidate import Standing
from metaclaw.domain.chat import Json
from metaclaw.store import Database, LedgerReader, SqlCandidates, SqlCursors, open_database

_PAUSE_S: Final = 0.05
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# As `learn.sensing` calls them: how far it has done with turns, and with sessions that ended (in microseconds).
_TURNS, _ENDS = "sensing", "sensing ends"


@dataclass(frozen=True, slots=True)
class Settled:
    """How long it took, and what was still under way when patience ran out; empty where everything came to rest."""

    seconds: float
    left: tuple[str, ...] = ()


async def settle(api: Api, home: Path, patience: Patience) -> Settled:
    """Return once nothing is being learned any more, or after `patience.most_s`."""
    began = since = time.monotonic()
    before: Json = None
    with _opened(home) as database:
        while True:
            busy, now = await run_sync(_under_way, database), _changes(await api.get("status"))
            if busy or now != before:
                since, before = time.monotonic(), now
            if time.monotonic() - since >= patience.calm_s:
                return Settled(time.monotonic() - began)
            if time.monotonic() - began >= patience.most_s:
                return Settled(time.monotonic() - began, busy or ("skills or verdicts still change",))
            await anyio.sleep(_PAUSE_S)


@contextmanager
def _opened(home: Path) -> Iterator[Database]:
    database = open_database(f"sqlite:///{home}/ledger.db")
    try:
        yield database
    finally:
        database.close()


def _under_way(database: Database) -> tuple[str, ...]:
    """What learning is busy with, in words. Blocks."""
    reader, cursors, candidates = LedgerReader(database), SqlCursors(database), SqlCandidates(database)
    left = []
    if reader.turns_after(cursors.cursor(_TURNS), 1):
        left.append("turns without a verdict")
    ends = _EPOCH + timedelta(microseconds=cursors.cursor(_ENDS) + 1)
    if reader.sessions_ended(ends, None, 1):
        left.append("sessions whose last turn has no verdict")
    if attempts := candidates.interrupted():
        left.append(f"{len(attempts)} kinds of failure with the evolver")
    if drafts := candidates.candidates(Standing.DRAFT, 1000):
        left.append(f"{len(drafts)} skills at the gate")
    return tuple(left)


def _changes(status: dict[str, Json]) -> Json:
    """What moves while something is learned."""
    return [
        status.get("generation"),
        at(status, "counts", "verdicts"),
        at(status, "counts", "support"),
        at(status, "counts", "candidates"),
        at(status, "learning", "asked"),
    ]
