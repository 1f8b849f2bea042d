"""An Anthropic messages body, checked and turned into a ChatRequest."""

from collections.abc import Iterator

from metaclaw.domain.chat import (
    ChatRequest,
    Image,
    Json,
    Message,
    Opaque,
    Part,
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
from metaclaw.wires.fields import Fields, Object, encode_text, object_of, text_of, wrong_type
from metaclaw.wires.media import data_url
from metaclaw.wires.proof import seal

_ROLES = {"system": Role.SYSTEM, "user": Role.USER, "assistant": Role.ASSISTANT}
_MODES = {"auto": ToolMode.AUTO, "none": ToolMode.NONE, "any": ToolMode.REQUIRED, "tool": ToolMode.REQUIRED}


def parse_request(body: dict[str, Json]) -> ChatRequest:
    """A request in domain types; fields they do not name are kept in `extra`. The system text is the first message."""
    fields = Fields(body, "")
    model = fields.text("model")
    system = tuple(_content(fields, "system"))
    messages = tuple(_message(item, f"messages[{number}]") for number, item in enumerate(fields.list("messages")))
    if not messages:
        raise WireError("messages must not be empty", param="messages")
    tools = tuple(_tool(item, f"tools[{number}]") for number, item in enumerate(fields.maybe_list("tools") or ()))
    choice, parallel = _tool_choice(fields)
    effort, schema = _output_config(fields)
    stream = fields.maybe_bool("stream") or False
    return ChatRequest(
        wire=Wire.MESSAGES,
        model=model,
        messages=(Message(Role.SYSTEM, system), *messages) if system else messages,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        sampling=Sampling(
            max_tokens=fields.maybe_int("max_tokens"),
            temperature=fields.maybe_number("temperature"),
            top_p=fields.maybe_number("top_p"),
            top_k=fields.maybe_int("top_k"),
            stop=fields.texts("stop_sequences"),
        ),
        stream=stream,
        include_usage=stream,
        reasoning_effort=effort,
        json_schema=schema,
        extra=fields.rest(),
    )


def _message(value: Json, at: str) -> Message:
    fields = Fields(value, at)
    word = fields.text("role")
    if "content" not in fields.rest():
        raise WireError(f"{at}.content is missing", param=f"{at}.content")
    return Message(_ROLES.get(word, word), tuple(_content(fields, "content")), extra=fields.rest())


def _content(fields: Fields, key: str) -> Iterator[Part]:
    value = fields.pop(key)
    if value is None or value == "":
        return
    if isinstance(value, str):
        yield Text(value)
    elif isinstance(value, list):
        yield from (_block(item, f"{fields.path(key)}[{number}]") for number, item in enumerate(value))
    else:
        raise wrong_type(fields.path(key), "a string or an array of blocks", value)


def _block(value: Json, at: str) -> Part:
    fields = Fields(value, at)
    match fields.text("type"):
        case "text":
            return Text(fields.text("text"), fields.rest())
        case "image":
            return _image(fields) or Opaque(Wire.MESSAGES, value)
        case "thinking" | "redacted_thinking" as kind:
            return thinking(fields, redacted=kind == "redacted_thinking")
        case "tool_use":
            return tool_use(fields)
        case "tool_result":
            call_id, is_error = fields.text("tool_use_id"), fields.maybe_bool("is_error") or False
            said = tuple(part for part in _content(fields, "content"))
            return ToolResult(call_id, _shown(said, fields.path("content")), is_error, fields.rest())
        case _:
            return Opaque(Wire.MESSAGES, value)


def _shown(parts: tuple[Part, ...], at: str) -> tuple[Text | Image | Opaque, ...]:
    shown = tuple(part for part in parts if isinstance(part, Text | Image | Opaque))
    if len(shown) < len(parts):
        raise WireError(f"{at} may hold text, images and documents only", param=at)
    return shown


def thinking(fields: Fields, *, redacted: bool) -> Reasoning:
    """A block of thinking, in the clear or not."""
    if redacted:
        signature, _ = seal(Wire.MESSAGES, fields.text("data"))
        return Reasoning("", signature, redacted=True, extra=fields.rest())
    signature, hidden = seal(Wire.MESSAGES, fields.maybe_text("signature"))
    return Reasoning(fields.maybe_text("thinking") or "", signature, hidden, fields.rest())


def tool_use(fields: Fields) -> ToolCall:
    """A block that calls a tool; its input is an object on this wire and JSON text in the domain."""
    identity, name = fields.text("id"), fields.text("name")
    return ToolCall(identity, name, encode_text(fields.maybe_object("input") or {}), fields.rest())


def _image(fields: Fields) -> Image | None:
    source = object_of(fields.pop("source"))
    extra = fields.rest()
    match source.get("type"):
        case "base64":
            return Image(data_url(text_of(source.get("media_type")), text_of(source.get("data"))), extra=extra)
        case "url":
            return Image(text_of(source.get("url")), extra=extra)
        case _:
            return None


def _tool(value: Json, at: str) -> Tool | Opaque:
    fields = Fields(value, at)
    if (fields.maybe_text("type") or "custom") != "custom":
        return Opaque(Wire.MESSAGES, value)
    name, described = fields.text("name"), fields.maybe_text("description")
    schema, strict = fields.maybe_object("input_schema") or {}, fields.maybe_bool("strict")
    return Tool(name, described, schema, strict, fields.rest())


def _tool_choice(fields: Fields) -> tuple[ToolChoice | None, bool | None]:
    value = fields.maybe_object("tool_choice")
    if value is None:
        return None, None
    choice = Fields(value, "tool_choice")
    kind, name = choice.text("type"), choice.maybe_text("name")
    if kind not in _MODES:
        raise WireError(f"tool_choice.type must be auto, any, tool or none, not {kind!r}", param="tool_choice.type")
    single = choice.maybe_bool("disable_parallel_tool_use")
    return ToolChoice(_MODES[kind], name if kind == "tool" else None), None if single is None else not single


def _output_config(fields: Fields) -> tuple[str | None, Object | None]:
    config = Fields(fields.maybe_object("output_config") or {}, "output_config")
    effort, format_ = config.maybe_text("effort"), config.maybe_object("format")
    schema: Object | None = None
    if format_ is not None:
        inner = Fields(format_, "output_config.format")
        if (kind := inner.text("type")) != "json_schema":
            raise WireError(f"output_config.format.type must be json_schema, not {kind!r}", param="output_config.format.type")
        schema = {**inner.rest(), "schema": inner.maybe_object("schema") or {}}
    if config.rest():
        fields.rest()["output_config"] = config.rest()
    return effort, schema
