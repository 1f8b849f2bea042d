"""The router of the program's own API: maps path patterns to functions, and sends their results as
JSON.
"""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any, Protocol, TypeVar, cast
from urllib.parse import parse_qsl

import anyio
import anyio.to_thread
import msgspec

from metaclaw.domain.chat import Json
from metaclaw.errors import MetaClawError, SkillError, StoreError, TrainingError
from metaclaw.store import RefusedError
from metaclaw.wires import encode_json

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class ApiError(MetaClawError):
    """A request to our own API cannot be served; carries the status of the response."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class RequestBody:
    """The JSON object that a route takes: its fields with their JSON Schemas, and those it must
    have.
    """

    fields: Mapping[str, Mapping[str, Json]]
    required: tuple[str, ...] = ()

    @property
    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": self.fields,
            "required": self.required,
            "additionalProperties": False,
        }

    def read(self, body: bytes) -> dict[str, Any]:
        """The checked object; an absent body is an empty one."""
        try:
            value = msgspec.json.decode(body) if body.strip() else {}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ApiError(f"the body is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise ApiError("the body must be a JSON object")
        return self.check(value)

    def check(self, value: dict[str, Any]) -> dict[str, Any]:
        """The object, if it fits the schemas and has no other fields."""
        # Imported late: most requests have no body.
        from jsonschema import Draft202012Validator

        if unknown := sorted(set(value) - set(self.fields)):
            known = " or ".join(self.fields)
            raise ApiError(f"{unknown[0]!r} is not a field here; write {known}")
        for error in Draft202012Validator(self.schema).iter_errors(value):
            place = ".".join(map(str, error.path))
            raise ApiError(f"{place}: {error.message}" if place else error.message)
        return value


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One request to the API: values from the path and the query, the body, and the checked fields
    of a JSON body. `scope` is that of ASGI, empty for a call from inside the program.
    """

    path: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes
    said: Mapping[str, Any]
    scope: Scope

    @property
    def headers(self) -> dict[str, str]:
        """The header fields, in lower case."""
        return headers_of(self.scope)

    def number(self, name: str, default: int, most: int = 2**53) -> int:
        """An integer from the query, at most `most`, at least 1 or the default if that is
        smaller.
        """
        text, least = self.query.get(name, str(default)), min(1, default)
        if not (
            text.isascii() and text.isdigit() and len(text) < 17 and least <= int(text) <= most
        ):
            raise ApiError(f"{name} must be a whole number from {least} to {most}, not {text!r}")
        return int(text)

    def choice(self, name: str, known: Iterable[str]) -> str | None:
        """A word from the query, which must be one of those that are known; None if it is not
        given.
        """
        word, names = self.query.get(name), list(known)
        if word is not None and word not in names:
            raise ApiError(f"{name} must be one of {', '.join(names)}, not {word!r}")
        return word


@dataclass(frozen=True, slots=True)
class ApiStream:
    """A streamed response, until the client leaves or the program stops."""

    content_type: str
    chunks: AsyncGenerator[bytes, None]


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """A response with status and headers. Any other value that a route returns is sent as JSON with
    status 200.
    """

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Route:
    """One entry of the table. `{name}` in the path takes one segment."""

    method: str
    path: str
    serve: Callable[[ApiRequest], object]
    """A coroutine function, or a function that blocks and is called in a thread."""
    summary: str
    parameters: tuple[str, ...] = ()
    body: RequestBody | None = None
    is_page: bool = False
    """Whether it is for a browser, and not part of the documented API."""


Serve = TypeVar("Serve", bound=Callable[..., object])
_MARK = "_route"


def route(
    method: str,
    path: str,
    summary: str,
    parameters: tuple[str, ...] = (),
    body: RequestBody | None = None,
    *,
    is_page: bool = False,
) -> Callable[[Serve], Serve]:
    """Mark a method that serves a route; `routes_of` finds it."""

    def mark(serve: Serve) -> Serve:
        setattr(serve, _MARK, (method, path, summary, parameters, body, is_page))
        return serve

    return mark


def routes_of(*groups: object) -> list[Route]:
    """The routes that the methods of these objects serve, in their order."""
    found = []
    for group in groups:
        for name, member in vars(type(group)).items():
            if (marked := getattr(member, _MARK, None)) is not None:
                method, path, *described = marked
                found.append(Route(method, path, getattr(group, name), *described))
    return found


def json_error(scope: Scope, status: int, message: str) -> ApiResponse:
    """An error as the API reports it."""
    return ApiResponse(status, encode_json({"error": {"message": message}}))


class Admission(Protocol):
    """Says who may use a route, and notes what they change (`access.RoleGate`)."""

    async def admit(self, route: Route, values: Mapping[str, str]) -> None: ...
    async def note(self, route: Route, values: Mapping[str, str], result: object) -> None: ...


