"""The textual form of tool calls, for a model whose template knows none.

A call is `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as many as needed one after another; a result comes back as
`<tool_response>…</tool_response>`. The same form is offered to the model, read from its answers and written into its history.
"""

from collections.abc import Collection, Sequence
from typing import Final, TypeAlias

import msgspec

from metaclaw.domain.chat import TextDelta, TokenLogprob, Tool, ToolCall, ToolCallDelta
from metaclaw.domain.ids import new_id

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"

Said: TypeAlias = TextDelta | ToolCallDelta


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


_one: Final = msgspec.json.Decoder(_Call)
_many: Final = msgspec.json.Decoder(list[_Call])


def describe_tools(tools: Sequence[Tool]) -> str:
    """The paragraph of the system text that offers the tools."""
    lines = [
        msgspec.json.encode({"name": tool.name, "description": tool.description or "", "parameters": tool.parameters}).decode()
        for tool in tools
    ]
    return "\n".join(
        (
            "You can call these tools, each described by its JSON schema:",
            "<tools>",
            *lines,
            "</tools>",
            "To call one, write its name and arguments as JSON between tool_call tags, and nothing after the last call:",
            f'{OPEN}{{"name": "tool name", "arguments": {{"argument": "value"}}}}{CLOSE}',
        )
    )


def write_call(call: ToolCall) -> str:
    """An earlier call as the model would have written it."""
    return f'{OPEN}{{"name": {msgspec.json.encode(call.name).decode()}, "arguments": {call.arguments or "{}"}}}{CLOSE}'


def write_result(text: str) -> str:
    """A tool's result as the model is shown it."""
    return f"<tool_response>{text}</tool_response>"


class CallParser:
    """Split a growing answer into words and tool calls. What turns out to be no call of an offered tool stays words.

    White space around calls is layout and dropped, so that an answer which only calls has no words.
    """

    def __init__(self, names: Collection[str], beginning: str = "") -> None:
        self._names = names
        self._held = beginning
        self._blank = ""
        self._is_after_call = False
        self._logprobs: list[TokenLogprob] = []
        self.calls = 0
        """Tool calls found so far."""

    def push(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> list[Said]:
        """What is certain after this text."""
        self._held += text
        self._logprobs += logprobs
        said: list[Said] = []
        while (start := self._held.find(OPEN)) >= 0 and (end := self._held.find(CLOSE, start)) >= 0:
            end += len(CLOSE)
            said += self._words(self._held[:start]) + self._read(self._held[start:end])
            self._held = self._held[end:]
        certain = start if start >= 0 else len(self._held) - _possible_opening(self._held)
        said += self._words(self._held[:certain])
        self._held = self._held[certain:]
        return said

    def flush(self) -> list[Said]:
        """What is left at the end; a last call may lack its closing tag."""
        held, self._held = self._held, ""
        said = self._read(held) if held.startswith(OPEN) else self._words(held)
        if self._blank and not self._is_after_call:
            said.append(self._say(self._blank))
        return said

    def _read(self, written: str) -> list[Said]:
        calls = _decode(written.removeprefix(OPEN).removesuffix(CLOSE))
        if not calls or any(call.name not in self._names for call in calls):
            return self._words(written)
        said: list[Said] = []
        for call in calls:
            said.append(ToolCallDelta(self.calls, new_id("call_"), call.name, bytes(call.arguments).decode()))
            self.calls += 1
        self._blank, self._is_after_call = "", True
        self._logprobs.clear()
        return said

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


def _decode(body: str) -> list[_Call]:
    try:
        return _many.decode(body) if body.lstrip().startswith("[") else [_one.decode(body)]
    except msgspec.DecodeError:
        return []


def _possible_opening(text: str) -> int:
    for count in range(min(len(OPEN) - 1, len(text)), 0, -1):
        if OPEN.startswith(text[-count:]):
            return count
    return 0
