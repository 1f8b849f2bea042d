"""What people and tools read and do over HTTP: status, sessions, turns, skills, metrics."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import anyio.to_thread

from metaclaw import __version__
from metaclaw.dashboard.cost import Cost
from metaclaw.dashboard.enforcement import EnforcementRoutes
from metaclaw.dashboard.learning import LearningRoutes
from metaclaw.dashboard.openapi import describe
from metaclaw.dashboard.page_actions import PageActions
from metaclaw.dashboard.page_content import PageContent, PageParts
from metaclaw.dashboard.pages import Pages
from metaclaw.dashboard.policy import PolicyRoutes
from metaclaw.dashboard.routes import Answer, ApiError, Ask, Route, Router
from metaclaw.dashboard.sign_in import SignIn
from metaclaw.dashboard.views import role_view, session_view, turn_row_view, turn_view, verdict_view
from metaclaw.dashboard.why import WhyRoutes
from metaclaw.domain.chat import Json
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.store import LedgerReader

_MOST_ROWS = 1000
_NO_WINDOWS = {"open": False, "reason": "weights are not trained here: there is no [policy] in config.toml", "signals": []}


if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric


class Registry(Protocol):
    """What is counted, as Prometheus' library takes it."""

    def collect(self) -> "Iterable[Metric]": ...


@dataclass(frozen=True, slots=True)
class Facts:
    """Where the API gets what it tells."""

    status: Callable[[], Awaitable[Mapping[str, object]]]
    unready: Callable[[], str | None]
    reader: LedgerReader
    learning: LearningRoutes
    end_session: Callable[[SessionId], Awaitable[bool]]
    registry: Registry | None
    policy: PolicyRoutes | None = None
    why: WhyRoutes | None = None
    cost: Cost | None = None
    enforcement: EnforcementRoutes | None = None
    windows: Callable[[], Mapping[str, object] | None] = lambda: None
    sign_in: SignIn | None = None
    pages: PageParts | None = None
    """What the pages for a browser need; without both of these there are none."""


