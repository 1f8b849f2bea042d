"""A client: how its requests are recognised, and what only it does; and a request as these rules look at it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from metaclaw.domain.chat import Json, Wire
from metaclaw.proxy.sessions.conversation import DigestCache, MessageChain

_SYSTEM_HEAD_CHARS: Final = 4000


class Request:
    """Headers (lower case), body and conversation, with the few readings that most rules need."""

    __slots__ = ("body", "conversation", "has_tools", "headers", "prompt_parts", "system", "wire")

    def __init__(
        self, wire: Wire, headers: Mapping[str, str], body: Mapping[str, Json], cache: DigestCache, earlier: bytes | None = None
    ) -> None:
        self.wire = wire
        self.headers = headers
        self.body = body
        self.conversation = MessageChain(wire, body, cache, earlier)
        self.has_tools = _has_tools(body, self.conversation.items)
        texts = self.conversation.system
        self.system = (
            "\n".join(texts[:4])[:_SYSTEM_HEAD_CHARS] if len(texts) > 1 else (texts[0][:_SYSTEM_HEAD_CHARS] if texts else "")
        )
        users = self.conversation.users
        self.prompt_parts = self.conversation.texts_at(users[-1]) if users else []

    @property
    def prompt(self) -> str:
        """The last text in a user's place, whatever follows it."""
        parts = self.prompt_parts
        return parts[0] if len(parts) == 1 else "\n".join(parts)

    @property
    def last_parts(self) -> list[str]:
        """The texts of the user message that ends the request; none if it ends with a tool's output or an answer."""
        spoken = self.conversation
        return self.prompt_parts if spoken.users and spoken.users[-1] == len(spoken.digests) - 1 else []

    @property
    def last_text(self) -> str:
        """The texts of the user message that ends the request, as one."""
        return self.prompt if self.last_parts else ""

    def header(self, name: str) -> str:
        """A header's value, or an empty string."""
        return self.headers.get(name, "")

    def text(self, *path: str) -> str:
        """A string in the body, or an empty string."""
        value: Json | Mapping[str, Json] = self.body
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value if isinstance(value, str) else ""

    @property
    def answer_limit(self) -> int | None:
        """How many tokens the caller allows for the answer, where it says so."""
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            value = self.body.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        return None


def _has_tools(body: Mapping[str, Json], items: Sequence[Json]) -> bool:
    """Whether the model is offered any tool, wherever this client puts them."""
    if body.get("tools") or body.get("functions"):
        return True
    first = items[0] if items else None
    return isinstance(first, dict) and first.get("type") == "additional_tools"


@dataclass(frozen=True, slots=True)
class Helper:
    """A sub-agent that shares its session identifier with the agent that started it; `of` is the helper it works for, if any."""

    id: str
    of: str | None = None


def _nothing(_: Request) -> None:
    return None


def _no(_: Request | str) -> bool:
    return False


def _unchanged(text: str) -> str:
    return text


@dataclass(frozen=True, slots=True)
class AgentClient:
    """A family of clients.

    It is recognised by `headers` or by `system`, a test of the system text. `headers` are alternatives: of one of them every named
    header must be there and begin with one of the given strings; an empty string allows any value.

    `key` is the session identifier it sends in a way of its own, `text_key` one that is only written in the conversation. `helper`
    identifies a sub-agent, `is_subagent` recognises one without an identifier. `side` names the housekeeping that a request does,
    or is None for work. `words` removes what this client adds to a person's words, and returns "" if nothing is left.
    """

    name: str
    headers: tuple[Mapping[str, tuple[str, ...]], ...] = ()
    system: Callable[[str], bool] = _no
    key: Callable[[Request], str | None] = _nothing
    text_key: Callable[[Request], str | None] = _nothing
    helper: Callable[[Request], Helper | None] = _nothing
    is_subagent: Callable[[Request], bool] = _no
    side: Callable[[Request], str | None] = _nothing
    words: Callable[[str], str] = _unchanged
