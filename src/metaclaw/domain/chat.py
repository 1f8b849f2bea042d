"""Requests, answers and the deltas of a streamed answer, independent of any wire.

Every wire parses into these types and renders from them. Fields that these types do not name are
kept in `extra`."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field
from enum import StrEnum
from operator import add
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""Any JSON value."""

_NOTHING: Mapping[str, Json] = {}


class Wire(StrEnum):
    """The protocols agents speak."""

    CHAT = "chat"
    RESPONSES = "responses"
    MESSAGES = "messages"
    GEMINI = "gemini"


class Role(StrEnum):
    """The author of a message. Developer messages are system messages."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class Text:
    text: str
    extra: Mapping[str, Json] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True)
class Image:
    """A picture: a URL (https or data:)."""

    url: str
    detail: str | None = None
    extra: Mapping[str, Json] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A model's thinking: visible text, and the provider's signature or encrypted content, which is
    passed on unchanged.
    """

    text: str
    signature: str | None = None
    redacted: bool = False
    extra: Mapping[str, Json] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's request to run a tool. `arguments` is the JSON text as the model wrote it, never
    re-serialised.
    """

    id: str
    name: str
    arguments: str
    extra: Mapping[str, Json] = field(default_factory=lambda: _NOTHING)

    @property
    def fields(self) -> dict[str, Json]:
        """The arguments by name; empty if they are no object."""
        try:
            found = json.loads(self.arguments)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one tool call."""

    call_id: str
    parts: "tuple[Text | Image | Opaque, ...]"
    is_error: bool = False
    extra: Mapping[str, Json] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True)
class Opaque:
    """A part of a kind that only one wire has (audio, file, search result), kept unchanged with the
    name of its wire.
    """

    wire: Wire
    value: Json


Part: TypeAlias = Text | Image | Reasoning | ToolCall | ToolResult | Opaque


def text_of(parts: Iterable[Part]) -> str:
    """The text parts, joined by newlines."""
    return "\n".join(part.text for part in parts if isinstance(part, Text))


@dataclass(frozen=True, slots=True)
class Message:
    """One entry of a conversation. `role` is a Role if it is a known one, else the wire's own
    word.
    """

    role: Role | str
    parts: tuple[Part, ...]
    name: str | None = None
    extra: Mapping[str, Json] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call. A tool that only one wire has (search, grammar) is an
    Opaque.
    """

    name: str
    description: str | None
    parameters: Mapping[str, Json]
    strict: bool | None = None
    extra: Mapping[str, Json] = field(default_factory=lambda: _NOTHING)


class ToolMode(StrEnum):
    """Whether the model may, must or must not call tools."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The caller's choice: a mode, or one named tool (then mode is REQUIRED)."""

    mode: ToolMode
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling options. None means that the caller did not set the option."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    n: int = 1


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A whole request. `extra` holds the top-level fields of its wire that have no attribute
    here.
    """

    wire: Wire
    model: str
    messages: tuple[Message, ...]
    tools: tuple[Tool | Opaque, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    sampling: Sampling = Sampling()
    stream: bool = False
    include_usage: bool = False
    reasoning_effort: str | None = None
    json_schema: Mapping[str, Json] | None = None
    extra: Mapping[str, Json] = field(default_factory=lambda: _NOTHING)


def own_request(
    system: str, user: str, sampling: Sampling, json_schema: Mapping[str, Json]
) -> ChatRequest:
    """A request that the program itself sends to a model: instructions, a question, and the schema
    of the answer.
    """
    messages = (Message(Role.SYSTEM, (Text(system),)), Message(Role.USER, (Text(user),)))
    return ChatRequest(Wire.CHAT, "", messages, sampling=sampling, json_schema=json_schema)


def object_schema(properties: Mapping[str, Json]) -> dict[str, Json]:
    """The schema of a JSON object that has all of these properties and no others."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [*properties],
        "additionalProperties": False,
    }


def strict_schema(name: str, properties: Mapping[str, Json]) -> dict[str, Json]:
    """The schema of an answer, as providers take it."""
    return {"name": name, "strict": True, "schema": object_schema(properties)}


class Finish(StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the provider counted them. `input_tokens` includes the cached ones."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(*map(add, astuple(self), astuple(other)))


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """The exact token ids of prompt and answer, and the natural log-probability of each token of
    the answer at temperature 1.
    """

    prompt_ids: tuple[int, ...]
    sampled_ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.sampled_ids) != len(self.logprobs):
            raise ValueError(
                f"{len(self.sampled_ids)} sampled tokens but {len(self.logprobs)} log-probabilities"
            )
        if not all(math.isfinite(value) and value <= 0.0 for value in self.logprobs):
            raise ValueError("a log-probability is not a finite number at or below zero")


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One sampled token as text, for callers that asked for log-probabilities."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer. `parts` are Text, Reasoning, ToolCall and Opaque, in the order in which the
    model wrote them.
    """

    id: str
    model: str
    parts: tuple[Part, ...]
    finish: Finish | None
    usage: Usage | None = None
    tokens: SampledTokens | None = None
    stop_sequence: str | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    extra: Mapping[str, Json] = field(default_factory=lambda: _NOTHING)


# A streamed answer arrives as deltas in this order: Begin, the deltas of any number of parts (those
# of one part are contiguous or have the same `index`), End.


@dataclass(frozen=True, slots=True)
class Begin:
    id: str
    model: str
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text. `logprobs` only if the caller asked for them and the model gives them."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More thinking; the signature comes with the last piece."""

    text: str
    signature: str | None = None
    redacted: bool = False


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The beginning of tool call number `index`, or more of its arguments: then `id` and `name` are
    None.
    """

    index: int
    id: str | None
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class OpaqueDelta:
    """A whole part of a kind that only one wire has."""

    part: Opaque


@dataclass(frozen=True, slots=True)
class End:
    """The answer is whole. `tokens` is None if the model does not report token ids and
    log-probabilities.
    """

    finish: Finish
    usage: Usage | None = None
    stop_sequence: str | None = None
    tokens: SampledTokens | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The provider reported an error in the middle of an answer."""

    message: str
    code: str = "upstream_error"


Delta: TypeAlias = Begin | TextDelta | ReasoningDelta | ToolCallDelta | OpaqueDelta | End | Failed
