"""The built-in agents' line to a model: OpenAI chat completions through the proxy, asked again a few times where that may help."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from metaclaw.bench.agent.port import Served
from metaclaw.domain.chat import ChatRequest, Completion, Message, Sampling, Tool, ToolChoice, ToolMode, Wire
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.errors import ConfigError, UpstreamError
from metaclaw.upstream import Limits, Timeouts, moves_on
from metaclaw.upstream.connection import Answer
from metaclaw.upstream.dial import read_address
from metaclaw.upstream.pool import Pool
from metaclaw.wires import encode_json, read_answer, wire_format

_SENDABLE: Final = re.compile(r"[\x21-\x7e]+")
_MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024
_MAX_PAUSE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a model is asked, how, and for whom. `tries` counts the first one; the pause doubles from one to the next."""

    base_url: str
    api_key: str
    model: str
    sampling: Sampling = field(default_factory=Sampling)
    tries: int = 4
    pause_s: float = 1.0
    user: str | None = None


class Chat:
    """A model behind an endpoint. Connections are kept until `aclose`."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Raises ConfigError for an address or a key that cannot be used."""
        if not _SENDABLE.fullmatch(endpoint.api_key):
            raise ConfigError("the api key is empty or has characters that cannot be sent in a header")
        self.endpoint = endpoint
        self._address = read_address(endpoint.base_url)
        self._target = urlsplit(endpoint.base_url).path.rstrip("/") or "/v1"
        if self._address.is_absolute_form:
            self._target = f"http://{self._address.authority}{self._target}"
        self._pool: Pool | None = None

    def request(self, messages: Sequence[Message], tools: Sequence[Tool], *, may_call: bool = True) -> ChatRequest:
        """A request as it would be sent. Without leave to call, the tools are told of all the same: the prompt begins as ever."""
        choice = ToolChoice(ToolMode.NONE) if tools and not may_call else None
        model, sampling = self.endpoint.model, self.endpoint.sampling
        return ChatRequest(Wire.CHAT, model, tuple(messages), tuple(tools), choice, sampling=sampling)

    async def complete(self, request: ChatRequest, session: SessionId, *, is_last: bool) -> tuple[Completion, Served | None]:
        """The answer, and what the proxy says of it. `is_last` ends the session. Raises UpstreamError when every try failed."""
        body = encode_json(wire_format(Wire.CHAT).render_request(request))
        head = self._head(session, len(body), is_last=is_last)
        pause_s = self.endpoint.pause_s
        for left in reversed(range(self.endpoint.tries)):
            try:
                return await self._ask(head, body)
            except UpstreamError as error:
                if not left or not (error.retryable or moves_on(error.status)):
                    raise
                after_s = error.after_s if isinstance(error, _RefusedError) else None
            await asyncio.sleep(min(after_s if after_s is not None else pause_s, _MAX_PAUSE_S))
            pause_s *= 2
        raise UpstreamError("no try was left to ask the model: give the endpoint at least one")

    async def aclose(self) -> None:
        """Close every connection."""
        if self._pool is not None:
            await self._pool.aclose()
            self._pool = None

    def _head(self, session: SessionId, length: int, *, is_last: bool) -> bytes:
        if not _SENDABLE.fullmatch(session):
            raise ConfigError(
                f"the session id {session!r} has characters that cannot be sent in a header: rename the day's session"
            )
        fields = {
            "Host": self._address.authority,
            "Authorization": f"Bearer {self.endpoint.api_key}",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "Content-Length": str(length),
            "X-Session-Id": session,
            "X-Turn-Type": "main",
        }
        if self.endpoint.user is not None:
            fields["X-User-Id"] = self.endpoint.user
        if is_last:
            fields["X-Session-Done"] = "true"
        lines = [f"POST {self._target}/chat/completions HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        return "\r\n".join((*lines, "", "")).encode("ascii")

    async def _ask(self, head: bytes, body: bytes) -> tuple[Completion, Served | None]:
        if self._pool is None:
            peer = f"the model at {self._address.authority}"
            self._pool = Pool(peer, self._address, Timeouts(), Limits(connections=8, queue_s=60.0))
        reply = await self._pool.request("POST", head, body)
        try:
            answer = await _gather(reply)
        finally:
            await reply.aclose()
        named = {name.lower(): value for name, value in reply.headers}
        if reply.status >= 400:
            message, code = wire_format(Wire.CHAT).parse_error(reply.status, answer)
            raise _RefusedError(f"status {reply.status}: {message}", reply.status, code, named.get("retry-after", ""))
        return read_answer(Wire.CHAT, named.get("content-type", "").startswith("text/event-stream"), answer), _served(named)


class _RefusedError(UpstreamError):
    """There was an answer, and it was a refusal; `after_s` is when to ask again, where it says so in seconds."""

    def __init__(self, message: str, status: int, code: str, retry_after: str) -> None:
        super().__init__(message, status=status, code=code)
        self.after_s = float(retry_after) if retry_after.isdecimal() else None


async def _gather(reply: Answer) -> bytes:
    answer = bytearray()
    async for chunk in reply.chunks():
        answer += chunk
        if len(answer) > _MAX_ANSWER_BYTES:
            raise UpstreamError(f"the model sent more than {_MAX_ANSWER_BYTES} bytes in one answer")
    return bytes(answer)


def _served(headers: dict[str, str]) -> Served | None:
    turn, generation, policy = (headers.get(f"x-metaclaw-{name}", "") for name in ("turn", "generation", "policy"))
    if not (turn and generation.isdecimal() and policy.isdecimal()):
        return None
    skills = tuple(SkillName(name) for name in headers.get("x-metaclaw-skills", "").split(",") if name)
    return Served(TurnId(turn), int(generation), int(policy), skills)
