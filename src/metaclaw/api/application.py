"""The ASGI application of the API: its parts, its table of routes, and the routes about sessions
and turns.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import anyio.to_thread

from metaclaw import __version__
from metaclaw.api.learning import LearningRoutes
from metaclaw.api.policy import PolicyRoutes
from metaclaw.api.router import (
    ApiError,
    ApiRequest,
    ApiResponse,
    Route,
    Router,
    Scope,
    describe,
    json_error,
)
from metaclaw.api.rules import EnforcementRoutes
from metaclaw.api.status import Cost
from metaclaw.api.turns import WhyRoutes
from metaclaw.api.views import role_view, session_view, turn_row_view, turn_view, verdict_view
from metaclaw.api.web.actions import PageActions
from metaclaw.api.web.content import PageContent, PageParts
from metaclaw.api.web.pages import Pages
from metaclaw.api.web.sign_in import SignIn
from metaclaw.domain.chat import Json
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.store import LedgerReader

_MOST_ROWS = 1000
_NO_WINDOWS = {
    "open": False,
    "reason": "weights are not trained here: there is no [policy] in config.toml",
    "signals": [],
}


if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric


class Registry(Protocol):
    """The collector registry of `prometheus_client`."""

    def collect(self) -> "Iterable[Metric]": ...


@dataclass(frozen=True, slots=True)
class ApiParts:
    """The parts of the program that the API reads and calls."""

    status: Callable[[], Awaitable[Mapping[str, object]]]
    unready: Callable[[], str | None]
    reader: LedgerReader
    learning: LearningRoutes
    end_session: Callable[[SessionId], Awaitable[bool]]
    policy: PolicyRoutes
    why: WhyRoutes
    cost: Cost
    enforcement: EnforcementRoutes
    windows: Callable[[], Mapping[str, object] | None]
    """The state of the windows in which weights are trained; None where none are trained."""
    sign_in: SignIn
    slow_down: Callable[[str | None], Awaitable[None]]
    """Waits before a wrong key from this address is refused."""
    pages: PageParts
    registry: Registry | None
    """None where metrics are switched off."""


class Api:
    """The program's own routes, as an ASGI application behind the front door's key."""

    def __init__(self, facts: ApiParts) -> None:
        self._facts = facts
        self._pages = self._build_pages()
        self._routes = self._table()
        self._router = Router(self._routes, self._failed)

    async def __call__(
        self,
        scope: Mapping[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        if not scope.get("has_key", True):
            refusal = self._pages.refusal(scope)
            if refusal is not None:
                await self._router.send(refusal, scope, send)
                return
        await self._router(scope, receive, send)

    async def prepare(self) -> None:
        """Make the pages ready for their first visitor."""
        await self._pages.prepare()

    def stop(self) -> None:
        """End the event streams, so that stopping does not wait for their clients."""
        self._router.stop()

    def _build_pages(self) -> Pages:
        facts = self._facts
        content = PageContent(facts.pages, self._ask)
        actions = PageActions(self._ask, facts.learning.candidates, facts.learning.rulebook)
        return Pages(
            facts.sign_in,
            content,
            actions,
            slow_down=facts.slow_down,
            can_train=lambda: facts.windows() is not None,
        )

    def _failed(self, scope: Scope, status: int, message: str) -> ApiResponse:
        is_page = scope["path"].startswith("/ui/")
        return (
            self._pages.failed(scope, status, message)
            if is_page
            else json_error(scope, status, message)
        )

    async def _ask(
        self, method: str, path: str, body: Mapping[str, Json] | None = None, **query: str
    ) -> dict[str, Any]:
        return await self._router.call(method, path, body, **query)

    def _table(self) -> list[Route]:
        return [
            Route(
                "GET", "/", self._root, "The page for a browser; for others, where to go from here"
            ),
            *self._pages.table(),
            Route("GET", "/readyz", self._ready, "Whether requests can be served and recorded"),
            Route("GET", "/metrics", self._metrics, "Prometheus metrics"),
            Route("GET", "/api/status", self._status, "State of the program"),
            Route(
                "GET",
                "/api/sessions",
                self._sessions,
                "Sessions, newest first",
                ("limit", "before"),
            ),
            Route(
                "GET",
                "/api/sessions/{id}",
                self._session,
                "One session with its turns",
                ("limit", "after"),
            ),
            Route("POST", "/api/sessions/{id}/end", self._end, "End a session"),
            Route(
                "GET",
                "/api/turns/{id}",
                self._turn,
                "One turn: request, answer, stamp, times, usage",
            ),
            *self._facts.why.table(),
            *self._facts.learning.table(),
            *self._facts.cost.table(),
            *self._facts.policy.table(),
            *self._facts.enforcement.table(),
            Route(
                "GET",
                "/api/windows",
                self._windows,
                "Whether weights may be trained now, what each signal says, and why",
            ),
            Route("GET", "/api/openapi.json", self._openapi, "This description"),
        ]

    async def _root(self, request: ApiRequest) -> object:
        if "text/html" in request.headers.get("accept", ""):
            return await self._pages.serve_root(request)
        return {
            "name": "MetaClaw",
            "version": __version__,
            "page": "/ui",
            "status": "/api/status",
            "description": "/api/openapi.json",
        }

    async def _ready(self, request: ApiRequest) -> object:
        reason = self._facts.unready()
        if reason is None:
            return {"ready": True}
        raise ApiError(f"not ready: {reason}", 503)

    async def _metrics(self, request: ApiRequest) -> object:
        if self._facts.registry is None:
            raise ApiError("metrics are switched off (telemetry.prometheus)", 404)
        from prometheus_client import generate_latest

        return ApiResponse(
            200,
            generate_latest(cast("CollectorRegistry", self._facts.registry)),
            "text/plain; version=0.0.4; charset=utf-8",
        )

    async def _status(self, request: ApiRequest) -> object:
        return await self._facts.status()

    async def _sessions(self, request: ApiRequest) -> object:
        limit, before = request.number("limit", 50, _MOST_ROWS), request.query.get("before")
        earlier = None if before is None else SessionId(before)
        rows = await anyio.to_thread.run_sync(lambda: self._facts.reader.sessions(limit, earlier))
        titles = await self._titles([row.id for row in rows])
        return {"sessions": [session_view(row, titles.get(row.id)) for row in rows]}

    async def _session(self, request: ApiRequest) -> object:
        session, limit, after = (
            SessionId(request.path["id"]),
            request.number("limit", 200, _MOST_ROWS),
            request.number("after", 0),
        )
        reader = self._facts.reader
        row = await anyio.to_thread.run_sync(lambda: reader.session(session))
        if row is None:
            raise ApiError(f"there is no session {session}", 404)
        turns = await anyio.to_thread.run_sync(lambda: reader.turns_of(session, limit, after))
        title = (await self._titles([session])).get(session)
        return {
            **session_view(row, title),
            "turns": [{**turn_row_view(turn), "cursor": turn.seq} for turn in turns],
        }

    async def _titles(self, sessions: Sequence[SessionId]) -> Mapping[SessionId, str]:
        return await anyio.to_thread.run_sync(self._facts.pages.titles.of, sessions)

    async def _end(self, request: ApiRequest) -> object:
        session = SessionId(request.path["id"])
        if not await self._facts.end_session(session):
            raise ApiError(f"there is no running session {session}", 404)
        return {"session": session, "ended": True}

    async def _turn(self, request: ApiRequest) -> object:
        found = await anyio.to_thread.run_sync(
            lambda: self._facts.reader.turn(TurnId(request.path["id"]))
        )
        if found is None:
            raise ApiError(f"there is no turn {request.path['id']}", 404)
        standing = await anyio.to_thread.run_sync(
            lambda: self._facts.reader.standing_of(found.turn.id)
        )
        if standing is None:
            raise ApiError(f"there is no turn {request.path['id']}", 404)
        return {
            **turn_view(found.turn),
            "role": role_view(found.turn, standing),
            "verdict": verdict_view(standing.verdict),
        }

    async def _windows(self, request: ApiRequest) -> object:
        found = self._facts.windows()
        return _NO_WINDOWS if found is None else dict(found)

    async def _openapi(self, request: ApiRequest) -> object:
        return describe(self._routes, __version__)
