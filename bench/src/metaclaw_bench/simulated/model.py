"""A simulated model: prompts, answers, and what a person said in a prompt. It is always called
simulated.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol, TypeAlias

from metaclaw_bench.json_types import Json

MODEL: Final = "simulated"
"""The only name a simulated model goes by."""


# What the proxy places, and what OpenClaw adds to a person's words: a date in front, a line about
# the runtime, messages of its own.
_BLOCK: Final = re.compile(
    r"\n{0,2}<house_rules by=\"metaclaw\"[^>\n]*>\n(.*?)\n</house_rules>\n?", re.DOTALL
)
_OWN_CONTEXT: Final = re.compile(
    r"<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>.*?(?:<<<END_OPENCLAW_INTERNAL_CONTEXT>>>\s*|\Z)",
    re.DOTALL,
)
_DATE: Final = re.compile(r"\A\s*\[(?:[A-Z][a-z]{2} )?\d{4}-\d\d-\d\d[^\]\n]{0,40}\]\s*")
_RUNTIME: Final = re.compile(r"\n\nRuntime: agent=[^\n]*")


class Purpose(StrEnum):
    """What the program asks a model for itself, as its header `X-Metaclaw-Purpose` says."""

    LISTEN = "listen"
    CONFIRM = "confirm"
    JUDGE = "judge"
    EVOLVE = "evolve"


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

    @property
    def placed(self) -> str:
        """What the proxy placed in it, and nothing of what the client sent."""
        return "\n".join(
            block for message in self.messages for block in _BLOCK.findall(message.text)
        )


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


class SimulatedModel(Protocol):
    """What answers. The same prompt gets the same answer, whatever was asked before: only then can
    a run be repeated.
    """

    def answer(self, prompt: Prompt) -> Thought:
        """What it says to this."""


def without_placed(text: str) -> str:
    """A message's text as the client sent it, without what the proxy placed in it."""
    return _BLOCK.sub("", text)


def said(message: Message) -> str:
    """A message without what a program added; empty where a program wrote all of it."""
    text = without_placed(message.text)
    return (
        _RUNTIME.sub("", _DATE.sub("", _OWN_CONTEXT.sub("", text))).strip()
        if message.role == "user"
        else text
    )


def last_words(prompt: Prompt) -> tuple[int, str] | None:
    """The position of the person's last message and what they said; None where nobody spoke."""
    spoken = (
        (at, said(one))
        for at, one in reversed(list(enumerate(prompt.messages)))
        if one.role == "user"
    )
    return next(((at, words) for at, words in spoken if words), None)
