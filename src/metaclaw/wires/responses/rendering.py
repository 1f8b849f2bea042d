"""A ChatRequest as an OpenAI responses body."""

from collections.abc import Iterable, Iterator, Sequence

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
from metaclaw.errors import WireError
from metaclaw.wires.fields import Object, object_of, text_of
from metaclaw.wires.media import read_document, responses_document
from metaclaw.wires.plain import opaque_value, plain
from metaclaw.wires.proof import show, unseal
from metaclaw.wires.responses.parsing import LOGPROBS
from metaclaw.wires.tools import ClientTools, custom_input
from metaclaw.wires.wishes import JSON_OBJECT, SCHEMA_NAME

# Hints that both of OpenAI's wires know.
_SHARED_HINTS = ("metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier", "store", "user")
_ENCRYPTED = "reasoning.encrypted_content"


def render_request(request: ChatRequest) -> dict[str, Json]:
    """The body a responses provider gets. A request of another wire loses its hints; what it cannot lose raises WireError."""
    own = request.wire is Wire.RESPONSES
    if not own:
        _refuse(request)
        request = plain(request)
    body: Object = {**(request.extra if own else _stateless(request)), "model": request.model}
    _put_messages(body, request, own=own)
    if request.tools:
        body["tools"] = [render_tool(tool, own=own) for tool in request.tools]
    if request.tool_choice is not None:
        body["tool_choice"] = tool_choice(request)
    if request.parallel_tool_calls is not None:
        body["parallel_tool_calls"] = request.parallel_tool_calls
    _put_wishes(body, request)
    return body


def _refuse(request: ChatRequest) -> None:
    if request.sampling.n > 1:
        raise WireError("n above 1 cannot be translated: this model's provider gives one answer at a time", param="n")
    if request.sampling.stop:
        message = "stop sequences cannot be translated: this model's provider has none"
        raise WireError(message, code="unsupported_parameter", param="stop" if request.wire is Wire.CHAT else "stop_sequences")


def _stateless(request: ChatRequest) -> Object:
    """The whole conversation comes with every request, so nothing need be stored and reasoning must come back with it."""
    hints = {name: request.extra[name] for name in _SHARED_HINTS if name in request.extra} if request.wire is Wire.CHAT else {}
    return {"store": False, **hints, "include": [_ENCRYPTED]}


def _put_wishes(body: Object, request: ChatRequest) -> None:
    wish = request.sampling
    wishes: Object = {
        "max_output_tokens": wish.max_tokens,
        "temperature": wish.temperature,
        "top_p": wish.top_p,
        "top_logprobs": wish.top_logprobs,
        "stream": request.stream or None,
    }
    body.update({name: value for name, value in wishes.items() if value is not None})
    if wish.logprobs:
        include = body.get("include")
        body["include"] = [*(include if isinstance(include, list) else ()), LOGPROBS]
    if request.reasoning_effort is not None:
        body["reasoning"] = {**object_of(body.get("reasoning")), "effort": request.reasoning_effort}
    if request.json_schema is not None:
        body["text"] = {**object_of(body.get("text")), "format": text_format(dict(request.json_schema))}


def text_format(schema: Object) -> Object:
    """The wished shape of the answer."""
    return {"type": "json_object"} if schema == JSON_OBJECT else {"type": "json_schema", "name": SCHEMA_NAME, **schema}


def tool_choice(request: ChatRequest) -> Json:
    """How free the model is to call tools."""
    choice = request.tool_choice
    if choice is None or choice.name is None:
        return None if choice is None else choice.mode.value
    return {"type": ClientTools(request).spoken(choice.name).kind.value, "name": choice.name}


def render_tool(tool: Tool | Opaque, *, own: bool) -> Object:
    """A tool definition. This wire alone takes a function for strict unless told otherwise."""
    if isinstance(tool, Opaque):
        return opaque_value(tool)
    body: Object = {**tool.extra, "type": "function", "name": tool.name, "parameters": dict(tool.parameters)}
    if tool.description is not None:
        body["description"] = tool.description
    strict = tool.strict if own else tool.strict or False
    return body if strict is None else {**body, "strict": strict}