class Api:
    """The program's own routes, as an ASGI application behind the front door's key."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._pages = self._build_pages()
        self._routes = self._table()
        self._router = Router(self._routes)

    async def __call__(
        self, scope: Mapping[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        if self._pages is not None and not scope.get("has_key", True):
            refusal = self._pages.refusal(scope)
            if refusal is not None:
                await self._router.send(refusal, scope, send)
                return
        await self._router(scope, receive, send)

    async def prepare(self) -> None:
        """Make the pages ready for their first visitor."""
        if self._pages is not None:
            await self._pages.prepare()

    def stop(self) -> None:
        """The program is about to stop: whoever follows the events is let go, so that nobody waits for them."""
        self._router.stop()

    def _build_pages(self) -> Pages | None:
        facts = self._facts
        if facts.sign_in is None or facts.pages is None:
            return None
        content = PageContent(facts.pages, self._ask)
        actions = PageActions(self._ask, facts.learning.candidates, facts.learning.rulebook)
        return Pages(facts.sign_in, content, actions, can_train=lambda: facts.windows() is not None)

    async def _ask(self, method: str, path: str, said: Mapping[str, Json] | None = None, **query: str) -> dict[str, Any]:
        return await self._router.call(method, path, said, **query)

    def _table(self) -> list[Route]:
        return [
            Route("GET", "/", self._root, "The page for a browser; for others, where to go from here"),
            *(() if self._pages is None else self._pages.table()),
            Route("GET", "/readyz", self._ready, "Whether requests can be served and recorded"),
            Route("GET", "/metrics", self._metrics, "Prometheus metrics"),
            Route("GET", "/api/status", self._status, "How the program is"),
            Route("GET", "/api/sessions", self._sessions, "Sessions, newest first", ("limit", "before")),
            Route("GET", "/api/sessions/{id}", self._session, "One session with its turns", ("limit", "after")),
            Route("POST", "/api/sessions/{id}/end", self._end, "End a session"),
            Route("GET", "/api/turns/{id}", self._turn, "One turn: request, answer, stamp, times, usage"),
            *(() if self._facts.why is None else self._facts.why.table()),
            *self._facts.learning.table(),
            *(() if self._facts.cost is None else self._facts.cost.table()),
            *(() if self._facts.policy is None else self._facts.policy.table()),
            *(() if self._facts.enforcement is None else self._facts.enforcement.table()),
            Route("GET", "/api/windows", self._windows, "Whether weights may be trained now, what each signal says, and why"),
            Route("GET", "/api/openapi.json", self._openapi, "This description"),
        ]

    async def _root(self, ask: Ask) -> object:
        if self._pages is not None and "text/html" in ask.headers.get("accept", ""):
            return await self._pages.serve_root(ask)
        return {
            "name": "MetaClaw",
            "version": __version__,
            "page": "/ui",
            "status": "/api/status",
            "description": "/api/openapi.json",
        }

    async def _ready(self, ask: Ask) -> object:
        reason = self._facts.unready()
        if reason is None:
            return {"ready": True}
        raise ApiError(f"not ready: {reason}", 503)

    async def _metrics(self, ask: Ask) -> object:
        if self._facts.registry is None:
            raise ApiError("metrics are switched off (telemetry.prometheus)", 404)
        from prometheus_client import generate_latest

        return Answer(
            200, generate_latest(cast("CollectorRegistry", self._facts.registry)), "text/plain; version=0.0.4; charset=utf-8"
        )

    async def _status(self, ask: Ask) -> object:
        return await self._facts.status()

    async def _sessions(self, ask: Ask) -> object:
        limit, before = ask.number("limit", 50, _MOST_ROWS), ask.query.get("before")
        earlier = None if before is None else SessionId(before)
        rows = await anyio.to_thread.run_sync(lambda: self._facts.reader.sessions(limit, earlier))
        titles = await self._titles([row.id for row in rows])
        return {"sessions": [session_view(row, titles.get(row.id)) for row in rows]}

    async def _session(self, ask: Ask) -> object:
        session, limit, after = SessionId(ask.path["id"]), ask.number("limit", 200, _MOST_ROWS), ask.number("after", 0)
        reader = self._facts.reader
        row = await anyio.to_thread.run_sync(lambda: reader.session(session))
        if row is None:
            raise ApiError(f"there is no session {session}", 404)
        turns = await anyio.to_thread.run_sync(lambda: reader.turns_of(session, limit, after))
        title = (await self._titles([session])).get(session)
        return {**session_view(row, title), "turns": [{**turn_row_view(turn), "cursor": turn.seq} for turn in turns]}

    async def _titles(self, sessions: Sequence[SessionId]) -> Mapping[SessionId, str]:
        pages = self._facts.pages
        return {} if pages is None else await anyio.to_thread.run_sync(pages.titles.of, sessions)

    async def _end(self, ask: Ask) -> object:
        session = SessionId(ask.path["id"])
        if not await self._facts.end_session(session):
            raise ApiError(f"there is no running session {session}", 404)
        return {"session": session, "ended": True}

    async def _turn(self, ask: Ask) -> object:
        found = await anyio.to_thread.run_sync(lambda: self._facts.reader.turn(TurnId(ask.path["id"])))
        if found is None:
            raise ApiError(f"there is no turn {ask.path['id']}", 404)
        standing = await anyio.to_thread.run_sync(lambda: self._facts.reader.standing_of(found.turn.id))
        if standing is None:
            raise ApiError(f"there is no turn {ask.path['id']}", 404)
        return {
            **turn_view(found.turn),
            "role": role_view(found.turn, standing),
            "verdict": verdict_view(standing.verdict),
        }

    async def _windows(self, ask: Ask) -> object:
        found = self._facts.windows()
        return _NO_WINDOWS if found is None else dict(found)

    async def _openapi(self, ask: Ask) -> object:
        return describe(self._routes, __version__)
