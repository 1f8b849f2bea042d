"""A table of routes for the program's own API: patterns to functions, answers as JSON."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qsl, unquote

from metaclaw.domain.chat import Json
from metaclaw.errors import MetaClawError, StoreError
from metaclaw.wires import encode_json

Scope = Mapping[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class ApiError(MetaClawError):
    """A request to our own API that cannot be served; carries the status to answer with."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to the API: values from the path, and the query."""

    path: Mapping[str, str]
    query: Mapping[str, str]

    def number(self, name: str, default: int, most: int = 2**53) -> int:
        """A whole number from the query, from the smaller of 1 and the default up to `most`."""
        text, least = self.query.get(name, str(default)), min(1, default)
        if not (text.isascii() and text.isdigit() and len(text) < 17 and least <= int(text) <= most):
            raise ApiError(f"{name} must be a whole number from {least} to {most}, not {text!r}")
        return int(text)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a route gives back; anything else it returns is a 200 with that value as JSON."""

    status: int
    body: bytes
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class Route:
    """One entry of the table. `{name}` in the path takes one segment."""

    method: str
    path: str
    serve: Callable[[Ask], Awaitable[object]]
    summary: str
    parameters: tuple[str, ...] = ()


class Router:
    """Finds the route of a request and sends what it gives back."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = [(re.compile(_pattern(route.path)), route) for route in routes]

    async def __call__(self, scope: Scope, send: Send) -> None:
        try:
            answer = await self._serve(scope["method"], scope["path"], scope.get("query_string", b""))
        except ApiError as error:
            answer = _error(error.status, str(error))
        except StoreError as error:
            answer = _error(503, f"the store cannot be read now: {error}")
        body = b"" if scope["method"] == "HEAD" else answer.body
        headers = [(b"content-type", answer.content_type.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _serve(self, method: str, path: str, query: bytes) -> Answer:
        matching = [(match, route) for pattern, route in self._routes if (match := pattern.fullmatch(path))]
        if not matching:
            raise ApiError(f"nothing is served at {path}", 404)
        for match, route in matching:
            if route.method == method or (method == "HEAD" and route.method == "GET"):
                values = {name: unquote(value) for name, value in match.groupdict().items()}
                result = await route.serve(Ask(values, dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))))
                return result if isinstance(result, Answer) else Answer(200, encode_json(cast(Json, result)))
        raise ApiError(f"{path} takes {' or '.join(sorted({route.method for _, route in matching}))}, not {method}", 405)


def _pattern(path: str) -> str:
    return re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(path))


def _error(status: int, message: str) -> Answer:
    return Answer(status, encode_json({"error": {"message": message}}))
