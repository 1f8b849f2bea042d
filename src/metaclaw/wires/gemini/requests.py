"""Gemini requests. A body is viewed as the one of the messages wire, which has the same concepts:
what only reads requests (sessions, rules, lessons) and the parser see that view. Bytes are changed
and relayed as the client sent them.
"""

import base64
import binascii
import mimetypes
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby

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
from metaclaw.wires.fields import (
    Fields,
    Object,
    encode_text,
    list_of,
    literal_json,
    object_of,
    put,
    text_of,
)
from metaclaw.wires.format import RequestEdit
from metaclaw.wires.messages import requests as messages
from metaclaw.wires.translation import (
    JSON_OBJECT,
    client_signature,
    opaque_value,
    plain,
    provider_signature,
    read_document,
    split_data_url,
)

DERIVED_ID = "gemini_"
"""How the ids begin that calls without one get from us."""
_MODES = {
    "AUTO": "auto",
    "VALIDATED": "auto",
    "MODE_UNSPECIFIED": "auto",
    "ANY": "any",
    "NONE": "none",
}
_WORDS = {ToolMode.AUTO: "AUTO", ToolMode.NONE: "NONE", ToolMode.REQUIRED: "ANY"}
_SNAKE = re.compile(r"_([a-z])")
_READ = ("contents", "systemInstruction", "tools", "toolConfig", "generationConfig")
_HOSTED = "web_search_"  # the messages wire drops tools of such a type for other providers
_SCHEMAS = ("responseJsonSchema", "_responseJsonSchema", "responseSchema")
_TRACES = ("executableCode", "codeExecutionResult")
_OUTPUTS = ("output", "result", "error")
# Newer models refuse a call in the history without a signature; Google names this one for calls
# that another model made.
_NO_SIGNATURE = "skip_thought_signature_validator"
_UNSIGNED = re.compile(r"(?:.*/)?gemini-[12]\b")
_BUDGETS = {"none": 0, "minimal": 1024, "low": 1024, "medium": 8192, "high": 24_576}
_LEVELS = {"none": "minimal", "xhigh": "high", "max": "high"}


@lru_cache(maxsize=256)
def _camel_name(name: str) -> str:
    return _SNAKE.sub(lambda found: found[1].upper(), name)


def camel(value: Json) -> Object:
    """An object with its names as Google's documentation writes them: its servers take both forms.
    Empty if it is no object.
    """
    return {_camel_name(name): inner for name, inner in object_of(value).items()}


def view(body: Mapping[str, Json]) -> Object:
    """A body as the one of the messages wire, except that `contents` keeps its name."""
    given = camel(dict(body))
    found = {name: value for name, value in given.items() if name not in _READ}
    contents = given.get("contents")
    if "contents" in given:
        is_list = isinstance(contents, list)
        found["contents"] = (
            [as_message(item) for item in list_of(contents)] if is_list else contents
        )
    system: list[Json] = [
        {"type": "text", **part}
        for part in map(object_of, list_of(camel(given.get("systemInstruction")).get("parts")))
        if isinstance(part.get("text"), str)
    ]
    if system:
        found["system"] = system
    if given.get("tools") is not None:
        found["tools"] = list(_tools(given["tools"]))
    chosen = camel(camel(given.get("toolConfig")).get("functionCallingConfig"))
    allowed = list_of(chosen.get("allowedFunctionNames"))
    if mode := _MODES.get(text_of(chosen.get("mode")).upper()):
        is_one = mode == "any" and len(allowed) == 1
        found["tool_choice"] = {"type": "tool", "name": allowed[0]} if is_one else {"type": mode}
    return {"model": "", **found, **_options(camel(given.get("generationConfig")))}


