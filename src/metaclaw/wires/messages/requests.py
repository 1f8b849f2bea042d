"""Anthropic messages requests: parse a body into a ChatRequest, and write one for a provider."""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from metaclaw.wires.fields import (
    Fields,
    Object,
    decode_or_text,
    literal_json,
    object_of,
    put,
    text_of,
)
from metaclaw.wires.format import Document, RequestEdit, ToolOffer
from metaclaw.wires.translation import (
    DEFAULT_MAX_TOKENS,
    JSON_OBJECT,
    anthropic_effort,
    data_url,
    only_text,
    opaque_value,
    plain,
    provider_signature,
    read_document,
    require_one_answer,
    split_data_url,
    tagged_signature,
)

_ROLES = {"system": Role.SYSTEM, "user": Role.USER, "assistant": Role.ASSISTANT}
_MODES = {
    "auto": ToolMode.AUTO,
    "none": ToolMode.NONE,
    "any": ToolMode.REQUIRED,
    "tool": ToolMode.REQUIRED,
}


def parse_request(body: dict[str, Json]) -> ChatRequest:
    """Parse a body; unknown fields are kept in `extra`. The system text becomes the first
    message.
    """
    fields = Fields(body, "")
    model = fields.text("model")
    system = fields.content("system", _block, "blocks")
    messages = tuple(
        parse_message(item, f"messages[{number}]")
        for number, item in enumerate(fields.list("messages"))
    )
    if not messages:
        raise WireError("messages must not be empty", param="messages")
    tools = fields.each("tools", _tool)
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


def parse_message(value: Json, at: str) -> Message:
    fields = Fields(value, at)
    word = fields.text("role")
    if "content" not in fields.rest():
        raise WireError(f"{at}.content is missing", param=f"{at}.content")
    return Message(
        _ROLES.get(word, word), fields.content("content", _block, "blocks"), extra=fields.rest()
    )


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
            said = _shown(fields.content("content", _block, "blocks"), fields.path("content"))
            return ToolResult(call_id, said, is_error, fields.rest())
        case _:
            return Opaque(Wire.MESSAGES, value)


def _shown(parts: tuple[Part, ...], at: str) -> tuple[Text | Image | Opaque, ...]:
    shown = tuple(part for part in parts if isinstance(part, Text | Image | Opaque))
    if len(shown) < len(parts):
        raise WireError(f"{at} may hold text, images and documents only", param=at)
    return shown


def thinking(fields: Fields, *, redacted: bool) -> Reasoning:
    if redacted:
        signature, _ = tagged_signature(Wire.MESSAGES, fields.text("data"))
        return Reasoning("", signature, redacted=True, extra=fields.rest())
    signature, hidden = tagged_signature(Wire.MESSAGES, fields.maybe_text("signature"))
    return Reasoning(fields.maybe_text("thinking") or "", signature, hidden, fields.rest())


def tool_use(fields: Fields) -> ToolCall:
    """A `tool_use` block. Its input is an object in this wire and JSON text in the domain."""
    identity, name = fields.text("id"), fields.text("name")
    return ToolCall(identity, name, fields.json_text("input") or "{}", fields.rest())


def _image(fields: Fields) -> Image | None:
    source = object_of(fields.pop("source"))
    extra = fields.rest()
    match source.get("type"):
        case "base64":
            return Image(
                data_url(text_of(source.get("media_type")), text_of(source.get("data"))),
                extra=extra,
            )
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
        raise WireError(
            f"tool_choice.type must be auto, any, tool or none, not {kind!r}",
            param="tool_choice.type",
        )
    single = choice.maybe_bool("disable_parallel_tool_use")
    return ToolChoice(_MODES[kind], name if kind == "tool" else None), (
        None if single is None else not single
    )


def _output_config(fields: Fields) -> tuple[str | None, Object | None]:
    config = Fields(fields.maybe_object("output_config") or {}, "output_config")
    effort, format_ = config.maybe_text("effort"), config.maybe_object("format")
    schema: Object | None = None
    if format_ is not None:
        inner = Fields(format_, "output_config.format")
        if (kind := inner.text("type")) != "json_schema":
            raise WireError(
                f"output_config.format.type must be json_schema, not {kind!r}",
                param="output_config.format.type",
            )
        schema = {**inner.rest(), "schema": inner.maybe_object("schema") or {}}
    if config.rest():
        fields.rest()["output_config"] = config.rest()
    return effort, schema


_ID = re.compile(r"[^a-zA-Z0-9_-]")
_JSON_IN_WORDS = "Answer with one valid JSON object and nothing else."
_OPENING = "(The conversation begins with the assistant.)"


