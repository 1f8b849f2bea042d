"""The ASGI application of the API: its parts and its table of routes."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

from anyio.to_thread import run_sync

from metaclaw import __version__
from metaclaw.api.access import RoleGate
from metaclaw.api.home_routes import HomeRoutes
from metaclaw.api.route_table import home_table
from metaclaw.api.router import (
    ApiError,
    ApiRequest,
    ApiResponse,
    Router,
    Scope,
    Send,
    describe,
    headers_of,
    json_error,
    route,
    routes_of,
)
from metaclaw.api.web.sign_in import SignIn
from metaclaw.domain.chat import Json
from metaclaw.domain.person import HOME, Person

log = logging.getLogger(__name__)

_NO_WINDOWS = {
    "open": False,
    "reason": "weights are not trained here: there is no [policy] in config.toml",
    "signals": [],
}


if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

    from metaclaw.api.web.pages import Pages


class Registry(Protocol):
    """The collector registry of `prometheus_client`."""

    def collect(self) -> "Iterable[Metric]": ...


@dataclass(frozen=True, slots=True)
class ApiParts:
    """The parts of the program that the API reads and calls."""

    status: Callable[[], Awaitable[Mapping[str, object]]]
    unready: Callable[[], str | None]
    home: HomeRoutes
    windows: Callable[[], Mapping[str, object] | None]
    """The state of the windows in which weights are trained; None where none are trained."""
    sign_in: SignIn
    slow_down: Callable[[str | None], Awaitable[None]]
    """Waits before a wrong key from this address is refused."""
    health: Callable[[], tuple[object, ...]]
    """A value that changes when a provider fails or recovers."""
    curve: Callable[[], Sequence[float]]
    """The mean reward of each training step of the newest run. Blocks."""
    registry: Registry | None
    """None where metrics are switched off."""


class Api:
    """The program's own routes, as an ASGI application behind the front door's keys: each person
    has theirs, on what they may see of the home. They are built at their first request or by
    `prepare`, so that the start does not wait for them."""

    def __init__(self, facts: ApiParts) -> None:
        self._facts = facts
        self._sides: dict[Person, PersonalApi] = {}

    async def __call__(
        self,
        scope: Mapping[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        try:
            self._side(HOME).router  # noqa: B018 - the first look builds it
        except (OSError, ImportError) as error:
            log.warning("pages_not_loaded reason=%s", error)
            await _be_unready(f"this is not loaded yet: {error}; try again", scope, send)
            return
        person = scope.get("person", HOME)
        if person is None:
            headers = headers_of(scope)
            # Without a session nothing but the page for signing in is admitted.
            person = self._facts.sign_in.person_of(headers) or HOME
            refusal = self._side(person).pages.refusal(scope)
            if refusal is not None:
                await self._side(person).router.send(refusal, scope, send)
                return
        await self._side(person).router(scope, receive, send)

    async def prepare(self) -> None:
        """Build the routes, and make the pages ready for their first visitor."""
        home = self._side(HOME)
        await run_sync(lambda: home.router)
        await home.pages.prepare()

    def stop(self) -> None:
        """End the event streams, so that stopping does not wait for their clients."""
        for side in self._sides.values():
            side.router.stop()

    def drop_revoked(self) -> None:
        """End the streams of keys that were revoked or replaced."""
        gone = [one for one in self._sides if self._facts.sign_in.marked(one.mark) != one]
        for person in gone:
            self._sides.pop(person).router.stop()

    def _side(self, person: Person) -> "PersonalApi":
        side = self._sides.get(person)
        if side is None:
            facts = replace(self._facts, home=self._facts.home.for_person(person))
            side = self._sides[person] = PersonalApi(facts)
        return side


async def _be_unready(message: str, scope: Scope, send: Send) -> None:
    answer = json_error(scope, 503, message)
    kind = [(b"content-type", answer.content_type.encode()), (b"retry-after", b"1")]
    await send({"type": "http.response.start", "status": answer.status, "headers": kind})
    await send({"type": "http.response.body", "body": answer.body})


class PersonalApi:
    """The routes for one person."""

    def __init__(self, facts: ApiParts) -> None:
        self._facts = facts

    @cached_property
    def router(self) -> Router:
        routes = [*self.pages.table(), *routes_of(self), *home_table(self._facts.home)]
        return Router(routes, self._failed, RoleGate(self._facts.home, routes))

    @cached_property
    def pages(self) -> "Pages":
        from metaclaw.api.web.actions import PageActions
        from metaclaw.api.web.content import PageContent
        from metaclaw.api.web.pages import Pages

        facts = self._facts
        return Pages(
            facts.sign_in,
            PageContent(facts.home, self._ask, facts.curve),
            PageActions(self._ask, facts.home),
            slow_down=facts.slow_down,
            can_train=lambda: facts.windows() is not None,
            health=facts.health,
        )

    def _failed(self, scope: Scope, status: int, message: str) -> ApiResponse:
        is_page = scope["path"].startswith("/ui/")
        return (
            self.pages.failed(scope, status, message)
            if is_page
            else json_error(scope, status, message)
        )

    async def _ask(
        self, method: str, path: str, body: Mapping[str, Json] | None = None, **query: str
    ) -> dict[str, Any]:
        return await self.router.call(method, path, body, **query)

    @route("GET", "/", "The page for a browser; for others, where to go from here")
    async def _root(self, request: ApiRequest) -> object:
        if "text/html" in request.headers.get("accept", ""):
            return await self.pages.serve_root(request)
        return {
            "name": "MetaClaw",
            "version": __version__,
            "page": "/ui",
            "status": "/api/status",
            "description": "/api/openapi.json",
        }

    @route("GET", "/readyz", "Whether requests can be served and recorded")
    async def _ready(self, request: ApiRequest) -> object:
        reason = self._facts.unready()
        if reason is None:
            return {"ready": True}
        raise ApiError(f"not ready: {reason}", 503)

    @route("GET", "/metrics", "Prometheus metrics")
    async def _metrics(self, request: ApiRequest) -> object:
        if self._facts.registry is None:
            raise ApiError("metrics are switched off (telemetry.prometheus)", 404)
        from prometheus_client import generate_latest

        return ApiResponse(
            200,
            generate_latest(cast("CollectorRegistry", self._facts.registry)),
            "text/plain; version=0.0.4; charset=utf-8",
        )

    @route("GET", "/api/status", "State of the program")
    async def _status(self, request: ApiRequest) -> object:
        return await self._facts.status()

    @route(
        "GET", "/api/windows", "Whether weights may be trained now, what each signal says, and why"
    )
    async def _windows(self, request: ApiRequest) -> object:
        found = self._facts.windows()
        return _NO_WINDOWS if found is None else dict(found)

    @route("GET", "/api/openapi.json", "This description")
    async def _openapi(self, request: ApiRequest) -> object:
        return describe(self.router.routes, __version__)
