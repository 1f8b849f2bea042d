"""Which of several programs on one store learns: one leads, the others only serve.

Each leader has a number of its own, its epoch, which is in the store and grows with every leader.
What a leader writes carries its epoch (`carrying`), and `Database.writing` refuses, inside the
transaction, what carries an earlier one: a leader that was stopped for a while, or cut off from the
store, cannot write after another has taken over.

On PostgreSQL the leader holds a lease in the store, by the server's clock. A session lock would need
no renewal, but it outlives a leader that is stopped or cut off, and does not work through pgbouncer.
On SQLite every program is on one machine, and the leader locks a file beside the database, which
the kernel unlocks however the leader ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, ScalarSelect, Select, func, select

from metaclaw.domain.policy import PolicyState
from metaclaw.store.database import EPOCH, EPOCH_OF_WRITES, FORGETTINGS, Database
from metaclaw.store.dialects import insert_into, server_now_us, store_errors
from metaclaw.store.schema import cursors, generations, policies, true_answers
from metaclaw.store.usage import ENFORCEMENT_OFF, read_cursor, write_cursor

LEASE_S: Final = 3.0
TRAINING_WANTED: Final = "leader:training wanted"
"""Grows when a person wants training to begin, at whichever proxy they said so."""
_UNTIL: Final = "leader:until"
_LOCK_SUFFIX: Final = "-leader"


@contextmanager
def carrying(epoch: int) -> Iterator[None]:
    """Whatever is written inside, also by tasks and threads that begin there, is written as the
    leader of this epoch, or refused.
    """
    token = EPOCH_OF_WRITES.set(epoch)
    try:
        yield
    finally:
        EPOCH_OF_WRITES.reset(token)


class Leadership:
    """This program's claim to lead. All methods block and raise StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock: int | None = None
        self.epoch: int | None = None
        """While it leads: the epoch."""

    def claim(self) -> int | None:
        """Lead if no other does, or go on leading; the epoch, None if another leads."""
        if self.epoch is None:
            self.epoch = self._begin()
        elif not self._goes_on(self.epoch):
            self.epoch = None
        return self.epoch

    def resign(self) -> None:
        """Let another one lead at once."""
        epoch, self.epoch = self.epoch, None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        elif epoch is not None:
            with self._database.writing("giving up the lead") as connection:
                if read_cursor(connection, EPOCH) == epoch:
                    write_cursor(connection, _UNTIL, 0)

    def _begin(self) -> int | None:
        path = self._database.path
        if not (self._is_vacant() if path is None else self._lock_beside(path)):
            return None
        with self._database.writing("taking the lead") as connection:
            row = insert_into(cursors, connection.dialect.name).values(name=EPOCH, seq=0)
            connection.execute(row.on_conflict_do_nothing())
            # Waits for what the former leader is writing, and makes others wait that want to lead.
            locked = select(cursors.c.seq).where(cursors.c.name == EPOCH).with_for_update()
            epoch = int(connection.execute(locked).scalar_one()) + 1
            if path is None and not _has_run_out(connection):
                return None  # another one was faster
            write_cursor(connection, EPOCH, epoch)
            self._extend(connection)
            return epoch

    def _goes_on(self, epoch: int) -> bool:
        """Whether no other leads. The lease is renewed, even if it had run out."""
        if self._database.path is not None:
            with self._database.reading("looking who leads") as connection:
                return read_cursor(connection, EPOCH) == epoch
        with self._database.writing("keeping the lead") as connection:
            locked = select(cursors.c.seq).where(cursors.c.name == EPOCH)
            if connection.scalar(locked.with_for_update(read=True)) != epoch:
                return False
            self._extend(connection)
            return True

    def _extend(self, connection: Connection) -> None:
        if self._database.path is None:
            write_cursor(connection, _UNTIL, server_now_us(connection) + round(LEASE_S * 1e6))

    def _is_vacant(self) -> bool:
        with self._database.reading("looking who leads") as connection:
            return _has_run_out(connection)

    def _lock_beside(self, path: Path) -> bool:
        if self._lock is not None:
            return True
        with store_errors("taking the lead", self._database.dialect):
            handle = os.open(f"{path}{_LOCK_SUFFIX}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return False
        self._lock = handle
        return True


def _has_run_out(connection: Connection) -> bool:
    return (read_cursor(connection, _UNTIL) or 0) <= server_now_us(connection)


class SharedState(NamedTuple):
    """What one proxy may change and every other has to follow."""

    generation: int
    library: str
    serving: int
    true_answers: int
    forgettings: int
    enforcement_off: int
    training_wanted: int


def _cursor(name: str) -> ScalarSelect[Any]:
    found = select(func.coalesce(func.max(cursors.c.seq), 0)).where(cursors.c.name == name)
    return found.scalar_subquery()


def _state() -> Select[*tuple[Any, ...]]:
    newest = generations.c.number.desc()
    is_serving = policies.c.state == PolicyState.SERVING
    return select(
        select(generations.c.number).order_by(newest).limit(1).scalar_subquery(),
        select(generations.c.hash).order_by(newest).limit(1).scalar_subquery(),
        select(func.coalesce(func.max(policies.c.number), 0)).where(is_serving).scalar_subquery(),
        select(func.coalesce(func.max(true_answers.c.turn), 0)).scalar_subquery(),
        *map(_cursor, (FORGETTINGS, ENFORCEMENT_OFF, TRAINING_WANTED)),
    )


_STATE: Final = _state()


def shared_state(database: Database) -> SharedState:
    """The present state, by one small query. Blocks."""
    with database.reading("looking for changes") as connection:
        return SharedState(*connection.execute(_STATE).one())
