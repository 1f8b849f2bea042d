"""Requests of real agents are parsed, and say the same on every wire."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from metaclaw.domain.chat import (
    ChatRequest,
    Json,
    Message,
    Opaque,
    Role,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Wire,
)
from metaclaw.errors import WireError
from metaclaw.wires import plain, wire_format

_PATHS = {
    "chat/completions": Wire.CHAT,
    "responses": Wire.RESPONSES,
    "messages": Wire.MESSAGES,
    "messages/count_tokens": Wire.MESSAGES,
}


@dataclass(frozen=True)
class Capture:
    name: str
    wire: Wire
    body: dict[str, Json]

    @property
    def request(self) -> ChatRequest:
        return wire_format(self.wire).parse_request(self.body)


def _captures(shared: Path) -> list[Capture]:
    found = []
    for file in sorted((shared / "captures").glob("*.json")):
        capture = json.loads(file.read_text())
        path = capture["path"].partition("?")[0].removeprefix("/v1").strip("/")
        if path in _PATHS and isinstance(capture["body"], dict):
            found.append(Capture(file.stem, _PATHS[path], capture["body"]))
    return found


@pytest.fixture(scope="session")
def captures(shared: Path) -> list[Capture]:
    found = _captures(shared)
    if not found:
        pytest.skip(
            f"needs recorded requests of real clients in {shared}/captures: docs/captures.md tells"
            " how to record them"
        )
    return found


def _said(messages: tuple[Message, ...]) -> Iterator[tuple[str, ...]]:
    """Every text, call and result, in order. Whoever merges texts may put blank lines between
    them.
    """
    for message in messages:
        for part in message.parts:
            match part:
                case Text() if part.text:
                    yield from (("text", line) for line in part.text.split("\n") if line.strip())
                case ToolCall():
                    yield (
                        "call",
                        part.id,
                        part.name,
                        json.dumps(json.loads(part.arguments or "{}")),
                    )
                case ToolResult():
                    yield (
                        "result",
                        part.call_id,
                        "".join(inner.text for inner in part.parts if isinstance(inner, Text)),
                    )
                case _:
                    pass


def _translatable(captures: list[Capture]) -> list[Capture]:
    return [capture for capture in captures if not capture.body.get("previous_response_id")]


def test_every_capture_survives_its_own_wire(captures: list[Capture]) -> None:
    for capture in captures:
        wire = wire_format(capture.wire)
        assert wire.parse_request(wire.render_request(capture.request)) == capture.request, (
            capture.name
        )


@pytest.mark.parametrize("target", Wire)
def test_every_capture_says_the_same_in_the_same_order_on_the_other_wires(
    captures: list[Capture], target: Wire
) -> None:
    marks = [
        ("text", "<system-reminder>"),
        ("text", "</system-reminder>"),
        ("text", "Answer with one valid JSON object and nothing else."),
    ]
    for capture in _translatable(captures):
        if capture.wire is target:
            continue
        wire = wire_format(target)
        translated = plain(wire.parse_request(wire.render_request(capture.request)))
        expected = [said for said in _said(plain(capture.request).messages) if said not in marks]
        assert [said for said in _said(translated.messages) if said not in marks] == expected, (
            capture.name
        )


@pytest.mark.parametrize("target", Wire)
def test_every_capture_keeps_its_tools_and_wishes_on_the_other_wires(
    captures: list[Capture], target: Wire
) -> None:
    for capture in _translatable(captures):
        before = plain(capture.request)
        wire = wire_format(target)
        after = plain(wire.parse_request(wire.render_request(capture.request)))
        tools = [
            (tool.name, tool.description, dict(tool.parameters))
            for tool in before.tools
            if isinstance(tool, Tool)
        ]
        assert [
            (tool.name, tool.description, dict(tool.parameters))
            for tool in after.tools
            if isinstance(tool, Tool)
        ] == tools, capture.name
        assert (after.model, after.stream, after.reasoning_effort) == (
            before.model,
            before.stream,
            before.reasoning_effort,
        ), capture.name
        assert after.sampling.temperature == before.sampling.temperature, capture.name
        if before.sampling.max_tokens is not None:
            assert after.sampling.max_tokens == before.sampling.max_tokens, capture.name


def test_a_conversation_for_anthropic_alternates_and_answers_every_call_at_once(
    captures: list[Capture],
) -> None:
    for capture in _translatable(captures):
        if capture.wire is Wire.MESSAGES:
            continue
        messages = wire_format(Wire.MESSAGES).render_request(capture.request)["messages"]
        assert isinstance(messages, list)
        roles = [message["role"] for message in messages if isinstance(message, dict)]
        assert roles == [("user", "assistant")[number % 2] for number in range(len(roles))], (
            capture.name
        )


def test_history_that_lies_with_the_provider_is_refused_elsewhere(captures: list[Capture]) -> None:
    (capture,) = [capture for capture in captures if capture.body.get("previous_response_id")]
    for target in (Wire.CHAT, Wire.MESSAGES):
        with pytest.raises(WireError, match="previous_response_id") as caught:
            wire_format(target).render_request(capture.request)
        assert (caught.value.status, caught.value.param) == (400, "previous_response_id")


def test_codex_tools_in_a_namespace_are_offered_as_functions(captures: list[Capture]) -> None:
    capture = next(
        capture for capture in captures if capture.name.endswith("codex-0.166.0__main_first")
    )
    names = [tool.name for tool in plain(capture.request).tools if isinstance(tool, Tool)]
    assert "exec_command" in names
    assert "multi_agent_v1__spawn_agent" in names
    assert "web_search" not in names


def test_claude_codes_system_message_keeps_its_place(captures: list[Capture]) -> None:
    capture = next(
        capture for capture in captures if capture.name == "claude-code-2.1.325__main_first"
    )
    roles = [message.role for message in capture.request.messages]
    assert roles == [Role.SYSTEM, Role.USER, Role.SYSTEM]
    chat = wire_format(Wire.CHAT).render_request(capture.request)["messages"]
    assert isinstance(chat, list)
    assert [message["role"] for message in chat if isinstance(message, dict)] == [
        "system",
        "user",
        "system",
    ]


def test_no_tool_of_a_capture_is_left_as_it_came(captures: list[Capture]) -> None:
    for capture in _translatable(captures):
        assert not [tool for tool in plain(capture.request).tools if isinstance(tool, Opaque)], (
            capture.name
        )