def render_request(request: ChatRequest) -> dict[str, Json]:
    """The body for an Anthropic provider. Other wires' requests lose optional fields; an
    indispensable one raises WireError.
    """
    own = request.wire is Wire.MESSAGES
    if not own:
        request = alternating(plain(request), Wire.MESSAGES)
    system, spoken = _split_system(request.messages)
    body: Object = {
        **(request.extra if own else {}),
        "model": request.model,
        "messages": [_render_message(message) for message in spoken],
    }
    if system is not None:
        body["system"] = _render_content(system.parts)
    if not own or request.sampling.max_tokens is not None:  # a request to count tokens has none
        body["max_tokens"] = request.sampling.max_tokens or DEFAULT_MAX_TOKENS
    if request.tools:
        body["tools"] = [render_tool(tool) for tool in request.tools]
        if (choice := _render_tool_choice(request)) is not None:
            body["tool_choice"] = choice
    _put_sampling(body, request, own=own)
    _put_output_config(body, request, own=own)
    if request.stream:
        body["stream"] = True
    return body


def _put_sampling(body: Object, request: ChatRequest, *, own: bool) -> None:
    sampling = request.sampling
    require_one_answer(request)
    if sampling.logprobs:
        raise WireError(
            "this model's provider does not return log-probabilities",
            code="unsupported_parameter",
            param="logprobs",
        )
    temperature = (
        sampling.temperature
        if own or sampling.temperature is None
        else min(sampling.temperature, 1.0)
    )
    options: Object = {
        "temperature": temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "stop_sequences": list(sampling.stop) or None,
    }
    put(body, options)


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
    if isinstance(tool, Opaque):
        return opaque_value(tool)
    body: Object = {
        **tool.extra,
        "name": tool.name,
        "input_schema": dict(tool.parameters) or {"type": "object", "properties": {}},
    }
    if tool.description is not None:
        body["description"] = tool.description
    if tool.strict is not None:
        body["strict"] = tool.strict
    return body


def _render_tool_choice(request: ChatRequest) -> Object | None:
    choice, parallel = request.tool_choice, request.parallel_tool_calls
    if choice is None:
        return {"type": "auto", "disable_parallel_tool_use": True} if parallel is False else None
    body: Object
    if choice.name is not None:
        body = {"type": "tool", "name": choice.name}
    else:
        body = {
            "type": {ToolMode.AUTO: "auto", ToolMode.NONE: "none", ToolMode.REQUIRED: "any"}[
                choice.mode
            ]
        }
    if parallel is not None and choice.mode is not ToolMode.NONE:
        body["disable_parallel_tool_use"] = not parallel
    return body


def _split_system(messages: Sequence[Message]) -> tuple[Message | None, Sequence[Message]]:
    """Split off the first message if it is plain system text, which has its own field in the
    body.
    """
    first = messages[0]
    if (
        first.role is Role.SYSTEM
        and not first.extra
        and all(isinstance(part, Text) for part in first.parts)
    ):
        return first, messages[1:]
    return None, messages


def alternating(request: ChatRequest, wire: Wire) -> ChatRequest:
    """The conversation as Anthropic and Google require it: system text, then user and assistant in
    turn, with tool results first, and reasoning only with a signature of this wire.
    """
    system, spoken = _gathered_system(request, wire)
    turns: list[Message] = []
    for message in (_as_turn(message, wire) for message in spoken):
        if not message.parts:
            continue
        if turns and turns[-1].role is message.role:
            turns[-1] = Message(message.role, turns[-1].parts + message.parts)
        else:
            turns.append(message)
    if not turns:
        raise WireError(
            "messages hold nothing that could be sent to this model's provider", param="messages"
        )
    if turns[0].role is not Role.USER:
        turns.insert(0, Message(Role.USER, (Text(_OPENING),)))
    ordered = tuple(Message(turn.role, tuple(_results_first(turn.parts))) for turn in turns)
    head = (Message(Role.SYSTEM, system),) if system else ()
    return replace(request, messages=(*head, *ordered))


def _gathered_system(request: ChatRequest, wire: Wire) -> tuple[tuple[Part, ...], list[Message]]:
    """Split off the leading system messages. If there are only system messages, the last one stays
    as the user's.
    """
    messages = list(request.messages)
    leading: list[Part] = []
    while len(messages) > 1 and messages[0].role is Role.SYSTEM:
        leading += messages.pop(0).parts
    if request.json_schema == JSON_OBJECT and wire is Wire.MESSAGES:
        leading.append(Text(_JSON_IN_WORDS))
    return tuple(part for part in leading if not isinstance(part, Text) or part.text), messages