class Router:
    """Finds the route of a request and sends its result."""

    def __init__(
        self,
        routes: Sequence[Route],
        failed: Callable[[Scope, int, str], ApiResponse] = json_error,
        gate: Admission | None = None,
    ) -> None:
        """`failed` makes the response of a request that cannot be served, from its status and the
        reason. Without a gate everyone may do everything.
        """
        self.routes = routes
        self._patterns = [(re.compile(_pattern(route.path)), route) for route in routes]
        self._failed = failed
        self._gate = gate
        self._stopping = anyio.Event()

    def stop(self) -> None:
        """End the streams."""
        self._stopping.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self.respond(scope, await _body(receive))
        if isinstance(answer, ApiStream) and scope["method"] != "HEAD":
            await _send_stream(answer, receive, send, self._stopping)
            return
        if isinstance(answer, ApiStream):
            await answer.chunks.aclose()
            answer = ApiResponse(200, b"", answer.content_type)
        await self.send(answer, scope, send)

    async def respond(self, scope: Scope, body: bytes) -> ApiResponse | ApiStream:
        """The response to one request, an error included."""
        try:
            return await self._serve(scope, body)
        except ApiError as error:
            return self._failed(scope, error.status, str(error))
        except StoreError as error:
            return self._failed(scope, 503, f"the store cannot be used now: {error}")

    async def send(self, answer: ApiResponse, scope: Scope, send: Send) -> None:
        """Send a response that is not a stream."""
        body = b"" if scope["method"] == "HEAD" else answer.body
        headers = [
            (b"content-type", answer.content_type.encode()),
            (b"content-length", str(len(body)).encode()),
        ]
        headers += [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers
        ]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def call(
        self, method: str, path: str, said: Mapping[str, Json] | None = None, **query: str
    ) -> dict[str, Any]:
        """Call a route from inside the program and return its value. Raises ApiError and
        StoreError.
        """
        matching = self._matching(path)
        match, route = next(one for one in matching if one[1].method == method)
        body = b"" if said is None else encode_json(dict(said))
        return cast(dict[str, Any], await self._result(route, match, query, body, {}))

    def _matching(self, path: str) -> list[tuple[re.Match[str], Route]]:
        return [
            (match, route)
            for pattern, route in self._patterns
            if (match := pattern.fullmatch(path))
        ]

    async def _serve(self, scope: Scope, body: bytes) -> ApiResponse | ApiStream:
        method, path, query = scope["method"], scope["path"], scope.get("query_string", b"")
        matching = self._matching(path)
        if not matching:
            raise ApiError(f"nothing is served at {path}", 404)
        wanted = "GET" if method == "HEAD" else method
        for match, route in matching:
            if route.method == wanted:
                values = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
                result = await self._result(route, match, values, body, scope)
                if isinstance(result, ApiResponse | ApiStream):
                    return result
                return ApiResponse(200, encode_json(cast(Json, result)))
        raise ApiError(
            f"{path} takes {' or '.join(sorted({route.method for _, route in matching}))}, not"
            f" {method}",
            405,
        )

    async def _result(
        self,
        route: Route,
        match: re.Match[str],
        query: Mapping[str, str],
        body: bytes,
        scope: Scope,
    ) -> object:
        """What a route returns. What the program refuses to do is a conflict."""
        values = match.groupdict()
        if self._gate is not None:
            await self._gate.admit(route, values)
        said = {} if route.body is None else route.body.read(body)
        asked = ApiRequest(values, query, body, said, scope)
        try:
            if iscoroutinefunction(route.serve):
                result = await route.serve(asked)
            else:
                result = await anyio.to_thread.run_sync(route.serve, asked)
        except (SkillError, RefusedError, TrainingError) as error:
            raise ApiError(str(error), 409) from error
        if self._gate is not None:
            await self._gate.note(route, values, result)
        return result


def headers_of(scope: Scope) -> dict[str, str]:
    """The header fields of a request, in lower case."""
    return {
        name.decode("latin-1").lower(): value.decode("latin-1")
        for name, value in scope.get("headers", ())
    }


async def _body(receive: Receive) -> bytes:
    pieces = []
    while True:
        message = await receive()
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)


async def _send_stream(
    stream: ApiStream, receive: Receive, send: Send, stopping: anyio.Event
) -> None:
    """Send chunks as they come, until there are no more, the client leaves, or the program
    stops.
    """
    headers = [(b"content-type", stream.content_type.encode()), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    has_left = False

    async def leave_with_client() -> None:
        nonlocal has_left
        while (await receive())["type"] != "http.disconnect":
            pass
        has_left = True
        group.cancel_scope.cancel()

    async def end_with_program() -> None:
        await stopping.wait()
        group.cancel_scope.cancel()

    async with aclosing(stream.chunks) as chunks:
        async with anyio.create_task_group() as group:
            group.start_soon(leave_with_client)
            group.start_soon(end_with_program)
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            group.cancel_scope.cancel()
    if not has_left:
        await send({"type": "http.response.body", "body": b""})


def _pattern(path: str) -> str:
    return re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(path))


_ERROR_RESPONSE = {
    "description": "What went wrong",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}


def describe(routes: Sequence[Route], version: str) -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if route.is_page:
            continue
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "MetaClaw",
            "version": version,
            "description": "What people and tools read; every route needs the key.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Error": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {
                        "error": {
                            "type": "object",
                            "required": ["message"],
                            "properties": {"message": {"type": "string"}},
                        }
                    },
                }
            },
        },
        "security": [{"key": []}],
    }


def _operation(route: Route) -> dict[str, Any]:
    inner = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    query = [
        {"name": name, "in": "query", "required": False, "schema": {"type": "string"}}
        for name in route.parameters
    ]
    body = {}
    if route.body is not None:
        content = {"application/json": {"schema": route.body.schema}}
        body = {"requestBody": {"required": True, "content": content}}
    return {
        "summary": route.summary,
        "parameters": inner + query,
        **body,
        "responses": {"200": {"description": route.summary}, "default": _ERROR_RESPONSE},
    }