def _put_messages(body: Object, request: ChatRequest, *, own: bool) -> None:
    messages: Sequence[Message] = request.messages
    if messages and (text := _instructions(messages[0])) is not None:
        body["instructions"] = text
        messages = messages[1:]
    body["input"] = [item for message in messages for item in _items(message, own=own)]


def _instructions(first: Message) -> str | None:
    """System text that stands first and is a single plain text has a field of its own."""
    if first.role is not Role.SYSTEM or first.extra or len(first.parts) != 1:
        return None
    only = first.parts[0]
    return only.text or None if isinstance(only, Text) and not only.extra else None


def _items(message: Message, *, own: bool) -> Iterator[Object]:
    said: list[Text | Image | Opaque] = []
    spoke = False
    for part in message.parts:
        if isinstance(part, Text | Image) or (isinstance(part, Opaque) and _is_content(part)):
            said.append(part)
            continue
        if said:
            yield _message(message, said)
            said, spoke = [], True
        if (item := _item(part, own=own)) is not None:
            yield item
        spoke = True
    if said or not spoke:
        yield _message(message, said)


def _is_content(part: Opaque) -> bool:
    kind = text_of(object_of(part.value).get("type"))
    return part.wire is not Wire.RESPONSES or kind.startswith(("input_", "output_"))


def _item(part: Part, *, own: bool) -> Object | None:
    match part:
        case Reasoning():
            return _reasoning(part, own=own)
        case ToolCall():
            return _call(part)
        case ToolResult():
            return {
                "type": "function_call_output",
                **part.extra,
                "call_id": part.call_id,
                "output": _content(part.parts, Role.USER, whole=True),
            }
        case Opaque():
            return opaque_value(part)
        case _:
            return None


def _reasoning(part: Reasoning, *, own: bool) -> Object | None:
    """Reasoning that an OpenAI model did not seal would be refused by another provider, so only a client's own keeps it."""
    if not own:
        sealed = unseal(Wire.RESPONSES, part.signature)
        if sealed is None:
            return None
        return {"type": "reasoning", "summary": _summary(part.text), "encrypted_content": sealed}
    proof: Object = {"encrypted_content": show(Wire.RESPONSES, part.signature, redacted=part.redacted)} if part.signature else {}
    return {"type": "reasoning", "summary": _summary(part.text), **part.extra, **proof}


def _summary(text: str) -> list[Json]:
    return [{"type": "summary_text", "text": text}] if text else []


def _call(call: ToolCall) -> Object:
    if call.extra.get("type") == "custom_tool_call":
        return {**call.extra, "call_id": call.id, "name": call.name, "input": custom_input(call.arguments)}
    return {**call.extra, "type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}


def _message(message: Message, parts: Sequence[Text | Image | Opaque]) -> Object:
    role = message.role.value if isinstance(message.role, Role) else message.role
    return {"type": "message", "role": role, **message.extra, "content": _content(parts, message.role, whole=False)}


def _content(parts: Sequence[Text | Image | Opaque], role: Role | str, *, whole: bool) -> Json:
    """Parts as this wire types them by speaker; `whole` allows a single text to be a plain string."""
    if not parts:
        return "" if whole else []
    if whole and len(parts) == 1 and isinstance(only := parts[0], Text) and not only.extra and only.text:
        return only.text
    return list(_parts(parts, "output_text" if role is Role.ASSISTANT else "input_text"))


def _parts(parts: Iterable[Text | Image | Opaque], text_type: str) -> Iterator[Object]:
    for part in parts:
        match part:
            case Text() if part.extra.get("type") == "refusal":
                yield {**part.extra, "refusal": part.text}
            case Text():
                yield {"type": text_type, **part.extra, "text": part.text}
            case Image():
                detail: Object = {} if part.detail is None else {"detail": part.detail}
                yield {**part.extra, "type": "input_image", "image_url": part.url, **detail}
            case Opaque():
                document = read_document(part) if part.wire is not Wire.RESPONSES else None
                yield opaque_value(part) if document is None else responses_document(document)