def _as_turn(message: Message, wire: Wire) -> Message:
    """A message with role user or assistant. A system message within the conversation becomes a
    marked user message.
    """
    match message.role:
        case Role.ASSISTANT:
            role = Role.ASSISTANT
        case Role.SYSTEM:
            text = "\n\n".join(part.text for part in message.parts if isinstance(part, Text))
            return Message(Role.USER, (Text(f"<system-reminder>\n{text}\n</system-reminder>"),))
        case _:
            role = Role.USER
    return Message(role, tuple(part for part in message.parts if _is_accepted(part, wire)))


def _is_accepted(part: Part, wire: Wire) -> bool:
    """Whether the provider accepts the part: it refuses empty texts, and reasoning without its own
    signature.
    """
    match part:
        case Text():
            return bool(part.text)
        case Reasoning():
            return provider_signature(wire, part.signature) is not None
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


def _render_message(message: Message) -> Object:
    role = message.role.value if isinstance(message.role, Role) else message.role
    return {
        **message.extra,
        "role": "user" if message.role is Role.TOOL else role,
        "content": _render_content(message.parts),
    }


def _render_content(parts: Sequence[Part]) -> Json:
    if not parts:
        return ""
    blocks: list[Json] = [block for part in parts if (block := _render_block(part)) is not None]
    return only_text(parts) or blocks


def _render_block(part: Part) -> Object | None:
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
                "content": _render_content(part.parts),
            }
            return {**body, "is_error": True} if part.is_error else body
        case Opaque():
            document = read_document(part) if part.wire is not Wire.MESSAGES else None
            return opaque_value(part) if document is None else _render_document(document)


def _thinking(part: Reasoning) -> Object | None:
    signature = provider_signature(Wire.MESSAGES, part.signature)
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
    """A call's arguments as an object, which this wire requires. If they are not a JSON object,
    `arguments` has their text.
    """
    value = decode_or_text(arguments) if arguments.strip() else {}
    return value if isinstance(value, dict) else {"arguments": arguments}


# Tools that Anthropic's servers run. They can be dropped for other providers, because the client
# never answers their calls.
_HOSTED_TOOLS = (
    "web_search_",
    "web_fetch_",
    "code_execution_",
    "tool_search_tool_",
    "mcp_toolset",
    "advisor_",
)
# Claude Code's first block is an accounting line that may change from request to request.
_ACCOUNTING = "x-anthropic-billing-header"


def offered_tools(value: Object, lenient: bool) -> tuple[ToolOffer, ...]:
    """Return nothing: tools with a type cannot be offered as functions. Raises WireError for a tool
    that the client runs.
    """
    kind = text_of(value.get("type"))
    if not kind.startswith(_HOSTED_TOOLS) and not lenient:
        raise WireError(
            f"a tool of type {kind!r} is known only to Anthropic's models and cannot be offered to"
            " this provider",
            param="tools",
        )
    return ()


def read_file(value: Object) -> Document | None:
    return _from_source(value) if value.get("type") == "document" else None


def _from_source(value: Object) -> Document | None:
    source, name = object_of(value.get("source")), text_of(value.get("title")) or None
    match source.get("type"):
        case "base64":
            return Document(
                name,
                text_of(source.get("media_type")) or "application/pdf",
                text_of(source.get("data")),
            )
        case "url":
            return Document(name, url=text_of(source.get("url")))
        case "text":
            return Document(name, "text/plain", text=text_of(source.get("data")))
        case _:
            return None


def _render_document(document: Document) -> Object:
    title: Object = {"title": document.name} if document.name else {}
    text = document.text
    if text is None and document.payload is not None and document.media_type.startswith("text/"):
        text = _decoded(document.payload)
    if text is not None:
        return {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": text},
            **title,
        }
    if document.payload is None:
        return {"type": "document", "source": {"type": "url", "url": document.url}, **title}
    source: Object = {"type": "base64", "media_type": document.media_type, "data": document.payload}
    return {"type": "document", "source": source, **title}


def _decoded(payload: str) -> str:
    try:
        return base64.b64decode(payload, validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError) as error:
        raise WireError(f"a document's bytes are not base64: {error}", param="messages") from error


def wants_json(body: Mapping[str, Json]) -> bool:
    return bool(body.get("output_format") or object_of(body.get("output_config")).get("format"))


def system_texts(body: Mapping[str, Json]) -> Json:
    """The system text, without the accounting line."""
    system = body.get("system")
    if isinstance(system, list):
        return [part for part in system if not _is_accounting(part)]
    return None if _is_accounting(system) else system


def _is_accounting(part: Json) -> bool:
    return (text_of(object_of(part).get("text")) or text_of(part)).startswith(_ACCOUNTING)


def place_in_system(edit: RequestEdit, text: str) -> None:
    """Insert text at the end of the field `system`."""
    if "system" in edit.parsed:
        edit.append_to_field("system", text)
    else:
        edit.add_field("system", literal_json(text))
