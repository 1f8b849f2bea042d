"""An OpenAI responses body, checked and turned into a ChatRequest. Every input item is one message."""

from collections.abc import Iterator

from metaclaw.domain.chat import (
    ChatRequest,
    Image,
    Json,
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
    Wire,
)
from metaclaw.errors import WireError
from metaclaw.wires.chat.parsing import tool_mode
from metaclaw.wires.fields import Fields, Object, object_of, text_of, wrong_type
from metaclaw.wires.proof import seal
from metaclaw.wires.tools import custom_arguments
from metaclaw.wires.wishes import JSON_OBJECT

_ROLES = {"system": Role.SYSTEM, "developer": Role.SYSTEM, "user": Role.USER, "assistant": Role.ASSISTANT}
LOGPROBS = "message.output_text.logprobs"
_HISTORY_ELSEWHERE = ("previous_response_id", "conversation", "prompt")


def parse_request(body: dict[str, Json]) -> ChatRequest:
    """A request in domain types; fields they do not name are kept in `extra`. Instructions are the first message."""
    fields = Fields(body, "")
    model = fields.text("model")
    messages = (*_instructions(fields), *_input(fields))
    if not messages and not any(fields.rest().get(name) for name in _HISTORY_ELSEWHERE):
        raise WireError("input must not be empty", param="input")
    tools = tuple(_tool(item, f"tools[{number}]") for number, item in enumerate(fields.maybe_list("tools") or ()))
    stream = fields.maybe_bool("stream") or False
    choice, effort, schema = _tool_choice(fields), _effort(fields), _json_schema(fields)
    return ChatRequest(
        wire=Wire.RESPONSES,
        model=model,
        messages=messages,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=fields.maybe_bool("parallel_tool_calls"),
        sampling=Sampling(
            max_tokens=fields.maybe_int("max_output_tokens"),
            temperature=fields.maybe_number("temperature"),
            top_p=fields.maybe_number("top_p"),
            logprobs=_wants_logprobs(fields),
            top_logprobs=fields.maybe_int("top_logprobs"),
        ),
        stream=stream,
        include_usage=stream,
        reasoning_effort=effort,
        json_schema=schema,
        extra=fields.rest(),
    )


def _instructions(fields: Fields) -> Iterator[Message]:
    if text := fields.maybe_text("instructions"):
        yield Message(Role.SYSTEM, (Text(text),))


def _input(fields: Fields) -> Iterator[Message]:
    value = fields.pop("input")
    if isinstance(value, str):
        if value:
            yield Message(Role.USER, (Text(value),))
    elif isinstance(value, list):
        yield from (_item(item, f"input[{number}]") for number, item in enumerate(value))
    elif value is not None:
        raise wrong_type("input", "a string or an array of items", value)


def _item(value: Json, at: str) -> Message:
    fields = Fields(value, at)
    match fields.maybe_text("type") or "message":
        case "message":
            return _message(fields)
        case "reasoning":
            return Message(Role.ASSISTANT, (reasoning(fields),))
        case "function_call":
            return Message(Role.ASSISTANT, (function_call(fields),))
        case "custom_tool_call":
            return Message(Role.ASSISTANT, (custom_call(fields),))
        case "function_call_output":
            return Message(Role.TOOL, (_result(fields, {}),))
        case "custom_tool_call_output" as kind:
            return Message(Role.TOOL, (_result(fields, {"type": kind}),))
        case kind:
            return Message(_role_of(kind, object_of(value)), (Opaque(Wire.RESPONSES, value),))


def _role_of(kind: str, item: Object) -> Role:
    if (word := text_of(item.get("role"))) in _ROLES:
        return _ROLES[word]
    return Role.TOOL if kind.endswith("_output") else Role.ASSISTANT


def _message(fields: Fields) -> Message:
    word = fields.text("role")
    if "content" not in fields.rest():
        raise WireError(f"{fields.path('content')} is missing", param=fields.path("content"))
    parts = tuple(_content(fields, "content"))
    extra = fields.rest()
    if word == "developer":
        extra["role"] = word
    return Message(_ROLES.get(word, word), parts, extra=extra)


