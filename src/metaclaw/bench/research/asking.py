"""Asking the model: OpenAI's chat completions over HTTP, from the standard library, one whole answer at a time."""

import http.client
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol
from urllib.parse import urlsplit

from anyio.to_thread import run_sync

from metaclaw.bench.research.prompts import Message
from metaclaw.domain.chat import Json
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.errors import UpstreamError

_TIMEOUT_S: Final = 600.0
_SHOWN_CHARS: Final = 300


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model said, and what the proxy tells of the turn; a model that is asked without a proxy tells nothing."""

    text: str
    turn: TurnId | None = None
    skills: tuple[SkillName, ...] = ()
    tokens_in: int | None = None
    tokens_out: int | None = None


class Model(Protocol):
    """Who is asked."""

    async def ask(self, messages: Sequence[Message], session: SessionId) -> Reply:
        """The answer to a conversation. Raises UpstreamError."""


@dataclass(frozen=True, slots=True)
class HttpModel:
    """A model behind an OpenAI address such as `http://127.0.0.1:30000/v1`."""

    base_url: str
    key: str = field(repr=False)
    model: str
    timeout_s: float = _TIMEOUT_S

    async def ask(self, messages: Sequence[Message], session: SessionId) -> Reply:
        """The answer to a conversation."""
        asked: dict[str, Json] = {
            "model": self.model,
            "messages": [{"role": message.role, "content": message.text} for message in messages],
        }
        return await run_sync(self._ask, json.dumps(asked).encode(), session, abandon_on_cancel=True)

    def _ask(self, body: bytes, session: SessionId) -> Reply:
        parts = urlsplit(self.base_url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "127.0.0.1", parts.port, timeout=self.timeout_s)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}", "X-Session-Id": session}
        try:
            connection.request("POST", f"{parts.path.rstrip('/')}/chat/completions", body, headers)
            with connection.getresponse() as answer:
                return _reply(answer, answer.read())
        except (OSError, http.client.HTTPException) as error:
            raise UpstreamError(f"{self.base_url} does not answer ({error or type(error).__name__})", retryable=True) from error
        finally:
            connection.close()


def _reply(answer: http.client.HTTPResponse, body: bytes) -> Reply:
    if answer.status != 200:
        shown = body[:_SHOWN_CHARS].decode("utf-8", "replace")
        raise UpstreamError(f"the model answered {answer.status}: {shown}", status=answer.status)
    try:
        value = json.loads(body)
        text = value["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UpstreamError("the model's answer is no chat completion") from error
    usage = value.get("usage")
    turn, skills = answer.headers.get("X-Metaclaw-Turn"), answer.headers.get("X-Metaclaw-Skills", "")
    return Reply(
        text if isinstance(text, str) else "",
        None if turn is None else TurnId(turn),
        tuple(SkillName(name) for name in skills.split(",") if name),
        _tokens(usage, "prompt_tokens"),
        _tokens(usage, "completion_tokens"),
    )


def _tokens(usage: object, name: str) -> int | None:
    found = usage.get(name) if isinstance(usage, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) else None
