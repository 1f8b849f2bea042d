"""A ChatRequest as a chat completions body."""

from collections.abc import Iterator, Sequence

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
    ToolResult,
    Wire,
)
from metaclaw.wires.fields import Object
from metaclaw.wires.media import chat_document, read_document
from metaclaw.wires.plain import opaque_value, plain
from metaclaw.wires.tools import ClientTools, custom_input
from metaclaw.wires.wishes import JSON_OBJECT, SCHEMA_NAME, max_tokens_field


def render_request(request: ChatRequest) -> dict[str, Json]:
    """The body a chat provider gets. A request of another wire loses its hints; what it cannot lose raises WireError."""
    own = request.wire is Wire.CHAT
    if not own:
        request = plain(request)
    messages: list[Json] = list(_own_messages(request) if own else _foreign_messages(request))
    body: Object = {**(request.extra if own else {}), "model": request.model, "messages": messages}
    if request.tools:
        body["tools"] = [render_tool(tool) for tool in request.tools]
        if request.tool_choice is not None:
            body["tool_choice"] = _tool_choice(request)
        if request.parallel_tool_calls is not None:
            body["parallel_tool_calls"] = request.parallel_tool_calls
    _put_sampling(body, request, own=own)
    _put_wishes(body, request, own=own)
    return body


def _put_sampling(body: Object, request: ChatRequest, *, own: bool) -> None:
    wish = request.sampling
    wishes: Object = {
        max_tokens_field(request.model): wish.max_tokens,
        "temperature": wish.temperature,
        "top_p": wish.top_p,
        "top_k": wish.top_k if own else None,
        "stop": list(wish.stop) or None,
        "seed": wish.seed,
        "frequency_penalty": wish.frequency_penalty,
        "presence_penalty": wish.presence_penalty,
        "logprobs": wish.logprobs or None,
        "top_logprobs": wish.top_logprobs,
        "n": wish.n if wish.n > 1 else None,
    }
    body.update({name: value for name, value in wishes.items() if value is not None})


def _put_wishes(body: Object, request: ChatRequest, *, own: bool) -> None:
    if request.stream:
        body["stream"] = True
    if request.include_usage:
        options = request.extra.get("stream_options") if own else None
        body["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    if request.reasoning_effort is not None:
        body["reasoning_effort"] = request.reasoning_effort
    if request.json_schema is not None:
        body["response_format"] = _response_format(dict(request.json_schema))


def _response_format(schema: Object) -> Object:
    if schema == JSON_OBJECT:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": SCHEMA_NAME, **schema}}


def _tool_choice(request: ChatRequest) -> Json:
    choice = request.tool_choice
    if choice is None or choice.name is None:
        return None if choice is None else choice.mode.value
    kind = ClientTools(request).spoken(choice.name).kind.value
    return {"type": kind, kind: {"name": choice.name}}


def render_tool(tool: Tool | Opaque) -> Object:
    """A tool definition."""
    if isinstance(tool, Opaque):
        return opaque_value(tool)
    function: Object = {"name": tool.name, "parameters": dict(tool.parameters)}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": {**tool.extra, **function}}


def _own_messages(request: ChatRequest) -> Iterator[Object]:
    for message in request.messages:
        body: Object = {"role": message.role.value if isinstance(message.role, Role) else message.role, **message.extra}
        if message.name is not None:
            body["name"] = message.name
        parts: Sequence[Part] = message.parts
        if len(parts) == 1 and isinstance(result := parts[0], ToolResult):
            body["tool_call_id"] = result.call_id
            parts = result.parts
        yield {**body, **_spoken(parts, joined=False)}


def _foreign_messages(request: ChatRequest) -> Iterator[Object]:
    """Tool results hold only text on this wire, so what else they hold follows them in a user's message."""
    shown: list[Text | Image | Opaque] = []
    for message in request.messages:
        result = message.parts[0] if message.role is Role.TOOL else None
        if isinstance(result, ToolResult):
            texts = [part for part in result.parts if isinstance(part, Text)]
            yield {"role": "tool", "tool_call_id": result.call_id, "content": "\n".join(part.text for part in texts)}
            if len(texts) < len(result.parts):
                shown.append(Text(f"Returned by the tool call {result.call_id}:"))
                shown += (part for part in result.parts if not isinstance(part, Text))
            continue
        if shown:
            yield {"role": "user", **_spoken(shown, joined=False)}
            shown = []
        yield _foreign_message(message)
    if shown:
        yield {"role": "user", **_spoken(shown, joined=False)}


def _foreign_message(message: Message) -> Object:
    return {"role": Role(message.role).value, **_spoken(message.parts, joined=message.role is not Role.USER)}


def _spoken(parts: Sequence[Part], *, joined: bool) -> Object:
    """Content, reasoning and tool calls of a message. `joined` makes one string of several texts, which every server reads."""
    body: Object = {}
    content = [part for part in parts if isinstance(part, Text | Image | Opaque)]
    calls = [part for part in parts if isinstance(part, ToolCall)]
    thoughts = [part.text for part in parts if isinstance(part, Reasoning) and part.text]
    if joined and all(isinstance(part, Text) for part in content):
        body["content"] = "\n\n".join(part.text for part in content if isinstance(part, Text) and part.text)
    else:
        body["content"] = _content(content)
    if calls:
        body["content"] = body["content"] or None
        body["tool_calls"] = [_tool_call(call) for call in calls]
    if thoughts:
        body["reasoning_content"] = "\n\n".join(thoughts)
    return body


def _content(parts: list[Text | Image | Opaque]) -> Json:
    if not parts:
        return ""
    if len(parts) == 1 and isinstance(only := parts[0], Text) and not only.extra and only.text:
        return only.text
    return [_part(part) for part in parts]


def _part(part: Text | Image | Opaque) -> Object:
    match part:
        case Text() if part.extra.get("type") == "refusal":
            return {**part.extra, "type": "refusal", "refusal": part.text}
        case Text():
            return {**part.extra, "type": "text", "text": part.text}
        case Image():
            image: Object = {"url": part.url}
            if part.detail is not None:
                image["detail"] = part.detail
            return {**part.extra, "type": "image_url", "image_url": image}
        case Opaque():
            document = read_document(part)
            return opaque_value(part) if document is None or part.wire is Wire.CHAT else chat_document(document)


def _tool_call(call: ToolCall) -> Object:
    if call.extra.get("type") == "custom":
        return {**call.extra, "id": call.id, "type": "custom", "custom": {"name": call.name, "input": custom_input(call.arguments)}}
    return {**call.extra, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
