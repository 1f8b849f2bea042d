"""Chat completions requests: parse a body into a ChatRequest, and write one for a provider."""

from collections.abc import Iterator, Mapping, Sequence

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
from metaclaw.wires.fields import Fields, Object, literal_json, object_of, put
from metaclaw.wires.format import Document, RequestEdit, ToolOffer
from metaclaw.wires.translation import (
    JSON_OBJECT,
    SCHEMA_NAME,
    ClientTools,
    custom_arguments,
    custom_input,
    custom_offer,
    data_url,
    file_document,
    max_tokens_field,
    only_text,
    opaque_value,
    plain,
    read_document,
)

_ROLES = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
}


def parse_request(body: dict[str, Json]) -> ChatRequest:
    """Parse a body; unknown fields are kept in `extra`."""
    fields = Fields(body, "")
    model = fields.text("model")
    messages = tuple(
        parse_message(item, f"messages[{number}]")
        for number, item in enumerate(fields.list("messages"))
    )
    if not messages:
        raise WireError("messages must not be empty", param="messages")
    tools = fields.each("tools", _tool)
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


def parse_message(value: Json, at: str) -> Message:
    fields = Fields(value, at)
    word = fields.text("role")
    role: Role | str = _ROLES.get(word, word)
    name = fields.maybe_text("name")
    parts: tuple[Part, ...]
    match role:
        case Role.TOOL:
            call_id = fields.text("tool_call_id")
            parts = (ToolResult(call_id, fields.content("content", _part)),)
        case Role.ASSISTANT:
            parts = tuple(_assistant(fields))
        case _:
            if "content" not in fields.rest():
                raise WireError(f"{at}.content is missing", param=f"{at}.content")
            parts = fields.content("content", _part)
    extra = fields.rest()
    if word == "developer":
        extra["role"] = word
    return Message(role, parts, name, extra)


def _assistant(fields: Fields) -> Iterator[Part]:
    for key in ("reasoning_content", "reasoning"):
        if thought := fields.maybe_text(key):
            yield Reasoning(thought)
            break
    yield from fields.content("content", _part)
    if refusal := fields.maybe_text("refusal"):
        yield Text(refusal, {"type": "refusal"})
    yield from fields.each("tool_calls", tool_call)


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
        return ToolCall(
            identity,
            custom.text("name"),
            custom_arguments(custom.text("input")),
            {**fields.rest(), "type": "custom"},
        )
    function = Fields(fields.pop("function"), fields.path("function"))
    return ToolCall(identity, function.text("name"), function.json_text("arguments"), fields.rest())


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
        return ToolChoice(
            ToolMode.REQUIRED, Fields(choice.pop(kind), choice.path(kind)).text("name")
        )
    fields.rest()["tool_choice"] = value
    return None


def tool_mode(word: str) -> ToolMode:
    try:
        return ToolMode(word)
    except ValueError as error:
        raise WireError(
            f"tool_choice must be auto, none, required or an object, not {word!r}",
            param="tool_choice",
        ) from error


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


def render_request(request: ChatRequest) -> dict[str, Json]:
    """The body for a chat provider. A request of another wire loses optional fields; an
    indispensable one raises WireError.
    """
    own = request.wire is Wire.CHAT
    if not own:
        request = plain(request)
    messages: list[Json] = list(_own_messages(request) if own else _foreign_messages(request))
    body: Object = {**(request.extra if own else {}), "model": request.model, "messages": messages}
    if request.tools:
        body["tools"] = [render_tool(tool) for tool in request.tools]
        if request.tool_choice is not None:
            body["tool_choice"] = _render_tool_choice(request)
        if request.parallel_tool_calls is not None:
            body["parallel_tool_calls"] = request.parallel_tool_calls
    _put_sampling(body, request, own=own)
    _put_options(body, request, own=own)
    return body


def _put_sampling(body: Object, request: ChatRequest, *, own: bool) -> None:
    sampling = request.sampling
    options: Object = {
        max_tokens_field(request.model): sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k if own else None,
        "stop": list(sampling.stop) or None,
        "seed": sampling.seed,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "logprobs": sampling.logprobs or None,
        "top_logprobs": sampling.top_logprobs,
        "n": sampling.n if sampling.n > 1 else None,
    }
    put(body, options)


def _put_options(body: Object, request: ChatRequest, *, own: bool) -> None:
    if request.stream:
        body["stream"] = True
    if request.include_usage:
        options = request.extra.get("stream_options") if own else None
        body["stream_options"] = {
            **(options if isinstance(options, dict) else {}),
            "include_usage": True,
        }
    if request.reasoning_effort is not None:
        body["reasoning_effort"] = request.reasoning_effort
    if request.json_schema is not None:
        body["response_format"] = _response_format(dict(request.json_schema))


