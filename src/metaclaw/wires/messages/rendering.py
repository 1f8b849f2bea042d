"""A ChatRequest as an Anthropic messages body."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import msgspec

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
    Tool,
    ToolCall,
    ToolMode,
    ToolResult,
    Wire,
)
from metaclaw.errors import WireError
from metaclaw.wires.fields import Object
from metaclaw.wires.media import messages_document, read_document, split_data_url
from metaclaw.wires.plain import opaque_value, plain
from metaclaw.wires.proof import unseal
from metaclaw.wires.wishes import DEFAULT_MAX_TOKENS, JSON_OBJECT, anthropic_effort

_ID = re.compile(r"[^a-zA-Z0-9_-]")
_JSON_IN_WORDS = "Answer with one valid JSON object and nothing else."
_OPENING = "(The conversation begins with the assistant.)"


def render_request(request: ChatRequest) -> dict[str, Json]:
    """The body an Anthropic provider gets. A request of another wire loses its hints; what it cannot lose raises WireError."""
    own = request.wire is Wire.MESSAGES
    if not own:
        request = _alternating(plain(request))
    system, spoken = _split_system(request.messages)
    body: Object = {**(request.extra if own else {}), "model": request.model, "messages": [_message(message) for message in spoken]}
    if system is not None:
        body["system"] = _content(system.parts)
    if not own or request.sampling.max_tokens is not None:  # a client's own request to count tokens has none
        body["max_tokens"] = request.sampling.max_tokens or DEFAULT_MAX_TOKENS
    if request.tools:
        body["tools"] = [render_tool(tool) for tool in request.tools]
        if (choice := _tool_choice(request)) is not None:
            body["tool_choice"] = choice
    _put_sampling(body, request, own=own)
    _put_output_config(body, request, own=own)
    if request.stream:
        body["stream"] = True
    return body


def _put_sampling(body: Object, request: ChatRequest, *, own: bool) -> None:
    wish = request.sampling
    if wish.n > 1:
        raise WireError("n above 1 cannot be translated: this model's provider gives one answer at a time", param="n")
    if wish.logprobs:
        raise WireError("this model's provider does not tell log-probabilities", code="unsupported_parameter", param="logprobs")
    warmth = wish.temperature if own or wish.temperature is None else min(wish.temperature, 1.0)
    wishes: Object = {"temperature": warmth, "top_p": wish.top_p, "top_k": wish.top_k, "stop_sequences": list(wish.stop) or None}
    body.update({name: value for name, value in wishes.items() if value is not None})


def _put_output_config(body: Object, request: ChatRequest, *, own: bool) -> None:
    kept = body.get("output_config") if own else None
    config: Object = dict(kept) if isinstance(kept, dict) else {}
    effort = request.reasoning_effort
    if effort is not None and (word := effort if own else anthropic_effort(effort)) is not None:
        config["effort"] = word
    if request.json_schema is not None and (own or request.json_schema != JSON_OBJECT):
        named = request.json_schema if own else {"schema": request.json_schema.get("schema")}
        config["format"] = {"type": "json_schema", **named}
    if config:
        body["output_config"] = config


def render_tool(tool: Tool | Opaque) -> Object:
    """A tool definition."""
    if isinstance(tool, Opaque):
        return opaque_value(tool)
    body: Object = {**tool.extra, "name": tool.name, "input_schema": dict(tool.parameters) or {"type": "object", "properties": {}}}
    if tool.description is not None:
        body["description"] = tool.description
    if tool.strict is not None:
        body["strict"] = tool.strict
    return body


def _tool_choice(request: ChatRequest) -> Object | None:
    choice, parallel = request.tool_choice, request.parallel_tool_calls
    if choice is None:
        return {"type": "auto", "disable_parallel_tool_use": True} if parallel is False else None
    body: Object
    if choice.name is not None:
        body = {"type": "tool", "name": choice.name}
    else:
        body = {"type": {ToolMode.AUTO: "auto", ToolMode.NONE: "none", ToolMode.REQUIRED: "any"}[choice.mode]}
    if parallel is not None and choice.mode is not ToolMode.NONE:
        body["disable_parallel_tool_use"] = not parallel
    return body


def _split_system(messages: Sequence[Message]) -> tuple[Message | None, Sequence[Message]]:
    """The first message, if it is plain system text, goes to the body's own field."""
    first = messages[0]
    if first.role is Role.SYSTEM and not first.extra and all(isinstance(part, Text) for part in first.parts):
        return first, messages[1:]
    return None, messages


