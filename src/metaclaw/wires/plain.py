"""A request in the words every wire has: what is left of it when its own wire's peculiarities are translated or refused."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from metaclaw.domain.chat import (
    ChatRequest,
    Image,
    Json,
    Message,
    Opaque,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolMode,
    ToolResult,
    Wire,
)
from metaclaw.errors import WireError
from metaclaw.wires.fields import object_of, text_of
from metaclaw.wires.media import read_document
from metaclaw.wires.tools import call_name, portable_tools

# Fields without which the request means something else. Every other field a target does not know is a hint and is dropped.
_INDISPENSABLE: Mapping[Wire, tuple[str, ...]] = {
    Wire.CHAT: ("audio", "function_call", "functions"),
    Wire.RESPONSES: ("previous_response_id", "conversation", "prompt", "background"),
    Wire.MESSAGES: ("container", "mcp_servers"),
}
# What a provider's own tools left in the history. Its outcome is in the text that follows.
_HOSTED_TRACES: Mapping[Wire, tuple[str, ...]] = {
    Wire.CHAT: (),
    Wire.RESPONSES: (
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_list_tools",
        "additional_tools",
    ),
    Wire.MESSAGES: ("server_tool_use", "web_search_tool_result", "web_fetch_tool_result", "tool_reference", "container_upload"),
}


def plain(request: ChatRequest) -> ChatRequest:
    """The same request without anything only its own wire can say.

    Roles are the four known ones, tool results stand alone in messages of role TOOL, one assistant turn is one message,
    tools are functions, and no part has extras; an Opaque that is left is a document. Raises WireError for what cannot be
    translated and would be missed.
    """
    refuse_indispensable(request)
    tools = portable_tools(request)
    choice = request.tool_choice
    if choice is not None and not tools:
        if choice.mode is ToolMode.REQUIRED:
            raise _untranslatable("the tool that must be called", "tool_choice")
        choice = None
    return replace(
        request,
        messages=tuple(_merged(_flattened(request))),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=request.parallel_tool_calls if tools else None,
    )


def refuse_indispensable(request: ChatRequest) -> None:
    """Raise WireError if a field is set that another wire has no word for and that changes the meaning."""
    for name in _INDISPENSABLE[request.wire]:
        if request.extra.get(name):
            raise _untranslatable(f"`{name}`", name)
    if request.extra.get("tool_choice") is not None:
        raise _untranslatable("this kind of tool_choice", "tool_choice")
    modalities = request.extra.get("modalities")
    if isinstance(modalities, list) and "audio" in modalities:
        raise _untranslatable("spoken answers", "modalities")


def _untranslatable(what: str, param: str) -> WireError:
    return WireError(
        f"{what} cannot be translated: the provider of this model speaks another protocol that has no such thing",
        code="unsupported_parameter",
        param=param,
    )


def _flattened(request: ChatRequest) -> Iterator[Message]:
    for number, message in enumerate(request.messages):
        param = f"messages[{number}]"
        role = message.role
        if not isinstance(role, Role):
            raise WireError(f"role {role!r} cannot be translated for this model's provider", param=f"{param}.role")
        if message.extra.get("function_call"):
            raise _untranslatable("`function_call`", f"{param}.function_call")
        parts = [said for part in message.parts if (said := _portable(part, param)) is not None]
        if message.parts and not parts:
            continue
        results = [part for part in parts if isinstance(part, ToolResult)]
        yield from (Message(Role.TOOL, (result,)) for result in results)
        if len(results) < len(parts) or not parts:
            others = tuple(part for part in parts if not isinstance(part, ToolResult))
            yield Message(role, others, message.name if role is Role.USER else None)


def _merged(messages: Iterator[Message]) -> Iterator[Message]:
    """Consecutive assistant messages are one turn."""
    turn: Message | None = None
    for message in messages:
        if turn is not None and message.role is Role.ASSISTANT:
            turn = Message(Role.ASSISTANT, turn.parts + message.parts)
            continue
        if turn is not None:
            yield turn
            turn = None
        if message.role is Role.ASSISTANT:
            turn = message
        else:
            yield message
    if turn is not None:
        yield turn


def _portable(part: Part, param: str) -> Part | None:
    match part:
        case Text():
            return Text(part.text)
        case Image():
            return Image(part.url, part.detail)
        case Reasoning():
            return Reasoning(part.text, part.signature, part.redacted)
        case ToolCall():
            return ToolCall(part.id, call_name(part), part.arguments)
        case ToolResult():
            return ToolResult(part.call_id, _result_parts(part, param), part.is_error)
        case Opaque():
            return _portable_opaque(part, param)


def _result_parts(result: ToolResult, param: str) -> tuple[Text | Image | Opaque, ...]:
    said = [_portable(part, param) for part in result.parts]
    return tuple(part for part in said if isinstance(part, Text | Image | Opaque))


def _portable_opaque(part: Opaque, param: str) -> Opaque | None:
    kind = text_of(object_of(part.value).get("type"))
    if kind in _HOSTED_TRACES[part.wire]:
        return None
    if read_document(part) is None:
        raise _untranslatable(f"a part of type {kind!r}", param)
    return part


def opaque_value(part: Opaque) -> dict[str, Json]:
    """A part of this wire's own kind, as it came."""
    return dict(object_of(part.value))
