"""A chat completions body, checked and turned into a ChatRequest."""

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
from metaclaw.wires.fields import Fields, Object, wrong_type
from metaclaw.wires.tools import custom_arguments
from metaclaw.wires.wishes import JSON_OBJECT

_ROLES = {"system": Role.SYSTEM, "developer": Role.SYSTEM, "user": Role.USER, "assistant": Role.ASSISTANT, "tool": Role.TOOL}


def parse_request(body: dict[str, Json]) -> ChatRequest:
    """A request in domain types; fields they do not name are kept in `extra`."""
    fields = Fields(body, "")
    model = fields.text("model")
    messages = tuple(_message(item, f"messages[{number}]") for number, item in enumerate(fields.list("messages")))
    if not messages:
        raise WireError("messages must not be empty", param="messages")
    tools = tuple(_tool(item, f"tools[{number}]") for number, item in enumerate(fields.maybe_list("tools") or ()))
    include_usage = _include_usage(fields)
    effort = fields.maybe_text("reasoning_effort")
    choice, schema = _tool_choice(fields), _json_schema(fields)
    return ChatRequest(
        wire=Wire.CHAT,
        model=model,
        messages=messages,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=fields.maybe_bool("parallel_tool_calls"),
        sampling=_sampling(fields),
        stream=fields.maybe_bool("stream") or False,
        include_usage=include_usage,
        reasoning_effort=effort,
        json_schema=schema,
        extra=fields.rest(),
    )


def _include_usage(fields: Fields) -> bool:
    options = Fields(fields.maybe_object("stream_options") or {}, "stream_options")
    wanted = options.maybe_bool("include_usage") or False
    if options.rest():
        fields.rest()["stream_options"] = options.rest()
    return wanted


def _sampling(fields: Fields) -> Sampling:
    older, newer = fields.maybe_int("max_tokens"), fields.maybe_int("max_completion_tokens")
    return Sampling(
        max_tokens=older if newer is None else newer,
        temperature=fields.maybe_number("temperature"),
        top_p=fields.maybe_number("top_p"),
        top_k=fields.maybe_int("top_k"),
        stop=fields.texts("stop"),
        seed=fields.maybe_int("seed"),
        frequency_penalty=fields.maybe_number("frequency_penalty"),
        presence_penalty=fields.maybe_number("presence_penalty"),
        logprobs=fields.maybe_bool("logprobs") or False,
        top_logprobs=fields.maybe_int("top_logprobs"),
        n=_count(fields),
    )


def _count(fields: Fields) -> int:
    count = fields.maybe_int("n")
    if count is not None and count < 1:
        raise WireError("n must be at least 1", param="n")
    return 1 if count is None else count


def _message(value: Json, at: str) -> Message:
    fields = Fields(value, at)
    word = fields.text("role")
    role: Role | str = _ROLES.get(word, word)
    name = fields.maybe_text("name")
    parts: tuple[Part, ...]
    match role:
        case Role.TOOL:
            call_id = fields.text("tool_call_id")
            parts = (ToolResult(call_id, tuple(_content(fields))),)
        case Role.ASSISTANT:
            parts = tuple(_assistant(fields))
        case _:
            if "content" not in fields.rest():
                raise WireError(f"{at}.content is missing", param=f"{at}.content")
            parts = tuple(_content(fields))
    extra = fields.rest()
    if word == "developer":
        extra["role"] = word
    return Message(role, parts, name, extra)


def _assistant(fields: Fields) -> Iterator[Part]:
    for key in ("reasoning_content", "reasoning"):
        if thought := fields.maybe_text(key):
            yield Reasoning(thought)
            break
    yield from _content(fields)
    if refusal := fields.maybe_text("refusal"):
        yield Text(refusal, {"type": "refusal"})
    for number, call in enumerate(fields.maybe_list("tool_calls") or ()):
        yield tool_call(call, f"{fields.path('tool_calls')}[{number}]")


def _content(fields: Fields) -> Iterator[Text | Image | Opaque]:
    value = fields.pop("content")
    if value is None or value == "":
        return
    if isinstance(value, str):
        yield Text(value)
    elif isinstance(value, list):
        yield from (_part(item, f"{fields.path('content')}[{number}]") for number, item in enumerate(value))
    else:
        raise wrong_type(fields.path("content"), "a string or an array of parts", value)


def _part(value: Json, at: str) -> Text | Image | Opaque:
    if isinstance(value, str):
        return Text(value)
    fields = Fields(value, at)
    match fields.text("type"):
        case "text":
            return Text(fields.text("text"), fields.rest())
        case "refusal":
            return Text(fields.text("refusal"), {**fields.rest(), "type": "refusal"})
        case "image_url":
            return _image(fields)
        case _:
            return Opaque(Wire.CHAT, value)


def _image(fields: Fields) -> Image:
    value = fields.pop("image_url")
    inner = Fields({"url": value} if isinstance(value, str) else value, fields.path("image_url"))
    return Image(inner.text("url"), inner.maybe_text("detail"), fields.rest())


def tool_call(value: Json, at: str) -> ToolCall:
    """A tool call of a message, a function's or a custom tool's."""
    fields = Fields(value, at)
    identity = fields.text("id")
    kind = fields.maybe_text("type") or "function"
    if kind == "custom":
        custom = Fields(fields.pop("custom"), fields.path("custom"))
        return ToolCall(identity, custom.text("name"), custom_arguments(custom.text("input")), {**fields.rest(), "type": "custom"})
    function = Fields(fields.pop("function"), fields.path("function"))
    return ToolCall(identity, function.text("name"), function.maybe_text("arguments") or "", fields.rest())


def _tool(value: Json, at: str) -> Tool | Opaque:
    fields = Fields(value, at)
    if (fields.maybe_text("type") or "function") != "function":
        return Opaque(Wire.CHAT, value)
    function = Fields(fields.pop("function"), fields.path("function"))
    name, described = function.text("name"), function.maybe_text("description")
    parameters, strict = function.maybe_object("parameters") or {}, function.maybe_bool("strict")
    return Tool(name, described, parameters, strict, {**function.rest(), **fields.rest()})


def _tool_choice(fields: Fields) -> ToolChoice | None:
    value = fields.pop("tool_choice")
    if value is None:
        return None
    if isinstance(value, str):
        return ToolChoice(tool_mode(value))
    choice = Fields(value, "tool_choice")
    kind = choice.text("type")
    if kind in ("function", "custom"):
        return ToolChoice(ToolMode.REQUIRED, Fields(choice.pop(kind), choice.path(kind)).text("name"))
    fields.rest()["tool_choice"] = value
    return None


def tool_mode(word: str) -> ToolMode:
    """A mode by its OpenAI name."""
    try:
        return ToolMode(word)
    except ValueError as error:
        raise WireError(f"tool_choice must be auto, none, required or an object, not {word!r}", param="tool_choice") from error


def _json_schema(fields: Fields) -> Object | None:
    value = fields.maybe_object("response_format")
    if value is None:
        return None
    inner = Fields(value, "response_format")
    match inner.text("type"):
        case "text":
            return None
        case "json_object":
            return dict(JSON_OBJECT)
        case "json_schema":
            return Fields(inner.pop("json_schema"), "response_format.json_schema").rest()
        case _:
            fields.rest()["response_format"] = value
            return None
