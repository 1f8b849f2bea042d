"""What a simulated model is: a mind that is shown a prompt and says something. It never is anything else than simulated."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from metaclaw.domain.chat import Json
from metaclaw.ports import Purpose

MODEL: Final = "simulated"
"""The only name a simulated model goes by."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a prompt. `calls` are the names of the tools an earlier answer called."""

    role: str
    text: str
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model is shown. `purpose` is None for an agent's own request."""

    messages: tuple[Message, ...]
    tools: frozenset[str] = frozenset()
    purpose: Purpose | None = None

    @property
    def text(self) -> str:
        """Every word of it, in order."""
        return "\n".join(message.text for message in self.messages)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool."""

    tool: str
    arguments: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Said:
    """An answer: words, and tools to call."""

    text: str = ""
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True)
class Broken:
    """No answer: the provider fails with this status."""

    status: int


Thought: TypeAlias = Said | Broken


class Mind(Protocol):
    """What answers. The same prompt gets the same answer, whatever was asked before: only then can a run be repeated."""

    def answer(self, prompt: Prompt) -> Thought:
        """What it says to this."""
