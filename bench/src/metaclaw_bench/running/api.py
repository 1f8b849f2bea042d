"""Client for the HTTP API of the proxy under test."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from metaclaw.plugin import MetaClawError
from metaclaw_bench.http_client import request
from metaclaw_bench.json_types import Json

_TIMEOUT_S: Final = 60.0


class ProxyError(MetaClawError):
    """The proxy under test does not run or does not answer; the message says where its log lies."""


@dataclass(frozen=True, slots=True)
class Api:
    """One running proxy's interface."""

    url: str
    key: str = field(repr=False)

    async def get(self, *path: str, **query: str | int) -> dict[str, Json]:
        """What a GET tells, by the words of its path. Raises ProxyError."""
        status, body = await self._ask("GET", _address(path, query))
        if status >= 400:
            raise ProxyError(
                f"the proxy answered {status} to GET {_address(path, query)}: {_message(body)}"
            )
        return body

    async def post(self, *path: str) -> tuple[int, dict[str, Json]]:
        """Status and answer of a POST without a body. Raises ProxyError where there is no
        answer.
        """
        return await self._ask("POST", _address(path, {}))

    async def is_ready(self) -> bool:
        """Whether it can serve."""
        try:
            status, _ = await self._ask("GET", "/readyz")
        except ProxyError:
            return False
        return status == 200

    async def _ask(self, method: str, address: str) -> tuple[int, dict[str, Json]]:
        headers = {"Authorization": f"Bearer {self.key}"}
        try:
            response = await request(
                method,
                f"{self.url}{address}",
                headers,
                b"" if method == "POST" else None,
                timeout_s=_TIMEOUT_S,
            )
            body = json.loads(response.body or b"{}")
        except (OSError, ValueError) as error:
            raise ProxyError(
                f"the proxy at {self.url} does not answer ({error or type(error).__name__}); see"
                " its log"
            ) from error
        return response.status, body if isinstance(body, dict) else {}


def rows(value: Json) -> list[dict[str, Json]]:
    """The objects of a list inside an answer, none where there is no list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def at(value: Json, *path: str) -> Json:
    """The value at a path inside a response, or None."""
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _address(path: tuple[str, ...], query: Mapping[str, str | int]) -> str:
    words = "/".join(quote(word, safe="") for word in path)
    return f"/api/{words}" + (
        "?" + "&".join(f"{name}={quote(str(value))}" for name, value in query.items())
        if query
        else ""
    )


def _message(body: dict[str, Json]) -> str:
    return str(at(body, "error", "message") or at(body, "error") or body)[:400]
