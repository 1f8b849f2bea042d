"""`python -m metaclaw.app.learner`: the process that learns. It speaks on standard input and
output; only the program starts it.

It runs the loops of learning on the same database, which it only reads: writing, publishing and
announcing are commands to the serving process (`learn.store_rpc`). It ends when its input does."""

import asyncio
import logging
import os
import sys
import threading
from dataclasses import replace
from functools import partial
from typing import Final

import anyio
from anyio.to_thread import run_sync
from sqlalchemy import event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

from metaclaw.app.providers import build_endpoint
from metaclaw.learn import (
    AttemptLog,
    CallError,
    CallResult,
    Channel,
    CrashRecord,
    ForgetSession,
    LearnerReport,
    LearnerStart,
    Learning,
    LearningStores,
    Provider,
    RemoteLibrary,
    RemoteProvider,
    StoreCall,
    StoreClient,
    Supervisor,
    WakeLearner,
)
from metaclaw.proxy import own_words
from metaclaw.store import (
    Database,
    PriceServed,
    RemoteWrites,
    SqlGenerations,
    SqlSpending,
    connect,
)

log = logging.getLogger(__name__)

_TELL_EVERY_S: Final = 0.25
_NICENESS: Final = 10  # serving, and the search that requests wait for, come first


def main() -> None:
    """Build the loops, and learn until the input ends."""
    channel = Channel(os.dup(0), os.dup(1))
    os.dup2(2, 1)  # output of `print` must not get into the pipe
    os.nice(_NICENESS)
    begin = channel.receive()
    if not isinstance(begin, LearnerStart):
        return  # the program ended before it sent anything
    level = begin.config.log.level.upper()
    logging.basicConfig(
        level=level, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
    asyncio.run(_Learner(begin, channel, CrashRecord(int(sys.argv[1]))).run())


class _Learner:
    """The loops, and the messages to the serving process."""

    def __init__(self, begin: LearnerStart, channel: Channel, crash_record: CrashRecord) -> None:
        self._channel = channel
        self._sending = threading.Lock()
        self._told: LearnerReport | None = None
        self._supervisor: Supervisor | None = None
        self._store = StoreClient(self._send)
        database = connect(begin.config.store.url.resolve())
        only_read(database)
        self._library = library = RemoteLibrary(SqlGenerations(database), self._store, begin.skills)
        self._learning = Learning(
            begin.config,
            database=database,
            announce=partial(run_sync, self._store.run, "announce"),
            library=library,
            providers=_providers(begin, self._store),
            words=own_words,
            stores=_stores(database, self._store),
            attempt_log=AttemptLog(crash_record.read(), crash_record.write),
        )

    async def run(self) -> None:
        """Run until the serving process ends, which ends this one."""
        threading.Thread(
            target=self._listen, args=(asyncio.get_running_loop(),), name="listening", daemon=True
        ).start()
        async with anyio.create_task_group() as group:
            self._supervisor = Supervisor(group)
            self._learning.begin(self._supervisor)
            while True:
                await anyio.sleep(_TELL_EVERY_S)
                self._send()

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        while (message := self._channel.receive()) is not None:
            match message:
                case CallResult() | CallError():
                    self._store.hear(message)
                case WakeLearner():
                    loop.call_soon_threadsafe(self._learning.wake_fast_loop)
                case ForgetSession(session):
                    self._library.follow_anew()
                    loop.call_soon_threadsafe(self._learning.forget_session, session)
        # No orderly end is needed: results are written by the serving process, and unfinished work
        # is taken up again.
        os._exit(0)

    def _send(self, call: StoreCall | None = None) -> None:
        """Send the state of learning, if it has changed, then the call: pending work is known
        before it is done.
        """
        with self._sending:
            if (
                self._supervisor is not None
                and (now := self._state(self._supervisor)) != self._told
            ):
                self._told = now
                self._channel.send(now)
            if call is not None:
                self._channel.send(call)

    def _state(self, supervisor: Supervisor) -> LearnerReport:
        learning = self._learning
        return LearnerReport(
            learning.facts(),
            learning.waiting(),
            supervisor.states,
            learning.listening.reading,
            learning.listening.reached,
            max(learning.fast.lessons, learning.lessons.pending),
            learning.fast.writing,
            learning.attempt_log.set_aside,
        )


def only_read(database: Database) -> None:
    """Have the database refuse writes over these connections."""
    forbid = (
        "PRAGMA query_only = ON"
        if database.kind == "sqlite"
        else "SET default_transaction_read_only = on"
    )

    def set_up(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        cursor.execute(forbid)
        cursor.close()
        connection.commit()  # otherwise the first rollback undoes it

    event.listen(database.engine, "connect", set_up)


def _stores(database: Database, calls: RemoteWrites) -> LearningStores:
    stores = LearningStores.of(database, calls)
    return replace(stores, spending=_Spending(database, remote=calls))


class _Spending(SqlSpending):
    def add_served(self, price: PriceServed) -> int:
        """The serving process counts them all, by its own prices."""
        assert self._remote is not None
        self._remote.run("add_served")
        return 0


def _providers(begin: LearnerStart, calls: RemoteWrites) -> list[Provider]:
    configured = {one.name: one for one in begin.config.fallback_order}
    return [
        build_endpoint(configured[name]) if inside is None else RemoteProvider(name, inside, calls)
        for name, inside in begin.providers
    ]


if __name__ == "__main__":
    main()
