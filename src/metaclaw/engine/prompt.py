"""Convert a request of any wire to turns of the model's chat template, and an answer's text to
words and tool calls.

A template that knows tools writes them as the model was trained to read them. For any other, tools
are text: the system text describes them, a call is `<tool_call>{"name": …, "arguments":
{…}}</tool_call>` and a result is `<tool_response>…</tool_response>`. Calls in answers are found in
every form that the models use: between tags, or as an answer that is only JSON."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, TypeAlias

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
    TextDelta,
    TokenLogprob,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolChoice,
    ToolMode,
    ToolResult,
)
from metaclaw.domain.ids import new_id
from metaclaw.domain.policy import BASE_POLICY
from metaclaw.engine.frames import Generate, OfferedTool, WrittenCall, WrittenTurn
from metaclaw.errors import WireError

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"

Said: TypeAlias = TextDelta | ToolCallDelta


_LIST_MARK: Final = "[TOOL_CALLS]"
_BARE_CALLS: Final = tuple(
    f'{bracket}{{{kind}"name":"'
    for bracket in ("", "[", _LIST_MARK, f"{_LIST_MARK}[")
    for kind in ("", '"type":"function",')
)
"""How an answer begins that is only JSON of calls, without white space."""


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    parameters: msgspec.Raw = msgspec.Raw(b"")


_call_decoder: Final = msgspec.json.Decoder(_Call)
_calls_decoder: Final = msgspec.json.Decoder(list[_Call])


def describe_tools(tools: Sequence[OfferedTool]) -> str:
    """The paragraph of the system text that offers the tools."""
    lines = [
        msgspec.json.encode(
            {
                "name": tool.name,
                "description": tool.description,
                "parameters": msgspec.Raw(tool.parameters.encode()),
            }
        ).decode()
        for tool in tools
    ]
    return "\n".join(
        (
            "You can call these tools, each described by its JSON schema:",
            "<tools>",
            *lines,
            "</tools>",
            (
                "To call one, write its name and arguments as JSON between tool_call tags, and"
                " nothing after the last call:"
            ),
            f'{OPEN}{{"name": "tool name", "arguments": {{"argument": "value"}}}}{CLOSE}',
        )
    )


def write_call(call: WrittenCall) -> str:
    """A call in the textual form."""
    return (
        f'{OPEN}{{"name": {msgspec.json.encode(call.name).decode()}, "arguments":'
        f" {call.arguments or '{}'}}}{CLOSE}"
    )


def write_turns(
    turns: Sequence[WrittenTurn], tools: Sequence[OfferedTool]
) -> Iterator[tuple[str, str]]:
    """Roles and texts for a template that knows no tools: results are the user's, and those of
    parallel calls are one turn.
    """
    if tools:
        turns = _instruct(turns, describe_tools(tools))
    for is_result, group in groupby(turns, lambda turn: turn.role == Role.TOOL):
        if is_result:
            results = (f"<tool_response>{turn.content}</tool_response>" for turn in group)
            yield Role.USER, "\n".join(results)
        else:
            for turn in group:
                yield turn.role, turn.content + "".join(map(write_call, turn.calls))


class CallParser:
    """Splits a growing answer into words and tool calls. A call of a tool that was not offered
    stays text.

    White space around calls is dropped, so that an answer that consists of calls has no words.
    """

    def __init__(self, names: Collection[str], beginning: str = "") -> None:
        self._names = names
        self._held = beginning
        self._blank = ""
        self._is_after_call = False
        self._may_be_bare = not beginning
        self._logprobs: list[TokenLogprob] = []
        self.calls = 0
        """Tool calls found so far."""

    def push(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> list[Said]:
        """Add text; return the words and calls that are certain now."""
        self._held += text
        self._logprobs += logprobs
        if self._may_be_bare and _begins_bare_call(self._held):
            return []
        self._may_be_bare = False
        deltas: list[Said] = []
        while (start := self._held.find(OPEN)) >= 0 and (end := self._held.find(CLOSE, start)) >= 0:
            end += len(CLOSE)
            deltas += self._words(self._held[:start]) + self._read(self._held[start:end])
            self._held = self._held[end:]
        certain = start if start >= 0 else len(self._held) - _held_back(self._held, (OPEN,))
        deltas += self._words(self._held[:certain])
        self._held = self._held[certain:]
        return deltas

    def flush(self) -> list[Said]:
        """The remaining words and calls at the end; the last call may lack its closing tag."""
        held, self._held = self._held, ""
        is_call = held.startswith(OPEN) or self._may_be_bare
        deltas = self._read(held) if is_call else self._words(held)
        if self._blank and not self._is_after_call:
            deltas.append(self._say(self._blank))
        return deltas

    def _read(self, written: str) -> list[Said]:
        calls = _decode(written.removeprefix(OPEN).removesuffix(CLOSE))
        if not calls or any(call.name not in self._names for call in calls):
            return self._words(written)
        deltas: list[Said] = []
        for call in calls:
            deltas.append(
                ToolCallDelta(
                    self.calls,
                    new_id("call_"),
                    call.name,
                    bytes(bytes(call.parameters) or call.arguments).decode(),
                )
            )
            self.calls += 1
        self._blank, self._is_after_call = "", True
        self._logprobs.clear()
        return deltas

    def _words(self, text: str) -> list[Said]:
        text = self._blank + text
        if self._is_after_call:
            text = text.lstrip()
        words = text.rstrip()
        self._blank = text[len(words) :]
        if not words:
            return []
        self._is_after_call = False
        return [self._say(words)]

    def _say(self, text: str) -> TextDelta:
        logprobs, self._logprobs = tuple(self._logprobs), []
        return TextDelta(text, logprobs)


def _begins_bare_call(text: str) -> bool:
    squeezed = "".join(text.split())
    return any(squeezed.startswith(one) or one.startswith(squeezed) for one in _BARE_CALLS)


def _decode(body: str) -> list[_Call]:
    body = body.strip().removeprefix(_LIST_MARK)
    try:
        return (
            _calls_decoder.decode(body)
            if body.lstrip().startswith("[")
            else [_call_decoder.decode(body)]
        )
    except msgspec.DecodeError:
        return []


class StopFinder:
    """Passes text on up to the first stop string, and holds back an end that may become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.found: str | None = None
        """The stop string that ended the text."""

    def push(self, text: str) -> str:
        """The text that is certain now; nothing after a stop string was found."""
        if self.found is not None:
            return ""
        self._held += text
        hits = [
            (position, stop) for stop in self._stops if (position := self._held.find(stop)) >= 0
        ]
        if hits:
            # The stop string that is complete first, however the text was cut into pieces.
            position, self.found = min(hits, key=lambda hit: (hit[0] + len(hit[1]), hit[0]))
            return self._let(position, drop=True)
        return self._let(len(self._held) - _held_back(self._held, self._stops))

    def flush(self) -> str:
        """The text held back, after the last token."""
        return self._let(len(self._held))

    def _let(self, count: int, *, drop: bool = False) -> str:
        out, rest = self._held[:count], self._held[count:]
        self._held = "" if drop else rest
        return out