def _response_format(schema: Object) -> Object:
    if schema == JSON_OBJECT:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": SCHEMA_NAME, **schema}}


def _render_tool_choice(request: ChatRequest) -> Json:
    choice = request.tool_choice
    if choice is None or choice.name is None:
        return None if choice is None else choice.mode.value
    kind = ClientTools(request).client_tool(choice.name).kind.value
    return {"type": kind, kind: {"name": choice.name}}


def render_tool(tool: Tool | Opaque) -> Object:
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
        body: Object = {
            "role": message.role.value if isinstance(message.role, Role) else message.role,
            **message.extra,
        }
        if message.name is not None:
            body["name"] = message.name
        parts: Sequence[Part] = message.parts
        if len(parts) == 1 and isinstance(result := parts[0], ToolResult):
            body["tool_call_id"] = result.call_id
            parts = result.parts
        yield {**body, **_spoken(parts, joined=False)}


def _foreign_messages(request: ChatRequest) -> Iterator[Object]:
    """Messages from another wire. Tool results have only text in this wire, so their other parts
    follow in a user message.
    """
    shown: list[Text | Image | Opaque] = []
    for message in request.messages:
        result = message.parts[0] if message.role is Role.TOOL else None
        if isinstance(result, ToolResult):
            texts = [part for part in result.parts if isinstance(part, Text)]
            yield {
                "role": "tool",
                "tool_call_id": result.call_id,
                "content": "\n".join(part.text for part in texts),
            }
            if len(texts) < len(result.parts):
                shown.append(Text(f"Returned by the tool call {result.call_id}:"))
                shown += (part for part in result.parts if not isinstance(part, Text))
            continue
        if shown:
            yield {"role": "user", **_spoken(shown, joined=False)}
            shown = []
        yield {
            "role": Role(message.role).value,
            **_spoken(message.parts, joined=message.role is not Role.USER),
        }
    if shown:
        yield {"role": "user", **_spoken(shown, joined=False)}


def _spoken(parts: Sequence[Part], *, joined: bool) -> Object:
    """Content, reasoning and tool calls of a message. `joined` joins several texts into one string,
    which every server accepts.
    """
    body: Object = {}
    content = [part for part in parts if isinstance(part, Text | Image | Opaque)]
    calls = [part for part in parts if isinstance(part, ToolCall)]
    thoughts = [part.text for part in parts if isinstance(part, Reasoning) and part.text]
    if joined and all(isinstance(part, Text) for part in content):
        body["content"] = "\n\n".join(
            part.text for part in content if isinstance(part, Text) and part.text
        )
    else:
        body["content"] = _render_content(content)
    if calls:
        body["content"] = body["content"] or None
        body["tool_calls"] = [_tool_call(call) for call in calls]
    if thoughts:
        body["reasoning_content"] = "\n\n".join(thoughts)
    return body


def _render_content(parts: list[Text | Image | Opaque]) -> Json:
    if not parts:
        return ""
    return only_text(parts) or [_render_part(part) for part in parts]


def _render_part(part: Text | Image | Opaque) -> Object:
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
            return (
                opaque_value(part)
                if document is None or part.wire is Wire.CHAT
                else _render_document(document)
            )


def _tool_call(call: ToolCall) -> Object:
    if call.extra.get("type") == "custom":
        return {
            **call.extra,
            "id": call.id,
            "type": "custom",
            "custom": {"name": call.name, "input": custom_input(call.arguments)},
        }
    return {
        **call.extra,
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def offered_tools(value: Object, lenient: bool) -> Iterator[ToolOffer]:
    """A custom tool as a function."""
    if value.get("type") == "custom":
        yield custom_offer(object_of(value.get("custom")), None)


def read_file(value: Object) -> Document | None:
    file = object_of(value.get("file"))
    return (
        file_document(file.get("file_data"), file.get("filename"))
        if value.get("type") == "file"
        else None
    )


def _render_document(document: Document) -> Object:
    if document.text is not None:
        return {"type": "text", "text": document.text}
    if document.payload is None:
        raise WireError(
            "a document given by URL cannot be sent to this provider; send its bytes",
            param="messages",
        )
    name = document.name or "document.pdf"
    return {
        "type": "file",
        "file": {"filename": name, "file_data": data_url(document.media_type, document.payload)},
    }


def wants_json(body: Mapping[str, Json]) -> bool:
    return object_of(body.get("response_format")).get("type") not in (None, "text")


def place_in_system(edit: RequestEdit, text: str) -> None:
    """Insert text at the end of the leading system messages, or as the first message."""
    leading = edit.leading_system_items()
    if leading:
        edit.append_to_item(leading - 1, text)
    else:
        edit.insert_before_item(0, b'{"role":"system","content":' + literal_json(text) + b"}")
