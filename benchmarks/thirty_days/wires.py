"""An agent's session on each of the three wires."""

import json
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.thirty_days.developer import TOOLS

_SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Made:
    """A call that the model made."""

    id: str
    tool: str
    arguments: dict[str, Any]


class Transcript(Protocol):
    """A conversation as one wire has it."""

    path: str

    def say(self, text: str) -> None: ...
    def result(self, made: Made, text: str) -> None: ...
    def body(self) -> dict[str, Any]: ...
    def read(self, answer: Any) -> list[Made]: ...


class ChatTranscript:
    path = "/v1/chat/completions"

    def __init__(self, system: str) -> None:
        self._messages: list[Any] = [{"role": "system", "content": system}]

    def say(self, text: str) -> None:
        self._messages.append({"role": "user", "content": text})

    def result(self, made: Made, text: str) -> None:
        self._messages.append({"role": "tool", "tool_call_id": made.id, "content": text})

    def body(self) -> dict[str, Any]:
        tools = [
            {"type": "function", "function": {"name": name, "parameters": _SCHEMA}}
            for name in TOOLS
        ]
        return {"model": "m", "messages": self._messages, "tools": tools}

    def read(self, answer: Any) -> list[Made]:
        message = answer["choices"][0]["message"]
        self._messages.append(message)
        return [
            Made(call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls") or []
        ]


class MessagesTranscript:
    path = "/v1/messages"

    def __init__(self, system: str) -> None:
        self._system = system
        self._messages: list[Any] = []

    def say(self, text: str) -> None:
        self._messages.append({"role": "user", "content": text})

    def result(self, made: Made, text: str) -> None:
        part = {"type": "tool_result", "tool_use_id": made.id, "content": text}
        self._messages.append({"role": "user", "content": [part]})

    def body(self) -> dict[str, Any]:
        tools = [{"name": name, "input_schema": _SCHEMA} for name in TOOLS]
        return {
            "model": "m",
            "max_tokens": 1000,
            "system": self._system,
            "messages": self._messages,
            "tools": tools,
        }

    def read(self, answer: Any) -> list[Made]:
        self._messages.append({"role": "assistant", "content": answer["content"]})
        return [
            Made(part["id"], part["name"], part["input"])
            for part in answer["content"]
            if part["type"] == "tool_use"
        ]


class ResponsesTranscript:
    path = "/v1/responses"

    def __init__(self, system: str) -> None:
        self._system = system
        self._items: list[Any] = []

    def say(self, text: str) -> None:
        self._items.append({"type": "message", "role": "user", "content": text})

    def result(self, made: Made, text: str) -> None:
        self._items.append({"type": "function_call_output", "call_id": made.id, "output": text})

    def body(self) -> dict[str, Any]:
        tools = [{"type": "function", "name": name, "parameters": _SCHEMA} for name in TOOLS]
        return {"model": "m", "instructions": self._system, "input": self._items, "tools": tools}

    def read(self, answer: Any) -> list[Made]:
        self._items.extend(answer["output"])
        return [
            Made(item["call_id"], item["name"], json.loads(item["arguments"]))
            for item in answer["output"]
            if item["type"] == "function_call"
        ]


WIRES: tuple[type[ChatTranscript | MessagesTranscript | ResponsesTranscript], ...] = (
    ChatTranscript,
    MessagesTranscript,
    ResponsesTranscript,
)