def _options(config: Object) -> Object:
    thinking = camel(config.pop("thinkingConfig", None))
    level, budget = (
        text_of(thinking.pop("thinkingLevel", None)).lower(),
        thinking.pop("thinkingBudget", None),
    )
    output: Object = {}
    if effort := level or _effort(budget):
        output["effort"] = effort
    schema = next((config.pop(key) for key in _SCHEMAS if config.get(key) is not None), None)
    is_json = config.pop("responseMimeType", None) == "application/json"
    if schema is not None or is_json:
        shape = JSON_OBJECT["schema"] if schema is None else _json_schema(schema)
        output["format"] = {"type": "json_schema", "schema": shape}
    found: Object = {}
    put(
        found,
        {
            "max_tokens": config.pop("maxOutputTokens", None),
            "temperature": config.pop("temperature", None),
            "top_p": config.pop("topP", None),
            "top_k": config.pop("topK", None),
            "stop_sequences": config.pop("stopSequences", None),
            "output_config": output or None,
        },
    )
    if thinking:
        config["thinkingConfig"] = thinking
    return {**found, "generationConfig": config} if config else found


def _effort(budget: Json) -> str | None:
    if not isinstance(budget, int) or budget < 0:
        return None
    return next((name for name, most in _BUDGETS.items() if budget <= most), "high")


def _tools(tools: Json) -> Iterator[Json]:
    for tool in map(camel, list_of(tools)):
        for one in map(camel, list_of(tool.pop("functionDeclarations", None))):
            older, newer = one.pop("parameters", None), one.pop("parametersJsonSchema", None)
            yield {**one, "input_schema": object_of(newer) or _json_schema(older) or {}}
        for name, options in tool.items():
            yield {"type": _HOSTED + name, name: options}


def _json_schema(value: Json) -> Json:
    """A schema as JSON Schema: Google's own are of OpenAPI, with types in capitals and `nullable`.
    Raises WireError if it is nested too deeply.
    """
    try:
        return _plain_schema(value)
    except RecursionError as error:
        raise WireError("a schema is nested too deeply", param="tools") from error


