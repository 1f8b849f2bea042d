"""OpenAI responses requests: parse a body into a ChatRequest, with one message per input item, and
write one for a provider.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

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
from metaclaw.wires.chat.requests import tool_mode
from metaclaw.wires.fields import (
    Fields,
    Object,
    list_of,
    literal_json,
    object_of,
    put,
    text_of,
    wrong_type,
)
from metaclaw.wires.format import ClientTool, Document, Kind, RequestEdit, ToolOffer
from metaclaw.wires.translation import (
    JSON_OBJECT,
    SCHEMA_NAME,
    ClientTools,
    client_signature,
    custom_arguments,
    custom_input,
    custom_offer,
    data_url,
    file_document,
    flat_name,
    only_text,
    opaque_value,
    plain,
    provider_signature,
    read_document,
    require_one_answer,
    tagged_signature,
)

_ROLES = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
}
LOGPROBS = "message.output_text.logprobs"
_HISTORY_ELSEWHERE = ("previous_response_id", "conversation", "prompt")


def parse_request(body: dict[str, Json]) -> ChatRequest:
    """Parse a body; unknown fields are kept in `extra`. Instructions become the first message."""
    fields = Fields(body, "")
    model = fields.text("model")
    messages = (*_instructions(fields), *_input(fields))
    if not messages and not any(fields.rest().get(name) for name in _HISTORY_ELSEWHERE):
        raise WireError("input must not be empty", param="input")
    tools = fields.each("tools", _tool)
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
        yield from (parse_item(item, f"input[{number}]") for number, item in enumerate(value))
    elif value is not None:
        raise wrong_type("input", "a string or an array of items", value)


def parse_item(value: Json, at: str) -> Message:
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
    parts = fields.content("content", _part)
    extra = fields.rest()
    if word == "developer":
        extra["role"] = word
    return Message(_ROLES.get(word, word), parts, extra=extra)


def _part(value: Json, at: str) -> Text | Image | Opaque:
    fields = Fields(value, at)
    match fields.text("type"):
        case "input_text" | "output_text" | "text":
            return Text(fields.text("text"), fields.rest())
        case "refusal":
            return Text(fields.text("refusal"), {**fields.rest(), "type": "refusal"})
        case "input_image" if object_of(value).get("image_url"):
            url, detail = fields.text("image_url"), fields.maybe_text("detail")
            return Image(
                url,
                detail,
                {name: left for name, left in fields.rest().items() if left is not None},
            )
        case _:
            return Opaque(Wire.RESPONSES, value)


def reasoning(fields: Fields) -> Reasoning:
    """A reasoning item: its summary is the text. Content and longer summaries are kept in `extra`,
    to be sent back unchanged.
    """
    summary, content = fields.maybe_list("summary") or [], fields.maybe_list("content") or []
    signature, redacted = tagged_signature(Wire.RESPONSES, fields.maybe_text("encrypted_content"))
    extra = fields.rest()
    if content or len(summary) > 1:
        extra["summary"] = summary
    if content:
        extra["content"] = content
    said = [text_of(object_of(part).get("text")) for part in summary or content]
    return Reasoning("\n\n".join(said), signature, redacted, extra)


def function_call(fields: Fields) -> ToolCall:
    """A call of a function; the item's id, status and namespace are kept in `extra`."""
    return ToolCall(
        fields.text("call_id"), fields.text("name"), fields.json_text("arguments"), fields.rest()
    )


def custom_call(fields: Fields) -> ToolCall:
    """A call of a custom tool, as a call of the function that other wires offer in its place."""
    call_id, name, text = fields.text("call_id"), fields.text("name"), fields.text("input")
    return ToolCall(
        call_id, name, custom_arguments(text), {**fields.rest(), "type": "custom_tool_call"}
    )


def _result(fields: Fields, kind: Object) -> ToolResult:
    call_id = fields.text("call_id")
    return ToolResult(call_id, fields.content("output", _part), extra={**fields.rest(), **kind})


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


# Optional fields that both of OpenAI's wires have.
_SHARED_HINTS = (
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
)
_ENCRYPTED = "reasoning.encrypted_content"


def render_request(request: ChatRequest) -> dict[str, Json]:
    """The body for a responses provider. A request of another wire loses optional fields; an
    indispensable one raises WireError.
    """
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
    _put_options(body, request)
    return body


