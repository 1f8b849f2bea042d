"""Clients of all wires on the official SDKs that keep their history as agents do, for tests of held
rules.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.support.program import KEY, Program

RULE = """---
name: {name}
description: always
kind: rule
applies: always
enforce: hold
check: "{check}"
{more}---
{text}
"""
PARAMETERS = {
    "type": "object",
    "properties": {"command": {"type": "string"}},
    "required": ["command"],
}


CLOSING = {"Connection": "close"}
"""SDK clients leave connections to the garbage collector; these are closed after each response."""


def write_rule(
    program: Program,
    name: str = "no-force-push",
    check: str = "not in calls: push --force",
    text: str = "Never force-push.",
    **more: str,
) -> None:
    """A held rule in the home of a program."""
    folder = program.home / "skills" / name
    folder.mkdir(parents=True, exist_ok=True)
    extra = "".join(f"{key}: {value}\n" for key, value in more.items())
    (folder / "SKILL.md").write_text(RULE.format(name=name, check=check, text=text, more=extra))


@dataclass
class Got:
    """What a client was given: text, calls as (id, command), usage, and the response's header
    fields.
    """

    text: str
    calls: list[tuple[str, str]]
    input_tokens: int
    output_tokens: int
    headers: Mapping[str, str]


class Agent(Protocol):
    """A client with a history."""

    def ask(self, words: str) -> Got: ...
    def answer_calls(self) -> Got: ...


@dataclass
class ChatAgent:
    url: str
    model: str
    stream: bool
    headers: dict[str, str] = field(default_factory=dict)
    history: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        import openai  # only who asks waits for an SDK

        self.client = openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key=KEY,
            max_retries=0,
            default_headers=self.headers | CLOSING,
        )

    def ask(self, words: str) -> Got:
        self.history.append({"role": "user", "content": words})
        return self._go()

    def answer_calls(self) -> Got:
        self.history += [
            {"role": "tool", "tool_call_id": call["id"], "content": "done"}
            for call in self.history[-1].get("tool_calls", [])
        ]
        return self._go()

    def _go(self) -> Got:
        tools: Any = [{"type": "function", "function": {"name": "bash", "parameters": PARAMETERS}}]
        asked: Any = {"model": self.model, "messages": self.history, "tools": tools}
        if not self.stream:
            raw = self.client.chat.completions.with_raw_response.create(**asked)
            completion = raw.parse()
            message = completion.choices[0].message.to_dict()
            usage = completion.usage
            headers = raw.headers
            assert completion.choices[0].finish_reason == (
                "tool_calls" if message.get("tool_calls") else "stop"
            )
        else:
            with self.client.chat.completions.stream(
                **asked, stream_options={"include_usage": True}
            ) as stream:
                for _ in stream:
                    pass
                final = stream.get_final_completion()
                headers = stream._response.headers
            message, usage = final.choices[0].message.to_dict(), final.usage
            for call in message.get("tool_calls") or []:  # type: ignore[attr-defined]
                call.pop("index", None)
                call["function"].pop("parsed_arguments", None)
            message.pop("parsed", None)
        assert usage is not None
        self.history.append(message)
        calls: Any = message.get("tool_calls") or []
        return Got(
            str(message.get("content") or ""),
            [(call["id"], json.loads(call["function"]["arguments"])["command"]) for call in calls],
            usage.prompt_tokens,
            usage.completion_tokens,
            headers,
        )


@dataclass
class MessagesAgent:
    url: str
    model: str
    stream: bool
    headers: dict[str, str] = field(default_factory=dict)
    history: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        import anthropic

        self.client = anthropic.Anthropic(
            base_url=self.url, api_key=KEY, max_retries=0, default_headers=self.headers | CLOSING
        )

    def ask(self, words: str) -> Got:
        self.history.append({"role": "user", "content": words})
        return self._go()

    def answer_calls(self) -> Got:
        calls = [block for block in self.history[-1]["content"] if block["type"] == "tool_use"]
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": "done"} for call in calls
        ]
        self.history.append({"role": "user", "content": results})
        return self._go()

    def _go(self) -> Got:
        tools: Any = [{"name": "bash", "input_schema": PARAMETERS}]
        asked: Any = {
            "model": self.model,
            "messages": self.history,
            "tools": tools,
            "max_tokens": 500,
        }
        if not self.stream:
            raw = self.client.messages.with_raw_response.create(**asked)
            message, headers = raw.parse(), raw.headers
        else:
            with self.client.messages.stream(**asked) as stream:
                for _ in stream:
                    pass
                message = stream.get_final_message()
                headers = stream.response.headers
        content = [
            {
                key: value
                for key, value in block.to_dict().items()
                if value is not None and key != "parsed_output"
            }
            for block in message.content
        ]
        self.history.append({"role": "assistant", "content": content})
        calls = [block for block in message.content if block.type == "tool_use"]
        assert message.stop_reason == ("tool_use" if calls else "end_turn")
        return Got(
            "\n\n".join(block.text for block in message.content if block.type == "text"),
            [(call.id, str(dict(call.input)["command"])) for call in calls],
            message.usage.input_tokens,
            message.usage.output_tokens,
            headers,
        )


@dataclass
class ResponsesAgent:
    url: str
    model: str
    stream: bool
    headers: dict[str, str] = field(default_factory=dict)
    history: list[Any] = field(default_factory=list)
    keeps: bool = False
    """Whether it leaves the history to the provider (`previous_response_id`)."""
    previous: str | None = None

    def __post_init__(self) -> None:
        import openai  # only who asks waits for an SDK

        self.client = openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key=KEY,
            max_retries=0,
            default_headers=self.headers | CLOSING,
        )
        self.open: list[str] = []

    def ask(self, words: str) -> Got:
        self.history.append(
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": words}]}
        )
        return self._go()

    def answer_calls(self) -> Got:
        self.history += [
            {"type": "function_call_output", "call_id": identity, "output": "done"}
            for identity in self.open
        ]
        return self._go()

    def _go(self) -> Got:
        tools: Any = [
            {"type": "function", "name": "bash", "parameters": PARAMETERS, "strict": False}
        ]
        asked: Any = {"model": self.model, "input": self.history, "tools": tools}
        if self.previous is not None:
            asked["previous_response_id"] = self.previous
        if not self.stream:
            raw = self.client.responses.with_raw_response.create(**asked)
            response, headers = raw.parse(), raw.headers
        else:
            with self.client.responses.stream(**asked) as stream:
                numbers = [event.sequence_number for event in stream]
                response = stream.get_final_response()
                headers = stream._response.headers
            assert numbers == list(range(len(numbers)))
        assert response.status == "completed"
        items = [item.to_dict() for item in response.output]
        for item in items:
            item.pop("parsed_arguments", None)
            for part in item.get("content") or []:
                part.pop("parsed", None)
        self.history = [] if self.keeps else [*self.history, *items]
        self.previous = response.id if self.keeps else None
        calls = [item for item in response.output if item.type == "function_call"]
        self.open = [call.call_id for call in calls]
        assert response.usage is not None
        return Got(
            response.output_text,
            [(call.call_id, str(json.loads(call.arguments)["command"])) for call in calls],
            response.usage.input_tokens,
            response.usage.output_tokens,
            headers,
        )


def new_agent(
    wire: str, url: str, model: str, stream: bool, headers: dict[str, str] | None = None
) -> Agent:
    """A client of this wire."""
    if wire == "chat":
        return ChatAgent(url, model, stream, headers or {})
    kind = MessagesAgent if wire == "messages" else ResponsesAgent
    return kind(url, model, stream, headers or {})
