"""Conversion of a request of any wire to the turns of the model's chat template: system, user and assistant."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from metaclaw.domain.chat import (
    ChatRequest,
    Image,
    Message,
    Opaque,
    Reasoning,
    Role,
    Sampling,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolMode,
    ToolResult,
)
from metaclaw.domain.policy import BASE_POLICY
from metaclaw.engine.frames import Generate
from metaclaw.engine.tool_calls import CLOSE, OPEN, describe_tools, write_call, write_result
from metaclaw.errors import WireError

if TYPE_CHECKING:
    from metaclaw.engine.vocabulary import Vocabulary


Turn = tuple[str, str]
"""A role and its text."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The turns that the template renders, the required beginning of the answer, and the tools it may call."""

    turns: tuple[Turn, ...]
    beginning: str
    tool_names: frozenset[str]


def build_prompt(request: ChatRequest) -> Prompt:
    """The request as text. Raises WireError for content that is not text."""
    if not request.messages:
        raise WireError("messages must not be empty", param="messages")
    tools = _offered(request)
    turns = [turn for message in request.messages for turn in _turns(message)]
    instructions = [describe_tools(tools)] if tools else []
    if request.json_schema is not None:
        schema = msgspec.json.encode(request.json_schema).decode()
        instructions.append(f"Answer only with JSON that matches this schema: {schema}")
    return Prompt(
        turns=tuple(_merge(_instruct(turns, instructions))),
        beginning=_beginning(request.tool_choice, tools),
        tool_names=frozenset(tool.name for tool in tools),
    )


def _offered(request: ChatRequest) -> list[Tool]:
    # Tools that only a provider can run are not offered.
    choice = request.tool_choice
    if choice is not None and choice.mode is ToolMode.NONE:
        return []
    tools = [tool for tool in request.tools if isinstance(tool, Tool)]
    if choice is not None and choice.name is not None and choice.name not in {tool.name for tool in tools}:
        raise WireError(f"tool_choice names {choice.name!r}, which is not among the tools", param="tool_choice")
    return tools


def _beginning(choice: ToolChoice | None, tools: Sequence[Tool]) -> str:
    # A required call is forced: the answer begins with its opening tag.
    if choice is None or choice.mode is not ToolMode.REQUIRED or not tools:
        return ""
    if choice.name is None:
        return f'{OPEN}{{"name": "'
    return f'{OPEN}{{"name": {msgspec.json.encode(choice.name).decode()}, "arguments": '


def _instruct(turns: list[Turn], instructions: list[str]) -> list[Turn]:
    if not instructions:
        return turns
    text = "\n\n".join(instructions)
    if turns and turns[0][0] == Role.SYSTEM:
        return [(Role.SYSTEM, f"{turns[0][1]}\n\n{text}"), *turns[1:]]
    return [(Role.SYSTEM, text), *turns]


def _turns(message: Message) -> Iterator[Turn]:
    if message.role not in (Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL):
        raise WireError(f"the embedded model knows no role {message.role!r}", param="messages")
    # The template has no tool role: results are shown as user turns.
    role = Role.USER if message.role == Role.TOOL else Role(message.role)
    yield role, "".join(_write(part) for part in message.parts)


def _write(part: Text | Image | Reasoning | ToolCall | ToolResult | Opaque) -> str:
    match part:
        case Text():
            return part.text
        case Reasoning():
            return ""
        case ToolCall():
            return write_call(part)
        case ToolResult():
            return write_result("".join(_write(inner) for inner in part.parts))
        case Image():
            raise WireError("the embedded model cannot see images; it reads text only", param="messages")
        case Opaque():
            kind = part.value.get("type", "unknown") if isinstance(part.value, dict) else "unknown"
            raise WireError(f"the embedded model reads text only and cannot take a part of type {kind!r}", param="messages")


def _merge(turns: Sequence[Turn]) -> Iterator[Turn]:
    """Join neighbouring turns of one role: results of parallel calls are one turn for the model."""
    held: Turn | None = None
    for role, text in turns:
        if held is not None and held[0] == role == Role.USER and _is_result(held[1]) and _is_result(text):
            held = (role, f"{held[1]}\n{text}")
            continue
        if held is not None:
            yield held
        held = (role, text)
    if held is not None:
        yield held


def _is_result(text: str) -> bool:
    return text.startswith("<tool_response>")


_RANGES: Final = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "top_logprobs": (0, 20),
}
# Defaults for a small model: at temperature 1 it rambles, near 0 it repeats itself.
_TEMPERATURE: Final = 0.7
_TOP_P: Final = 0.9
_SEED_BITS: Final = (1 << 63) - 1


def make_message(id: int, request: ChatRequest, prompt: Prompt, version: int = BASE_POLICY) -> Generate:
    """The request for the engine, for one version of the weights. Raises WireError for options that are not supported."""
    options = request.sampling
    _check(options)
    return Generate(
        id=id,
        turns=list(prompt.turns),
        beginning=prompt.beginning,
        version=version,
        max_tokens=options.max_tokens,
        temperature=_TEMPERATURE if options.temperature is None else options.temperature,
        top_p=_default_top_p(options) if options.top_p is None else options.top_p,
        top_k=max(options.top_k or 0, 0),
        frequency_penalty=options.frequency_penalty or 0.0,
        presence_penalty=options.presence_penalty or 0.0,
        seed=None if options.seed is None else options.seed & _SEED_BITS,
        stop=[*options.stop, *_last_call_stop(request, prompt)],
        top_logprobs=(options.top_logprobs or 0) if options.logprobs else None,
    )


def _default_top_p(options: Sampling) -> float:
    return _TOP_P if options.temperature is None else 1.0


def _check(options: Sampling) -> None:
    if options.n != 1:
        raise WireError(f"the embedded model gives one answer per request; n is {options.n}", param="n")
    if options.max_tokens is not None and options.max_tokens < 1:
        raise WireError(f"max_tokens must be at least 1, not {options.max_tokens}", param="max_tokens")
    for name, (low, high) in _RANGES.items():
        value: float | None = getattr(options, name)
        if value is not None and not low <= value <= high:
            raise WireError(f"{name} must be between {low} and {high}, not {value}", param=name)


def _last_call_stop(request: ChatRequest, prompt: Prompt) -> tuple[str, ...]:
    # If only one call is allowed, its closing tag ends the answer.
    return (CLOSE,) if prompt.tool_names and request.parallel_tool_calls is False else ()


class FolderTokeniser:
    """The tokeniser of a model folder (ports.Tokeniser): token for token the prompt of a request that is served.

    The folder is read when it is first needed: until then it need not be there, and nothing heavy is loaded.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def prompt(self, request: ChatRequest) -> tuple[int, ...]:
        """The tokens a request becomes. Raises WireError for what cannot be said in text, EngineError for a folder without one."""
        prompt = build_prompt(request)
        return tuple(self._vocabulary.render(prompt.turns, prompt.beginning))

    def encode(self, text: str) -> tuple[int, ...]:
        """The tokens of an answer, up to and without its end."""
        return tuple(self._vocabulary.encode(text))

    @property
    def end(self) -> int:
        """The token that ends an answer. Raises EngineError where the folder names none."""
        return self._vocabulary.end_id

    def word(self, token: int) -> str:
        """What one token says."""
        return self._vocabulary.decode([token])

    @cached_property
    def _vocabulary(self) -> "Vocabulary":
        from metaclaw.engine.vocabulary import Vocabulary

        return Vocabulary(self._folder)
