"""The program's own API on real parts: store, library and owner, asked in this process without a socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx
from prometheus_client import CollectorRegistry

from metaclaw.api import Api, ApiParts, EventFeed, LearningRoutes, WhyRoutes
from metaclaw.config import build
from metaclaw.domain.chat import Json
from metaclaw.domain.ids import SessionId
from metaclaw.learn.assembly import Learning, owner_of
from metaclaw.learn.owner import OwnerActions
from metaclaw.learn.retention import SessionErasure
from metaclaw.skills import Budgets, Rulebook, SkillLibrary
from metaclaw.store import (
    Database,
    LedgerLimits,
    LedgerReader,
    SqlCompliance,
    SqlGenerations,
    SqlLedger,
    SqlVerdicts,
    open_database,
)


@dataclass
class Stage:
    """Everything the routes stand on, and the API itself. `running` are the sessions that may be ended. No loop runs."""

    folder: Path
    database: Database
    ledger: SqlLedger
    library: SkillLibrary
    registry: CollectorRegistry | None = field(default_factory=CollectorRegistry)
    unready: str | None = None
    running: set[SessionId] = field(default_factory=set)

    def __post_init__(self) -> None:
        config = build({"skills": {"gate": "lint"}}, self.folder)
        self.learning = Learning(
            config,
            database=self.database,
            ledger=self.ledger,
            library=self.library,
            providers=(),
            words=lambda agent, text: text,
        )
        self.owner = owner_of(self.learning, self.library, SessionErasure(self.database, self.library, self.folder / "policies"))
        self.reader = LedgerReader(self.database)
        self.candidates = self.learning.candidates
        self.verdicts = SqlVerdicts(self.database)
        self.generations = SqlGenerations(self.database)
        self.routes = LearningRoutes(
            EventFeed(self.reader),
            self.candidates,
            self.generations.history,
            lambda: self.library.view,
            self._owner,
            Rulebook(self.library, self.generations),
            SqlCompliance(self.database),
        )
        why = WhyRoutes(self.reader, self.generations.at, lambda: self.library.view.skills, Budgets(), {})
        self.api = Api(
            ApiParts(self._status, lambda: self.unready, self.reader, self.routes, self._end, registry=self.registry, why=why)
        )
        transport = httpx.ASGITransport(app=self.api)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://metaclaw")

    async def _owner(self) -> OwnerActions:
        return self.owner

    async def announce(self, kind: str, data: dict[str, Json]) -> None:
        """Make something known to whoever follows the events."""
        assert await self.ledger.announce(kind, data)

    async def get(self, path: str) -> Any:
        """The JSON of a GET that must succeed."""
        answer = await self.http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def refused(self, status: int, method: str, path: str, **asked: Any) -> str:
        """The sentence of a request that must be refused with this status."""
        answer = await self.http.request(method, path, **asked)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/json"
        assert list(answer.json()) == ["error"]
        sentence = answer.json()["error"]["message"]
        assert isinstance(sentence, str)
        assert sentence
        return sentence

    async def wakes_learning(self) -> bool:
        """Whether the loop that learns has something to do."""
        with anyio.move_on_after(0.01):
            await self.learning.fast.wakeup.wait(60)
            return True
        return False

    async def _status(self) -> dict[str, object]:
        return {"generation": self.library.view.generation}

    async def _end(self, session: SessionId) -> bool:
        if session not in self.running:
            return False
        self.running.remove(session)
        return True


@asynccontextmanager
async def staged(folder: Path) -> AsyncIterator[Stage]:
    """A stage in a folder of its own."""
    database = open_database(f"sqlite:///{folder}/ledger.db")
    ledger = SqlLedger(database, LedgerLimits(patience_s=10))
    await ledger.start()
    stage = Stage(folder, database, ledger, SkillLibrary(folder / "skills", SqlGenerations(database)))
    stage.library.sync()
    try:
        yield stage
    finally:
        await stage.http.aclose()
        await ledger.aclose()
        database.close()
