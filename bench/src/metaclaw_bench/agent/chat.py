"""The built-in agents' connection to a model: OpenAI chat completions through the proxy, with
retries.
"""

import asyncio
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from metaclaw.plugin import ConfigError
from metaclaw_bench.http_client import ModelError, Response, request
from metaclaw_bench.json_types import Json

_SENDABLE: Final = re.compile(r"[\x21-\x7e]+")
_MAX_PAUSE_S: Final = 30.0
# Token estimates, rather too many than too few; each message and tool adds what a prompt template
# puts around it.
_ASCII_CHARS_PER_TOKEN: Final = 3.4
_OTHER_CHARS_PER_TOKEN: Final = 1.3
_MESSAGE_TOKENS: Final = 4
_TOOL_TOKENS: Final = 8

Message: TypeAlias = Mapping[str, Json]
"""One message in OpenAI's chat format."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one or more completions."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
        )


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool the model may call."""

    name: str
    description: str
    parameters: Mapping[str, Json]

    def as_json(self) -> Json:
        """As it stands in a request."""
        described: dict[str, Json] = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": described}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call in a completion; `arguments` is JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Served:
    """What the proxy says of one response: the turn it was recorded as, and what was in force."""

    turn: str
    generation: int
    policy_version: int
    skills: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's answer. `usage` is None where tokens were not counted, `served` where no proxy
    answered.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    served: Served | None = None

    def as_message(self, *, with_calls: bool = True) -> Message:
        """The message to send back in the next request."""
        message: dict[str, Json] = {"role": "assistant", "content": self.text}
        if with_calls and self.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.calls
            ]
        return message


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a model is asked, how, and for whom. `tries` counts the first one; the pause doubles
    from one to the next.
    """

    base_url: str
    api_key: str
    model: str
    max_tokens: int | None = None
    tries: int = 4
    pause_s: float = 1.0
    user: str | None = None


class Chat:
    """A model behind an endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Raises ConfigError for an address or a key that cannot be used."""
        if not _SENDABLE.fullmatch(endpoint.api_key):
            raise ConfigError(
                "the api key is empty or has characters that cannot be sent in a header"
            )
        if not endpoint.base_url.startswith(("http://", "https://")):
            raise ConfigError(f"{endpoint.base_url} is not an address: write http://… or https://…")
        self.endpoint = endpoint

    def body(
        self, messages: Sequence[Message], tools: Sequence[Tool], *, may_call: bool = True
    ) -> dict[str, Json]:
        """A request's body. Without leave to call, tools are still listed, so that the prompt
        begins as before.
        """
        body: dict[str, Json] = {
            "model": self.endpoint.model,
            "messages": [dict(message) for message in messages],
        }
        if tools:
            body["tools"] = [tool.as_json() for tool in tools]
            if not may_call:
                body["tool_choice"] = "none"
        if self.endpoint.max_tokens is not None:
            body["max_tokens"] = self.endpoint.max_tokens
        return body

    async def complete(
        self, body: Mapping[str, Json], session: str, *, is_last: bool = False
    ) -> Completion:
        """The answer. `is_last` ends the session. Raises ModelError when every try failed."""
        headers = self._headers(session, is_last=is_last)
        content = json.dumps(body).encode()
        pause_s = self.endpoint.pause_s
        for left in reversed(range(max(1, self.endpoint.tries))):
            try:
                return await self._ask(headers, content)
            except ModelError as error:
                if not left or not error.retryable:
                    raise
                after_s = error.after_s
            await asyncio.sleep(min(after_s if after_s is not None else pause_s, _MAX_PAUSE_S))
            pause_s *= 2
        raise AssertionError("unreachable")

    def _headers(self, session: str, *, is_last: bool) -> dict[str, str]:
        if not _SENDABLE.fullmatch(session):
            raise ConfigError(
                f"the session id {session!r} has characters that cannot be sent in a header: rename"
                " the day's session"
            )
        headers = {
            "Authorization": f"Bearer {self.endpoint.api_key}",
            "Accept": "application/json",
            "Content-Type": "application/json",
            "X-Session-Id": session,
            "X-Turn-Type": "main",
        }
        if self.endpoint.user is not None:
            headers["X-User-Id"] = self.endpoint.user
        if is_last:
            headers["X-Session-Done"] = "true"
        return headers

    async def _ask(self, headers: Mapping[str, str], content: bytes) -> Completion:
        url = f"{self.endpoint.base_url.rstrip('/')}/chat/completions"
        try:
            response = await request("POST", url, headers, content)
        except OSError as error:
            raise ModelError(
                f"the model at {self.endpoint.base_url} does not answer ({error})"
            ) from error
        if response.status >= 400:
            after = response.headers.get("retry-after", "")
            after_s = float(after) if after.isdecimal() else None
            raise ModelError(
                f"status {response.status}: {_message(response)}",
                status=response.status,
                after_s=after_s,
            )
        return read_completion(response)


def read_completion(response: Response) -> Completion:
    """The completion in a response. Raises ModelError where there is none."""
    try:
        value = json.loads(response.body)
        message = value["choices"][0]["message"]
        calls = tuple(
            ToolCall(
                str(call["id"]), str(call["function"]["name"]), str(call["function"]["arguments"])
            )
            for call in message.get("tool_calls") or ()
        )
        text = message.get("content") or ""
        usage = value.get("usage")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise ModelError(
            f"the answer is no chat completion: {response.body[:200].decode('utf-8', 'replace')}"
        ) from error
    return Completion(
        text if isinstance(text, str) else "", calls, _usage(usage), _served(response.headers)
    )


def estimate_tokens(body: Mapping[str, Json]) -> int:
    """About how many tokens a request takes, without a tokenizer."""
    messages, tools = body.get("messages"), body.get("tools")
    listed = (
        messages if isinstance(messages, list) else [],
        tools if isinstance(tools, list) else [],
    )
    texts = [_content(one) for one in listed[0]] + [
        json.dumps(one, ensure_ascii=False) for one in listed[1]
    ]
    return max(
        1,
        math.ceil(
            sum(map(_tokens, texts))
            + _MESSAGE_TOKENS * len(listed[0])
            + _TOOL_TOKENS * len(listed[1])
        ),
    )


def _content(message: Json) -> str:
    if not isinstance(message, dict):
        return ""
    calls = message.get("tool_calls")
    return str(message.get("content") or "") + (
        "" if calls is None else json.dumps(calls, ensure_ascii=False)
    )


def _tokens(text: str) -> float:
    others = 0 if text.isascii() else sum(character > "\x7f" for character in text)
    return (len(text) - others) / _ASCII_CHARS_PER_TOKEN + others / _OTHER_CHARS_PER_TOKEN


def _message(response: Response) -> str:
    try:
        error = json.loads(response.body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return response.body[:300].decode("utf-8", "replace")


def _usage(value: Json) -> Usage | None:
    if not isinstance(value, dict):
        return None
    tokens_in, tokens_out = value.get("prompt_tokens"), value.get("completion_tokens")
    if not isinstance(tokens_in, int) or not isinstance(tokens_out, int):
        return None
    details = value.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(tokens_in, tokens_out, cached if isinstance(cached, int) else 0)


def _served(headers: Mapping[str, str]) -> Served | None:
    turn, generation, policy = (
        headers.get(f"x-metaclaw-{name}", "") for name in ("turn", "generation", "policy")
    )
    if not (turn and generation.isdecimal() and policy.isdecimal()):
        return None
    skills = tuple(name for name in headers.get("x-metaclaw-skills", "").split(",") if name)
    return Served(turn, int(generation), int(policy), skills)
