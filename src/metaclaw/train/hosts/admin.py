"""The few calls by which a server that serves weights is managed: small, seldom, and beside the path of requests."""

import json
import urllib.error
import urllib.request
from dataclasses import dataclass

from metaclaw.domain.chat import Json
from metaclaw.errors import BackendDownError, TrainingError
from metaclaw.train.backends.aside import aside

_MAX_ANSWER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Said:
    """What a server answered."""

    status: int
    text: str


class Admin:
    """A server's management, by its base URL with or without `/v1`. Its key is held here and shows nowhere."""

    def __init__(self, base_url: str, api_key: str | None = None, *, timeout_s: float = 120.0) -> None:
        self.url = base_url.rstrip("/").removesuffix("/v1")
        self._timeout_s = timeout_s
        self._headers = {"content-type": "application/json", "accept": "application/json"}
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"

    async def post(self, path: str, body: Json) -> Said:
        """Raises BackendDownError if no answer came, TrainingError if it cannot be asked at all."""
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), self._headers, method="POST")

        def call() -> Said:
            try:
                with urllib.request.urlopen(request, timeout=self._timeout_s) as reply:
                    return Said(reply.status, reply.read(_MAX_ANSWER_BYTES).decode(errors="replace"))
            except urllib.error.HTTPError as refusal:
                with refusal:
                    return Said(refusal.code, refusal.read(_MAX_ANSWER_BYTES).decode(errors="replace"))

        try:
            return await aside(call, self._timeout_s)
        except TimeoutError as error:
            raise BackendDownError(f"{self.url} did not answer within {self._timeout_s:g} s") from error
        except OSError as error:
            raise BackendDownError(f"{self.url} cannot be asked: {error}") from error
        except ValueError as error:
            raise TrainingError(f"{self.url} cannot be asked: {error}") from error