def _content(fields: Fields, key: str) -> Iterator[Text | Image | Opaque]:
    value = fields.pop(key)
    if value is None or value == "":
        return
    if isinstance(value, str):
        yield Text(value)
    elif isinstance(value, list):
        yield from (_part(item, f"{fields.path(key)}[{number}]") for number, item in enumerate(value))
    else:
        raise wrong_type(fields.path(key), "a string or an array of parts", value)


def _part(value: Json, at: str) -> Text | Image | Opaque:
    fields = Fields(value, at)
    match fields.text("type"):
        case "input_text" | "output_text" | "text":
            return Text(fields.text("text"), fields.rest())
        case "refusal":
            return Text(fields.text("refusal"), {**fields.rest(), "type": "refusal"})
        case "input_image" if object_of(value).get("image_url"):
            url, detail = fields.text("image_url"), fields.maybe_text("detail")
            return Image(url, detail, {name: left for name, left in fields.rest().items() if left is not None})
        case _:
            return Opaque(Wire.RESPONSES, value)


def reasoning(fields: Fields) -> Reasoning:
    """A reasoning item: its summary is the text; anything richer is kept beside it, so that it goes back as it came."""
    summary, content = fields.maybe_list("summary") or [], fields.maybe_list("content") or []
    signature, redacted = seal(Wire.RESPONSES, fields.maybe_text("encrypted_content"))
    extra = fields.rest()
    if content or len(summary) > 1:
        extra["summary"] = summary
    if content:
        extra["content"] = content
    said = [text_of(object_of(part).get("text")) for part in summary or content]
    return Reasoning("\n\n".join(said), signature, redacted, extra)


def function_call(fields: Fields) -> ToolCall:
    """A call of a function; the item's own id, status and namespace are kept beside it."""
    return ToolCall(fields.text("call_id"), fields.text("name"), fields.maybe_text("arguments") or "", fields.rest())


def custom_call(fields: Fields) -> ToolCall:
    """A call of a custom tool: its free text, as the function that stands for it elsewhere would get it."""
    call_id, name, text = fields.text("call_id"), fields.text("name"), fields.text("input")
    return ToolCall(call_id, name, custom_arguments(text), {**fields.rest(), "type": "custom_tool_call"})


def _result(fields: Fields, kind: Object) -> ToolResult:
    call_id = fields.text("call_id")
    return ToolResult(call_id, tuple(_content(fields, "output")), extra={**fields.rest(), **kind})


def _tool(value: Json, at: str) -> Tool | Opaque:
    fields = Fields(value, at)
    if fields.text("type") != "function":
        return Opaque(Wire.RESPONSES, value)
    name, described = fields.text("name"), fields.maybe_text("description")
    parameters, strict = fields.maybe_object("parameters") or {}, fields.maybe_bool("strict")
    return Tool(name, described, parameters, strict, fields.rest())


def _tool_choice(fields: Fields) -> ToolChoice | None:
    value = fields.pop("tool_choice")
    if value is None:
        return None
    if isinstance(value, str):
        return ToolChoice(tool_mode(value))
    choice = Fields(value, "tool_choice")
    if choice.text("type") in ("function", "custom"):
        return ToolChoice(ToolMode.REQUIRED, choice.text("name"))
    fields.rest()["tool_choice"] = value
    return None


def _effort(fields: Fields) -> str | None:
    inner = Fields(fields.maybe_object("reasoning") or {}, "reasoning")
    effort = inner.maybe_text("effort")
    if inner.rest():
        fields.rest()["reasoning"] = inner.rest()
    return effort


def _json_schema(fields: Fields) -> Object | None:
    text = Fields(fields.maybe_object("text") or {}, "text")
    format_ = text.maybe_object("format")
    schema: Object | None = None
    if format_ is not None:
        inner = Fields(format_, "text.format")
        match inner.text("type"):
            case "json_object":
                schema = dict(JSON_OBJECT)
            case "json_schema":
                schema = inner.rest()
            case "text":
                pass
            case _:
                text.rest()["format"] = format_
    if text.rest():
        fields.rest()["text"] = text.rest()
    return schema


def _wants_logprobs(fields: Fields) -> bool:
    include = fields.maybe_list("include") or []
    others = [name for name in include if name != LOGPROBS]
    if others:
        fields.rest()["include"] = others
    return len(others) < len(include)