def _plain_schema(value: Json) -> Json:
    if isinstance(value, list):
        return [_plain_schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {name: _plain_schema(inner) for name, inner in value.items()}
    kind = found.get("type")
    if isinstance(kind, str):
        found["type"] = [kind.lower(), "null"] if found.get("nullable") is True else kind.lower()
        found = {
            name: inner for name, inner in found.items() if inner is not True or name != "nullable"
        }
    return found


def as_message(item: Json) -> Json:
    """An item of `contents` as a message of the messages wire."""
    if not isinstance(item, dict):
        return item
    content = camel(item)
    role, parts = content.get("role"), content.get("parts")
    blocks = [block for part in list_of(parts) for block in as_blocks(part)]
    return {"role": "assistant" if role == "model" else "user", "content": blocks}


def as_blocks(part: Json) -> Iterator[Json]:
    """A part as blocks of the messages wire; its signature is a block of its own."""
    if not isinstance(part, dict):
        yield part
        return
    known = camel(part)
    shown = text_of(known.pop("thoughtSignature", None))
    if known.get("thought"):
        signature: Object = {"signature": _tagged(shown)} if shown else {}
        yield {"type": "thinking", "thinking": text_of(known.get("text")), **signature}
        return
    known.pop("thought", None)
    signed: Object = {"type": "thinking", "thinking": "", "signature": _tagged(shown)}
    if isinstance(known.get("text"), str):
        if known["text"] or not shown:
            yield {"type": "text", **known}
        if shown:  # behind it, because a stream's text goes on before it
            yield signed
        return
    if shown:
        yield signed
    match known:
        case {"functionCall": dict() as call}:
            named = {"id": text_of(call.get("id")), "name": text_of(call.get("name"))}
            yield {"type": "tool_use", **named, "input": object_of(call.get("args"))}
        case {"functionResponse": dict() as answer}:
            yield _result(camel(answer))
        case {"inlineData": dict() as data}:
            inner = camel(data)
            source = {
                "type": "base64",
                "media_type": inner.get("mimeType"),
                "data": inner.get("data"),
            }
            yield _file(inner, source)
        case {"fileData": dict() as data}:
            inner = camel(data)
            yield _file(inner, {"type": "url", "url": inner.get("fileUri")})
        case _ if known:  # some clients leave an empty text out
            kind = next(iter(known))
            # What the provider's own tools left: the messages wire drops it for others.
            yield {"type": "server_tool_use" if kind in _TRACES else kind, **known}


def _file(data: Object, source: Json) -> Json:
    kind = text_of(data.get("mimeType"))
    if kind.startswith(("audio/", "video/")):
        return {"type": kind, "source": source}
    name: Object = {"title": data["displayName"]} if text_of(data.get("displayName")) else {}
    return {"type": "image" if kind.startswith("image/") else "document", "source": source, **name}


def _result(answer: Object) -> Json:
    response = object_of(answer.get("response"))
    only = next(iter(response)) if len(response) == 1 else ""
    said: Json = response.get(only) if only in _OUTPUTS else response or ""
    text = said if isinstance(said, str) else encode_text(said)
    content: list[Json] = [{"type": "text", "text": text}] if text else []
    for part in list_of(answer.get("parts")):
        content += as_blocks(part)
    named = {"tool_use_id": text_of(answer.get("id")), "name": text_of(answer.get("name"))}
    failed: Object = {"is_error": True} if response.get("error") else {}
    return {"type": "tool_result", **named, "content": content, **failed}


def parse_request(body: dict[str, Json]) -> ChatRequest:
    """Parse a body. The system text becomes the first message; every call has an id, which its
    result has, too.
    """
    for number, item in enumerate(list_of(camel(body).get("contents"))):
        Fields(item, f"contents[{number}]").list("parts")
    found = view(body)
    rest = object_of(found.pop("generationConfig", None))
    config = Fields(rest, "generationConfig")
    more = {
        "seed": config.maybe_int("seed"),
        "presence_penalty": config.maybe_number("presencePenalty"),
        "frequency_penalty": config.maybe_number("frequencyPenalty"),
        "n": config.maybe_int("candidateCount") or 1,
    }
    if config.rest():
        found["generationConfig"] = config.rest()
    contents = found.pop("contents", None)
    if not contents:
        raise WireError("contents must not be empty", param="contents")
    parsed = messages.parse_request({**found, "messages": contents})
    return replace(
        parsed,
        wire=Wire.GEMINI,
        messages=tuple(_with_ids(list(_joined(parsed.messages)))),
        sampling=replace(parsed.sampling, **more),  # type: ignore[arg-type]
    )


def _joined(spoken: Sequence[Message]) -> Iterator[Message]:
    """The messages with each answer as one: clients keep a stream piece by piece."""
    for is_answer, group in groupby(spoken, lambda message: message.role is Role.ASSISTANT):
        if not is_answer:
            yield from group
            continue
        parts = [part for message in group for part in message.parts]
        yield Message(Role.ASSISTANT, tuple(joined_parts(parts)))


def joined_parts(parts: Iterable[Part]) -> list[Part]:
    """The parts, with adjacent texts as one, and thoughts up to their signature."""
    found: list[Part] = []
    for part in parts:
        match found[-1:], part:
            case [Text(text=before)], Text():
                found[-1] = replace(part, text=before + part.text)
            case [Reasoning(text=before, signature=None)], Reasoning():
                found[-1] = replace(part, text=before + part.text)
            case _:
                found.append(part)
    return found


def _with_ids(spoken: Sequence[Message]) -> Iterator[Message]:
    """The messages with an id for every call: its own, else its result's, else one of ours."""
    waiting: list[ToolCall] = []
    for place, message in enumerate(spoken):
        parts: list[Part] = []
        if message.role is Role.ASSISTANT:
            waiting = []
        behind = _results_behind(spoken, place) if _lacks_id(message) else []
        for number, part in enumerate(message.parts):
            if isinstance(part, ToolCall):
                identity = part.id or _pair(behind, part.name) or f"{DERIVED_ID}{place}_{number}"
                part = replace(part, id=identity)
                waiting.append(part)
            elif isinstance(part, ToolResult):
                part = _answering(part, waiting)
            parts.append(part)
        yield replace(message, parts=tuple(parts))


def _lacks_id(message: Message) -> bool:
    return any(isinstance(part, ToolCall) and not part.id for part in message.parts)


def _results_behind(spoken: Sequence[Message], place: int) -> list[ToolResult]:
    own = {part.id for part in spoken[place].parts if isinstance(part, ToolCall)}
    behind = spoken[place + 1].parts if place + 1 < len(spoken) else ()
    return [part for part in behind if isinstance(part, ToolResult) and part.call_id not in own]


def _pair(results: list[ToolResult], name: str) -> str:
    """The id of the first result of this function, which is taken from the list."""
    for place, result in enumerate(results):
        if result.extra.get("name") == name:
            return results.pop(place).call_id
    return ""


def _answering(result: ToolResult, waiting: list[ToolCall]) -> ToolResult:
    """The result with its call's id; the call is taken from those that wait."""
    for call in waiting:
        if result.call_id == call.id or (
            not result.call_id and result.extra.get("name") == call.name
        ):
            waiting.remove(call)
            return replace(result, call_id=call.id)
    return result


def _tagged(shown: str) -> str:
    """A signature with the wire of its maker. Clients take base64 only: another maker's signature
    is inside.
    """
    try:
        inner = base64.b64decode(shown, validate=True).decode()
    except (binascii.Error, ValueError):
        inner = ""
    is_foreign = inner.removeprefix("redacted:").partition(":")[0] in tuple(Wire)
    return inner if is_foreign else f"{Wire.GEMINI.value}:{shown}"


def _shown(part: Reasoning) -> str:
    """A signature as a client of this wire gets it; empty if there is none."""
    if part.signature is None:
        return ""
    own = provider_signature(Wire.GEMINI, part.signature)
    if own is not None:
        return own
    tagged = client_signature(Wire.GEMINI, part.signature, redacted=part.redacted)
    return base64.b64encode(tagged.encode()).decode()


def render_request(request: ChatRequest) -> dict[str, Json]:
    """The body for a Gemini provider, with the model and whether to stream, which the endpoint
    writes into the path. Another wire's request loses optional fields; an indispensable one raises
    WireError.
    """
    own = request.wire is Wire.GEMINI
    if not own:
        request = messages.alternating(plain(request), Wire.GEMINI)
    is_signed = own or _UNSIGNED.match(request.model) is not None
    names = {
        part.id: part.name
        for message in request.messages
        for part in message.parts
        if isinstance(part, ToolCall)
    }
    body: Object = {"model": request.model}
    if request.stream:
        body["stream"] = True
    spoken = list(request.messages)
    if spoken[0].role is Role.SYSTEM:
        texts = [part for part in spoken.pop(0).parts if isinstance(part, Text)]
        body["systemInstruction"] = {"parts": [{**text.extra, "text": text.text} for text in texts]}
    body["contents"] = [_content(message, names, is_signed=is_signed) for message in spoken]
    if request.tools:
        body["tools"] = _rendered_tools(request.tools)
    if (choice := request.tool_choice) is not None and request.tools:
        chosen: Object = {"mode": _WORDS[choice.mode]}
        if choice.name is not None:
            chosen["allowedFunctionNames"] = [choice.name]
        body["toolConfig"] = {"functionCallingConfig": chosen}
    extra = dict(request.extra) if own else {}
    config = _config(request, object_of(extra.pop("generationConfig", None)))
    return {**extra, **body, **({"generationConfig": config} if config else {})}


def _config(request: ChatRequest, config: Object) -> Object:
    sampling, effort, schema = request.sampling, request.reasoning_effort, request.json_schema
    if effort is not None:
        is_old = _UNSIGNED.match(request.model) is not None and effort in _BUDGETS
        thinking: Object = (
            {"thinkingBudget": _BUDGETS[effort]}
            if is_old
            else {"thinkingLevel": _LEVELS.get(effort, effort)}
        )
        config["thinkingConfig"] = {**object_of(config.get("thinkingConfig")), **thinking}
    if schema is not None:
        config["responseMimeType"] = "application/json"
        if schema != JSON_OBJECT:
            config["responseJsonSchema"] = schema.get("schema")
    put(
        config,
        {
            "maxOutputTokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "topP": sampling.top_p,
            "topK": sampling.top_k,
            "stopSequences": list(sampling.stop) or None,
            "seed": sampling.seed,
            "presencePenalty": sampling.presence_penalty,
            "frequencyPenalty": sampling.frequency_penalty,
            "candidateCount": sampling.n if sampling.n > 1 else None,
            "responseLogprobs": sampling.logprobs or None,
            "logprobs": sampling.top_logprobs if sampling.logprobs else None,
        },
    )
    return config


def _rendered_tools(tools: Iterable[Tool | Opaque]) -> list[Json]:
    functions = [render_tool(tool) for tool in tools if isinstance(tool, Tool)]
    hosted = [opaque_value(tool) for tool in tools if isinstance(tool, Opaque)]
    own: list[Json] = [{"functionDeclarations": [*functions]}] if functions else []
    return own + [{name: one[name] for name in one if name != "type"} for one in hosted]


def render_tool(tool: Tool | Opaque) -> Object:
    if isinstance(tool, Opaque):
        return opaque_value(tool)
    body: Object = {**tool.extra, "name": tool.name}
    put(
        body,
        {"description": tool.description, "parametersJsonSchema": dict(tool.parameters) or None},
    )
    return body


def _content(message: Message, names: Mapping[str, str], *, is_signed: bool) -> Json:
    role = "model" if message.role is Role.ASSISTANT else "user"
    return {"role": role, "parts": render_parts(message.parts, names, is_signed=is_signed)}


def render_parts(
    parts: Sequence[Part], names: Mapping[str, str], *, is_signed: bool = True
) -> list[Json]:
    """Parts of a message or an answer. A signature of this wire before a call is written at the
    call. Unless the calls are signed, a first call without a signature gets one that says so.
    """
    found: list[Json] = []
    signature = ""
    for number, part in enumerate(parts):
        rendered = _part(part, names)
        if isinstance(part, Reasoning):
            shown = _shown(part)
            is_own = provider_signature(Wire.GEMINI, part.signature) is not None
            if is_own and isinstance((*parts, None)[number + 1], ToolCall):
                signature, shown = shown, ""
            if shown:
                rendered["thoughtSignature"] = shown
            if shown or part.text:
                found.append(rendered)
            continue
        if isinstance(part, ToolCall) and not is_signed:
            signature, is_signed = signature or _NO_SIGNATURE, True
        if signature:
            rendered["thoughtSignature"] = signature
        found.append(rendered)
        signature = ""
    return found


def _part(part: Part, names: Mapping[str, str]) -> Object:
    match part:
        case Text():
            return {**part.extra, "text": part.text}
        case Image():
            return _image(part)
        case Reasoning():
            return {"text": part.text, **({"thought": True} if part.text else {})}
        case ToolCall():
            call: Object = {"name": part.name, "args": messages.tool_input(part.arguments)}
            return {"functionCall": {"id": part.id, **call} if part.id else call}
        case ToolResult():
            return {"functionResponse": _response(part, names)}
        case Opaque():
            return _document(part)


def _image(part: Image) -> Object:
    if (inline := split_data_url(part.url)) is not None:
        return {"inlineData": {"mimeType": inline[0], "data": inline[1]}}
    kind = mimetypes.guess_type(part.url)[0] or "image/jpeg"
    return {"fileData": {"mimeType": kind, "fileUri": part.url}}


def _response(result: ToolResult, names: Mapping[str, str]) -> Object:
    said = "\n".join(part.text for part in result.parts if isinstance(part, Text))
    more: list[Json] = [_part(part, names) for part in result.parts if not isinstance(part, Text)]
    name = text_of(result.extra.get("name")) or names.get(result.call_id, "tool")
    body: Object = {"id": result.call_id} if result.call_id else {}
    body |= {"name": name, "response": {"error" if result.is_error else "output": said}}
    return {**body, "parts": more} if more else body


def _document(part: Opaque) -> Object:
    document = read_document(part)
    if document is None:
        return {name: value for name, value in opaque_value(part).items() if name != "type"}
    if document.text is not None:
        return {"text": document.text}
    name: Object = {"displayName": document.name} if document.name else {}
    if document.payload is None:
        return {"fileData": {"mimeType": document.media_type, "fileUri": document.url, **name}}
    return {"inlineData": {"mimeType": document.media_type, "data": document.payload, **name}}


def place_in_system(edit: RequestEdit, text: str) -> None:
    """Insert text as the last part of the system instruction."""
    if not edit.append_to_parts(("systemInstruction", "system_instruction"), text):
        edit.add_field("systemInstruction", b'{"parts":[{"text":' + literal_json(text) + b"}]}")
