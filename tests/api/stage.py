"""The program's own API on the program's own composition, asked in this process without a
socket.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx

from metaclaw.api import Api
from metaclaw.app.application import Application
from metaclaw.domain.chat import Json
from metaclaw.domain.status import Health
from metaclaw.domain.turn import Turn
from metaclaw.store import SqlCandidates, SqlVerdicts
from tests.support.application import configured, opened


class Stage:
    """An opened program whose loops do not run, and a client of its API. `api` is the program's own
    unless another is given.
    """

    def __init__(self, app: Application, api: Api | None = None) -> None:
        self.app = app
        self.api = api or app.api
        self.database, self.reader, self.library, self.ledger = (
            app.database,
            app.reader,
            app.library,
            app.ledger,
        )
        self.candidates, self.verdicts = SqlCandidates(app.database), SqlVerdicts(app.database)
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=self.api), base_url="http://metaclaw"
        )

    async def record(self, turn: Turn) -> None:
        await self._kept(await self.ledger.record(turn))

    async def announce(self, kind: str, data: dict[str, Json]) -> None:
        await self._kept(await self.ledger.announce(kind, data))

    async def _kept(self, is_on_disk: bool) -> None:
        """Wait for a busy disk, which lets the ledger go on in memory."""
        with anyio.fail_after(60):
            while not is_on_disk and self.ledger.health.health is not Health.HEALTHY:
                await anyio.sleep(0.01)

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


@asynccontextmanager
async def staged(folder: Path, **sections: Any) -> AsyncIterator[Stage]:
    """A stage on a folder of its own, configured so."""
    async with opened(configured(folder, **sections)) as app:
        stage = Stage(app)
        try:
            yield stage
        finally:
            await stage.http.aclose()