def _refuse(request: ChatRequest) -> None:
    require_one_answer(request)
    if request.sampling.stop:
        message = "stop sequences cannot be translated: this model's provider has none"
        raise WireError(
            message,
            code="unsupported_parameter",
            param="stop" if request.wire is Wire.CHAT else "stop_sequences",
        )


def _stateless(request: ChatRequest) -> Object:
    """Fields for a client that sends the whole conversation each time: store nothing, and return
    reasoning encrypted.
    """
    hints = (
        {name: request.extra[name] for name in _SHARED_HINTS if name in request.extra}
        if request.wire is Wire.CHAT
        else {}
    )
    return {"store": False, **hints, "include": [_ENCRYPTED]}


def _put_options(body: Object, request: ChatRequest) -> None:
    sampling = request.sampling
    options: Object = {
        "max_output_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_logprobs": sampling.top_logprobs,
        "stream": request.stream or None,
    }
    put(body, options)
    if sampling.logprobs:
        body["include"] = [*list_of(body.get("include")), LOGPROBS]
    if request.reasoning_effort is not None:
        body["reasoning"] = {**object_of(body.get("reasoning")), "effort": request.reasoning_effort}
    if request.json_schema is not None:
        body["text"] = {
            **object_of(body.get("text")),
            "format": text_format(dict(request.json_schema)),
        }


def text_format(schema: Object) -> Object:
    return (
        {"type": "json_object"}
        if schema == JSON_OBJECT
        else {"type": "json_schema", "name": SCHEMA_NAME, **schema}
    )


def tool_choice(request: ChatRequest) -> Json:
    choice = request.tool_choice
    if choice is None or choice.name is None:
        return None if choice is None else choice.mode.value
    return {"type": ClientTools(request).client_tool(choice.name).kind.value, "name": choice.name}


def render_tool(tool: Tool | Opaque, *, own: bool) -> Object:
    """A tool definition. In this wire functions are strict by default, so `strict` is set for other
    wires.
    """
    if isinstance(tool, Opaque):
        return opaque_value(tool)
    body: Object = {
        **tool.extra,
        "type": "function",
        "name": tool.name,
        "parameters": dict(tool.parameters),
    }
    if tool.description is not None:
        body["description"] = tool.description
    strict = tool.strict if own else tool.strict or False
    return body if strict is None else {**body, "strict": strict}


def _put_messages(body: Object, request: ChatRequest, *, own: bool) -> None:
    messages: Sequence[Message] = request.messages
    if messages and (text := _render_instructions(messages[0])) is not None:
        body["instructions"] = text
        messages = messages[1:]
    body["input"] = [item for message in messages for item in _items(message, own=own)]


def _render_instructions(first: Message) -> str | None:
    """The text of the first message if it is a single plain system text, which has its own field;
    else None.
    """
    if first.role is not Role.SYSTEM or first.extra:
        return None
    return only_text(first.parts)


def _items(message: Message, *, own: bool) -> Iterator[Object]:
    said: list[Text | Image | Opaque] = []
    spoke = False
    for part in message.parts:
        if isinstance(part, Text | Image) or (isinstance(part, Opaque) and _is_content(part)):
            said.append(part)
            continue
        if said:
            yield _render_message(message, said)
            said, spoke = [], True
        if (item := _render_item(part, own=own)) is not None:
            yield item
        spoke = True
    if said or not spoke:
        yield _render_message(message, said)


def _is_content(part: Opaque) -> bool:
    kind = text_of(object_of(part.value).get("type"))
    return part.wire is not Wire.RESPONSES or kind.startswith(("input_", "output_"))


def _render_item(part: Part, *, own: bool) -> Object | None:
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
                "output": _render_content(part.parts, Role.USER, whole=True),
            }
        case Opaque():
            return opaque_value(part)
        case _:
            return None


def _reasoning(part: Reasoning, *, own: bool) -> Object | None:
    """A reasoning item. For a request of another wire, None unless an OpenAI model signed it:
    providers refuse it otherwise.
    """
    summary: list[Json] = [{"type": "summary_text", "text": part.text}] if part.text else []
    item: Object = {"type": "reasoning", "summary": summary}
    if not own:
        signature = provider_signature(Wire.RESPONSES, part.signature)
        return None if signature is None else {**item, "encrypted_content": signature}
    if not part.signature:
        return {**item, **part.extra}
    return {
        **item,
        **part.extra,
        "encrypted_content": client_signature(
            Wire.RESPONSES, part.signature, redacted=part.redacted
        ),
    }