def _held_back(text: str, words: Sequence[str]) -> int:
    """The length of the longest end of a text that is the beginning of one of these words, but not
    the whole word.
    """
    longest = max((len(word) for word in words), default=1) - 1
    for count in range(min(longest, len(text)), 0, -1):
        if any(word.startswith(text[-count:]) for word in words):
            return count
    return 0


@dataclass(frozen=True, slots=True)
class Prompt:
    """The turns and tools that the template renders, and the required beginning of the answer."""

    turns: tuple[WrittenTurn, ...]
    beginning: str
    tools: tuple[OfferedTool, ...] = ()

    @property
    def tool_names(self) -> frozenset[str]:
        """The tools that the answer may call."""
        return frozenset(tool.name for tool in self.tools)


def build_prompt(request: ChatRequest) -> Prompt:
    """The request as text. Raises WireError for content that is not text."""
    if not request.messages:
        raise WireError("messages must not be empty", param="messages")
    tools = _offered(request)
    turns: Sequence[WrittenTurn] = [
        turn for message in request.messages for turn in _turns(message)
    ]
    if request.json_schema is not None:
        schema = msgspec.json.encode(request.json_schema).decode()
        turns = _instruct(turns, f"Answer only with JSON that matches this schema: {schema}")
    return Prompt(tuple(turns), _beginning(request.tool_choice, tools), tuple(tools))


