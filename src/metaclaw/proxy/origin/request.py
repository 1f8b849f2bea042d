"""One request as the rules about clients look at it."""

from collections.abc import Mapping, Sequence
from typing import Final

from metaclaw.domain.chat import Json, Wire
from metaclaw.proxy.origin.conversation import Conversation, DigestCache

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
        self.conversation = Conversation(wire, body, cache, earlier)
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