def _call(call: ToolCall) -> Object:
    if call.extra.get("type") == "custom_tool_call":
        return {
            **call.extra,
            "call_id": call.id,
            "name": call.name,
            "input": custom_input(call.arguments),
        }
    return {
        **call.extra,
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
    }


def _render_message(message: Message, parts: Sequence[Text | Image | Opaque]) -> Object:
    role = message.role.value if isinstance(message.role, Role) else message.role
    return {
        "type": "message",
        "role": role,
        **message.extra,
        "content": _render_content(parts, message.role, whole=False),
    }


def _render_content(
    parts: Sequence[Text | Image | Opaque], role: Role | str, *, whole: bool
) -> Json:
    """Content with the part types of the role; `whole` allows a single text to be a plain
    string.
    """
    if not parts:
        return "" if whole else []
    if whole and (text := only_text(parts)):
        return text
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
                yield opaque_value(part) if document is None else _render_document(document)


def offered_tools(
    value: Object, lenient: bool, namespace: str | None = None
) -> Iterator[ToolOffer]:
    """Functions and custom tools, including those in namespaces."""
    match value.get("type"):
        case "function":
            name = text_of(value.get("name"))
            strict = value.get("strict")
            described = text_of(value.get("description")) or None
            tool = Tool(
                flat_name(namespace, name),
                described,
                object_of(value.get("parameters")),
                strict if isinstance(strict, bool) else None,
            )
            yield ToolOffer(tool, ClientTool(Kind.FUNCTION, name, namespace))
        case "custom":
            yield custom_offer(value, namespace)
        case "namespace":
            for inner in list_of(value.get("tools")):
                yield from offered_tools(
                    object_of(inner), lenient, text_of(value.get("name")) or None
                )
        case _:
            pass


def read_file(value: Object) -> Document | None:
    if value.get("type") != "input_file":
        return None
    if url := text_of(value.get("file_url")):
        return Document(text_of(value.get("filename")) or None, url=url)
    return file_document(value.get("file_data"), value.get("filename"))


def _render_document(document: Document) -> Object:
    if document.text is not None:
        return {"type": "input_text", "text": document.text}
    if document.payload is None:
        return {"type": "input_file", "file_url": document.url}
    name = document.name or "document.pdf"
    return {
        "type": "input_file",
        "filename": name,
        "file_data": data_url(document.media_type, document.payload),
    }


def wants_json(body: Mapping[str, Json]) -> bool:
    return object_of(object_of(body.get("text")).get("format")).get("type") not in (None, "text")


def place_in_system(edit: RequestEdit, text: str) -> None:
    """Insert text at the end of the instructions, or as a developer message behind the leading
    system messages.
    """
    instructions, spoken, items = (
        edit.parsed.get("instructions"),
        edit.parsed.get("input"),
        edit.items,
    )
    if isinstance(instructions, str):
        edit.append_to_field("instructions", text)
    elif items is not None:
        _insert_developer_item(edit, developer_item(text), items)
    elif not isinstance(spoken, str):
        edit.refuse("the input is neither a string nor a list")
    elif "instructions" not in edit.parsed:
        edit.add_field("instructions", literal_json(text))
    else:
        # Insertions cannot replace the null in `instructions`, so the input string becomes a list
        # of messages.
        edit.wrap_field(
            "input",
            b"[" + developer_item(text) + b',{"type":"message","role":"user","content":',
            b"}]",
        )


def _insert_developer_item(edit: RequestEdit, item: bytes, spoken: Sequence[Json]) -> None:
    leading = edit.leading_system_items()
    if leading:
        edit.insert_after_item(leading - 1, item)
    elif spoken:
        edit.insert_before_item(0, item)
    else:
        edit.fill_list("input", item)


def developer_item(text: str) -> bytes:
    """A message of the developer with this text."""
    return (
        b'{"type":"message","role":"developer","content":[{"type":"input_text","text":'
        + literal_json(text)
        + b"}]}"
    )