def _alternating(request: ChatRequest) -> ChatRequest:
    """The conversation as Anthropic wants it: system text apart, then user and assistant in turn, tool results first."""
    system, spoken = _gathered_system(request)
    turns: list[Message] = []
    for message in map(_as_turn, spoken):
        if not message.parts:
            continue
        if turns and turns[-1].role is message.role:
            turns[-1] = Message(message.role, turns[-1].parts + message.parts)
        else:
            turns.append(message)
    if not turns:
        raise WireError("messages hold nothing that could be sent to this model's provider", param="messages")
    if turns[0].role is not Role.USER:
        turns.insert(0, Message(Role.USER, (Text(_OPENING),)))
    ordered = tuple(Message(turn.role, tuple(_results_first(turn.parts))) for turn in turns)
    head = (Message(Role.SYSTEM, system),) if system else ()
    return replace(request, messages=(*head, *ordered))


def _gathered_system(request: ChatRequest) -> tuple[tuple[Part, ...], list[Message]]:
    """Leading system messages; a request of nothing else keeps its last one as what the user says."""
    messages = list(request.messages)
    leading: list[Part] = []
    while len(messages) > 1 and messages[0].role is Role.SYSTEM:
        leading += messages.pop(0).parts
    if request.json_schema == JSON_OBJECT:
        leading.append(Text(_JSON_IN_WORDS))
    return tuple(part for part in leading if not isinstance(part, Text) or part.text), messages


def _as_turn(message: Message) -> Message:
    """A message in the role it takes here. System text in mid-conversation stays in its place, marked for what it is."""
    match message.role:
        case Role.ASSISTANT:
            return Message(Role.ASSISTANT, tuple(filter(_is_welcome, message.parts)))
        case Role.SYSTEM:
            text = "\n\n".join(part.text for part in message.parts if isinstance(part, Text))
            return Message(Role.USER, (Text(f"<system-reminder>\n{text}\n</system-reminder>"),))
        case _:
            return Message(Role.USER, tuple(filter(_is_welcome, message.parts)))


def _is_welcome(part: Part) -> bool:
    """Empty texts are refused here, and so is thinking that an Anthropic model did not sign."""
    match part:
        case Text():
            return bool(part.text)
        case Reasoning():
            return unseal(Wire.MESSAGES, part.signature) is not None
        case _:
            return True


def _results_first(parts: Iterable[Part]) -> Iterator[Part]:
    others = []
    for part in parts:
        if isinstance(part, ToolResult):
            yield part
        else:
            others.append(part)
    yield from others


def _message(message: Message) -> Object:
    role = message.role.value if isinstance(message.role, Role) else message.role
    return {**message.extra, "role": "user" if message.role is Role.TOOL else role, "content": _content(message.parts)}


def _content(parts: Sequence[Part]) -> Json:
    if not parts:
        return ""
    if len(parts) == 1 and isinstance(only := parts[0], Text) and not only.extra and only.text:
        return only.text
    return [block for part in parts if (block := _block(part)) is not None]


def _block(part: Part) -> Object | None:
    match part:
        case Text():
            return {**part.extra, "type": "text", "text": part.text}
        case Image():
            return {**part.extra, "type": "image", "source": _image_source(part.url)}
        case Reasoning():
            return _thinking(part)
        case ToolCall():
            return {
                **part.extra,
                "type": "tool_use",
                "id": _ID.sub("_", part.id),
                "name": part.name,
                "input": tool_input(part.arguments),
            }
        case ToolResult():
            body: Object = {
                **part.extra,
                "type": "tool_result",
                "tool_use_id": _ID.sub("_", part.call_id),
                "content": _content(part.parts),
            }
            return {**body, "is_error": True} if part.is_error else body
        case Opaque():
            document = read_document(part) if part.wire is not Wire.MESSAGES else None
            return opaque_value(part) if document is None else messages_document(document)


def _thinking(part: Reasoning) -> Object | None:
    signature = unseal(Wire.MESSAGES, part.signature)
    if signature is None:
        return None
    if part.redacted:
        return {**part.extra, "type": "redacted_thinking", "data": signature}
    return {**part.extra, "type": "thinking", "thinking": part.text, "signature": signature}


def _image_source(url: str) -> Object:
    if (inline := split_data_url(url)) is not None:
        return {"type": "base64", "media_type": inline[0], "data": inline[1]}
    if url.startswith("data:"):
        raise WireError("an image's data: URL must be base64", param="messages")
    return {"type": "url", "url": url}


def tool_input(arguments: str) -> Object:
    """Arguments as the object this wire demands; what a model wrote that is none is kept as text in `arguments`."""
    try:
        value = msgspec.json.decode(arguments) if arguments.strip() else {}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}
