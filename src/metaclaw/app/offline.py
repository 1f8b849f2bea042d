"""The API while no proxy runs: one request of a command, answered in this process by the same
routes on the store of the home.

Reading writes nothing: no generation is published, and no database is created. A change holds the
lock of the home, as a proxy does."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from anyio.to_thread import run_sync

from metaclaw.api import (
    ApiResponse,
    Cost,
    EventFeed,
    HomeRoutes,
    RoleGate,
    Route,
    Router,
    Titles,
    home_table,
)
from metaclaw.config import Config, load
from metaclaw.domain.chat import Json
from metaclaw.domain.ids import SessionId
from metaclaw.errors import SkillError, TrainingError
from metaclaw.instance import acquire
from metaclaw.learn import Budget
from metaclaw.skills import Rulebook, SkillLibrary
from metaclaw.store import (
    ENFORCEMENT_OFF,
    Database,
    LedgerReader,
    Overview,
    SqlCursors,
    SqlGenerations,
    SqlLedger,
    SqlPolicies,
    SqlSpending,
    connect,
    open_database,
)

if TYPE_CHECKING:
    from metaclaw.learn import OwnerActions

_READING: Final = ("/api/skill-test", "/api/rule-file", "/api/whatif")
"""Routes that take a body and change nothing."""
_BEGINNING: Final = (
    *("/api/rules", "/api/skills", "/api/generations", "/api/undo", "/api/enforce"),
    *("/api/keys", "/api/candidates"),
)
"""Changes for which a database is created if there is none yet."""


def answer_offline(home: Path, method: str, target: str, body: bytes) -> tuple[int, bytes]:
    """Status and JSON of the response to a request. Raises MetaClawError."""
    config = load(home)
    is_reading = method == "GET" or target in _READING
    if is_reading or not (_has_store(config) or target.startswith(_BEGINNING)):
        with _store_to_read(config) as database:
            library = SkillLibrary(config.skills.dir, SqlGenerations(database))
            library.read()
            api = _Offline(config, home, database, library, is_reading=True)
            return asyncio.run(api.answer(method, target, body))
    with acquire(home), closing(open_database(config.store.url.resolve())) as database:
        library = SkillLibrary(config.skills.dir, SqlGenerations(database))
        _bring_in_line(library)
        api = _Offline(config, home, database, library, is_reading=False)
        found = asyncio.run(api.answer(method, target, body))
        _bring_in_line(library)  # writes the files
    return found


def _has_store(config: Config) -> bool:
    """Whether anything was ever recorded; a server has always been set up."""
    path = connect(config.store.url.resolve()).path
    return path is None or (path.exists() and path.stat().st_size > 0)


@contextmanager
def _store_to_read(config: Config) -> Iterator[Database]:
    """The store; an empty one elsewhere if there is none, so that reading creates none."""
    with TemporaryDirectory(prefix="metaclaw-") as folder:
        url = config.store.url.resolve() if _has_store(config) else f"sqlite:///{folder}/empty.db"
        with closing(open_database(url)) as database:
            yield database


def _bring_in_line(library: SkillLibrary) -> None:
    library.sync()
    if library.trouble is not None:
        raise SkillError(library.trouble)


@dataclass(frozen=True, slots=True)
class StoredPolicy:
    """Commands for weights while none are served: the next proxy serves what the store says."""

    policies: SqlPolicies

    async def train(self) -> Mapping[str, Json]:
        raise TrainingError("no proxy runs")

    async def promote(self, number: int) -> None:
        await run_sync(self.policies.promote, number, "a person promoted it")

    async def rollback(self, to: int | None) -> int:
        await run_sync(self.policies.rollback, to, "a person rolled back")
        return self.policies.serving().version

    def training(self) -> Mapping[str, Json]:
        return {"state": "off", "step": None, "version": None, "paused_reason": "no proxy runs"}


class ReadOnlyBudget(Budget):
    """The budget as it is counted in the store; the next proxy counts the turns since then."""

    def count_served(self) -> None:
        """Write nothing."""


class _Offline:
    """The routes that need no running proxy, on an opened store and library."""

    def __init__(
        self,
        config: Config,
        home: Path,
        database: Database,
        library: SkillLibrary,
        *,
        is_reading: bool,
    ) -> None:
        self._config = config
        self._home = home
        self._database = database
        self._library = library
        self._budget = ReadOnlyBudget(config, SqlSpending(database))
        self._ledger = SqlLedger(database)
        self._is_reading = is_reading
        self._is_recording = False

    async def answer(self, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        path, _, query = target.partition("?")
        scope = {"method": method, "path": unquote(path), "query_string": query.encode()}
        try:
            routes, home = self._routes()
            gate = None if self._is_reading else RoleGate(home, routes)
            answer = await Router(routes, gate=gate).respond(scope, body)
        finally:
            if self._is_recording:
                await self._ledger.aclose()
        assert isinstance(answer, ApiResponse)
        return answer.status, answer.body

    def _routes(self) -> tuple[list[Route], HomeRoutes]:
        config, database = self._config, self._database
        policies, cursors = SqlPolicies(database), SqlCursors(database)
        embedded = next(
            (one.name for one in config.providers if one.kind == "embedded"),
            None if config.providers else "embedded",
        )

        def absorbed(version: int) -> frozenset[str]:
            found = policies.version(version) if version else None
            return frozenset() if found is None else frozenset(found.absorbed)

        async def trainer() -> StoredPolicy:
            return StoredPolicy(policies)

        async def switch(is_on: bool) -> None:
            await run_sync(cursors.move_cursor, ENFORCEMENT_OFF, 0 if is_on else 1)

        home = HomeRoutes(
            config=config,
            database=database,
            rulebook=Rulebook(self._library, SqlGenerations(database)),
            titles=Titles(Overview(database), _own_words),
            words=_own_words,
            feed=EventFeed(LedgerReader(database)),
            cost=Cost(self._budget, SqlSpending(database)),
            owner=self._owner,
            trainer=trainer,
            serving=policies.serving,
            absorbed=absorbed,
            embedded=embedded,
            is_holding=lambda: not cursors.cursor(ENFORCEMENT_OFF),
            switch_holding=switch,
            end_session=_end,
            noted=lambda rule, turn: None,
            teams={team.name: team.users for team in config.teams},
            read_keys=lambda: None,
            used=lambda person: {},
        )
        return home_table(home), home

    async def _owner(self) -> "OwnerActions":
        # It brings most of the learner along, so it is imported where an action needs it.
        from metaclaw.app.lazy_learning import LazyLearning

        if not self._is_reading:
            self._is_recording = True
            await self._ledger.start()
        learning = LazyLearning(
            self._config,
            self._home / "policies",
            database=self._database,
            ledger=self._ledger,
            library=self._library,
            providers=(),
            budget=self._budget,
            policy=None,
            wake_learner=lambda: None,
            forget_session=lambda session: None,
            is_leading=_leads,
            is_alone=True,
        )
        return await learning.owner()


def _own_words(agent: str, text: str) -> str:
    from metaclaw.proxy import own_words  # most commands ask for no words

    return own_words(agent, text)


async def _leads() -> bool:
    return False  # nothing trains


async def _end(session: SessionId) -> bool:
    return False  # no session is active