def _offered(request: ChatRequest) -> list[OfferedTool]:
    # Tools that only a provider can run are not offered.
    choice = request.tool_choice
    if choice is not None and choice.mode is ToolMode.NONE:
        return []
    tools = [
        OfferedTool(
            tool.name,
            tool.description or "",
            msgspec.json.encode(tool.parameters).decode(),
        )
        for tool in request.tools
        if isinstance(tool, Tool)
    ]
    if (
        choice is not None
        and choice.name is not None
        and choice.name not in {tool.name for tool in tools}
    ):
        raise WireError(
            f"tool_choice names {choice.name!r}, which is not among the tools", param="tool_choice"
        )
    return tools


def _beginning(choice: ToolChoice | None, tools: Sequence[OfferedTool]) -> str:
    # A required call is forced by beginning the answer with its opening tag.
    if choice is None or choice.mode is not ToolMode.REQUIRED or not tools:
        return ""
    if choice.name is None:
        return f'{OPEN}{{"name": "'
    return f'{OPEN}{{"name": {msgspec.json.encode(choice.name).decode()}, "arguments": '


def _instruct(turns: Sequence[WrittenTurn], text: str) -> list[WrittenTurn]:
    """The turns with this text at the end of the system text."""
    if turns and turns[0].role == Role.SYSTEM:
        return [WrittenTurn(Role.SYSTEM, f"{turns[0].content}\n\n{text}"), *turns[1:]]
    return [WrittenTurn(Role.SYSTEM, text), *turns]


def _turns(message: Message) -> Iterator[WrittenTurn]:
    if message.role not in (Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL):
        raise WireError(
            f"the embedded model does not support the role {message.role!r}", param="messages"
        )
    results = [part for part in message.parts if isinstance(part, ToolResult)]
    for result in results:
        yield WrittenTurn(Role.TOOL, "".join(map(_write, result.parts)), call_id=result.call_id)
    if len(results) == len(message.parts) > 0:
        return
    role = Role.USER if message.role == Role.TOOL else Role(message.role)
    calls = tuple(
        WrittenCall(part.name, part.arguments, part.id)
        for part in message.parts
        if isinstance(part, ToolCall)
    )
    yield WrittenTurn(role, "".join(map(_write, message.parts)), calls)


def _write(part: Text | Image | Reasoning | ToolCall | ToolResult | Opaque) -> str:
    match part:
        case Text():
            return part.text
        case Reasoning() | ToolCall() | ToolResult():
            return ""
        case Image():
            raise WireError(
                "the embedded model cannot see images; it reads text only", param="messages"
            )
        case Opaque():
            kind = part.value.get("type", "unknown") if isinstance(part.value, dict) else "unknown"
            raise WireError(
                f"the embedded model reads text only and cannot take a part of type {kind!r}",
                param="messages",
            )


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


def make_message(
    id: int, request: ChatRequest, prompt: Prompt, version: int = BASE_POLICY
) -> Generate:
    """The engine's message for a request to one version of the weights. Raises WireError for
    unsupported options.
    """
    options = request.sampling
    _check(options)
    top_p = _TOP_P if options.temperature is None else 1.0
    # If only one call is allowed, its closing tag ends the answer.
    stop = (CLOSE,) if prompt.tool_names and request.parallel_tool_calls is False else ()
    return Generate(
        id=id,
        turns=list(prompt.turns),
        tools=list(prompt.tools),
        beginning=prompt.beginning,
        version=version,
        max_tokens=options.max_tokens,
        temperature=_TEMPERATURE if options.temperature is None else options.temperature,
        top_p=top_p if options.top_p is None else options.top_p,
        top_k=max(options.top_k or 0, 0),
        frequency_penalty=options.frequency_penalty or 0.0,
        presence_penalty=options.presence_penalty or 0.0,
        seed=None if options.seed is None else options.seed & _SEED_BITS,
        stop=[*options.stop, *stop],
        top_logprobs=(options.top_logprobs or 0) if options.logprobs else None,
    )


def _check(options: Sampling) -> None:
    if options.n != 1:
        raise WireError(
            f"the embedded model gives one answer per request; n is {options.n}", param="n"
        )
    if options.max_tokens is not None and options.max_tokens < 1:
        raise WireError(
            f"max_tokens must be at least 1, not {options.max_tokens}", param="max_tokens"
        )
    for name, (low, high) in _RANGES.items():
        value: float | None = getattr(options, name)
        if value is not None and not low <= value <= high:
            raise WireError(f"{name} must be between {low} and {high}, not {value}", param=name)
