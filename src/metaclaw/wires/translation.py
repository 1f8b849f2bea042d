"""Translate requests for providers of another wire: parts that only the client's wire has are
converted or refused.

Answers are parsed and written in `answers` of each wire.
"""

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
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
    Text,
    Tool,
    ToolCall,
    ToolMode,
    ToolResult,
    Wire,
)
from metaclaw.domain.ids import new_id
from metaclaw.errors import WireError
from metaclaw.wires.fields import Object, decode_or_text, encode_text, list_of, object_of, text_of
from metaclaw.wires.format import ClientTool, Document, Kind, ToolOffer, wire_format

_MAX_NAME_CHARS = 64
_DEFAULT_NAMESPACE = "functions"
_INPUT: Mapping[str, Json] = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The tool's input as plain text."}},
    "required": ["input"],
    "additionalProperties": False,
}


def flat_name(namespace: str | None, name: str) -> str:
    """One name for a tool and its namespace, short enough for every wire."""
    full = name if namespace in (None, "", _DEFAULT_NAMESPACE) else f"{namespace}__{name}"
    if len(full) <= _MAX_NAME_CHARS:
        return full
    digest = hashlib.blake2b(full.encode("utf-8", "replace"), digest_size=4).hexdigest()
    return f"{full[: _MAX_NAME_CHARS - 9]}_{digest}"


def call_name(call: ToolCall) -> str:
    """The flat name of a call in a client's history."""
    return flat_name(text_of(call.extra.get("namespace")) or None, call.name)


def portable_tools(request: ChatRequest) -> tuple[Tool, ...]:
    """Every tool of the request that can be offered as a function. Tools that the provider would
    run are left out.
    """
    return tuple(offer.tool for offer in _offers(request))


class ClientTools:
    """Maps the flat names under which tools were offered back to the client's tools."""

    def __init__(self, request: ChatRequest) -> None:
        self._client_tools = {
            offer.tool.name: offer.client_tool for offer in _offers(request, lenient=True)
        }

    def client_tool(self, name: str) -> ClientTool:
        """The client's tool that was offered under this name."""
        return self._client_tools.get(name) or ClientTool(Kind.FUNCTION, name)

    def is_custom(self, name: str) -> bool:
        """Whether the client expects free text for this tool instead of JSON."""
        return self.client_tool(name).kind is Kind.CUSTOM


def custom_arguments(text: str) -> str:
    """Free text for a custom tool, as the arguments of the function offered in its place."""
    return encode_text({"input": text})


def custom_input(arguments: str) -> str:
    """The free text in such arguments; if they have another shape, the arguments themselves."""
    value = decode_or_text(arguments)
    text = value.get("input") if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments


def _offers(request: ChatRequest, *, lenient: bool = False) -> Iterator[ToolOffer]:
    for tool in (*request.tools, *_additional(request)):
        if isinstance(tool, Tool):
            plain = Tool(flat_name(None, tool.name), tool.description, tool.parameters, tool.strict)
            yield ToolOffer(plain, ClientTool(Kind.FUNCTION, tool.name))
        else:
            yield from wire_format(tool.wire).offered_tools(object_of(tool.value), lenient)


def _additional(request: ChatRequest) -> Iterator[Opaque]:
    """Tools in an input item of type `additional_tools`."""
    for message in request.messages:
        for part in message.parts:
            if (
                isinstance(part, Opaque)
                and (value := object_of(part.value)).get("type") == "additional_tools"
            ):
                yield from (Opaque(part.wire, tool) for tool in list_of(value.get("tools")))


def custom_offer(value: Object, namespace: str | None) -> ToolOffer:
    """A custom tool as a function with one text parameter."""
    name = text_of(value.get("name"))
    described = "\n\n".join(
        part
        for part in (text_of(value.get("description")), _grammar(object_of(value.get("format"))))
        if part
    )
    return ToolOffer(
        Tool(flat_name(namespace, name), described or None, _INPUT),
        ClientTool(Kind.CUSTOM, name, namespace),
    )


def _grammar(format_: Object) -> str:
    """The custom tool's grammar as text for the description, because a function cannot enforce
    it.
    """
    rules = object_of(format_.get("grammar")) or format_
    definition = text_of(rules.get("definition"))
    return (
        f"The input must follow this {text_of(rules.get('syntax')) or 'formal'}"
        f" grammar:\n{definition}"
        if definition
        else ""
    )


def plain(request: ChatRequest) -> ChatRequest:
    """The same request without anything specific to its wire.

    It has only the four known roles, each tool result in its own message of role TOOL, one message
    per assistant turn, only functions as tools, and no extras; every remaining Opaque is a
    document. Raises WireError for an indispensable part that cannot be translated."""
    refuse_indispensable(request)
    tools = portable_tools(request)
    choice = request.tool_choice
    if choice is not None and not tools:
        if choice.mode is ToolMode.REQUIRED:
            raise _untranslatable("the tool that must be called", "tool_choice")
        choice = None
    return replace(
        request,
        messages=tuple(_merged(_flattened(request))),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=request.parallel_tool_calls if tools else None,
    )


def refuse_indispensable(request: ChatRequest) -> None:
    """Raise WireError if a field is set that changes the meaning of the request and that another
    wire does not have.
    """
    for name in wire_format(request.wire).indispensable:
        if request.extra.get(name):
            raise _untranslatable(f"`{name}`", name)
    if request.extra.get("tool_choice") is not None:
        raise _untranslatable("this kind of tool_choice", "tool_choice")
    modalities = request.extra.get("modalities")
    if isinstance(modalities, list) and "audio" in modalities:
        raise _untranslatable("spoken answers", "modalities")


def _untranslatable(what: str, param: str) -> WireError:
    return WireError(
        f"{what} cannot be translated: the provider of this model speaks another protocol that has"
        " no such thing",
        code="unsupported_parameter",
        param=param,
    )


def _flattened(request: ChatRequest) -> Iterator[Message]:
    for number, message in enumerate(request.messages):
        param = f"messages[{number}]"
        role = message.role
        if not isinstance(role, Role):
            raise WireError(
                f"role {role!r} cannot be translated for this model's provider",
                param=f"{param}.role",
            )
        if message.extra.get("function_call"):
            raise _untranslatable("`function_call`", f"{param}.function_call")
        parts = [said for part in message.parts if (said := _portable(part, param)) is not None]
        if message.parts and not parts:
            continue
        results = [part for part in parts if isinstance(part, ToolResult)]
        yield from (Message(Role.TOOL, (result,)) for result in results)
        if len(results) < len(parts) or not parts:
            others = tuple(part for part in parts if not isinstance(part, ToolResult))
            yield Message(role, others, message.name if role is Role.USER else None)


def _merged(messages: Iterator[Message]) -> Iterator[Message]:
    """Join consecutive assistant messages."""
    turn: Message | None = None
    for message in messages:
        if turn is not None and message.role is Role.ASSISTANT:
            turn = Message(Role.ASSISTANT, turn.parts + message.parts)
            continue
        if turn is not None:
            yield turn
            turn = None
        if message.role is Role.ASSISTANT:
            turn = message
        else:
            yield message
    if turn is not None:
        yield turn


def _portable(part: Part, param: str) -> Part | None:
    match part:
        case Text():
            return Text(part.text)
        case Image():
            return Image(part.url, part.detail)
        case Reasoning():
            return Reasoning(part.text, part.signature, part.redacted)
        case ToolCall():
            return ToolCall(part.id, call_name(part), part.arguments)
        case ToolResult():
            return ToolResult(part.call_id, _result_parts(part, param), part.is_error)
        case Opaque():
            return _portable_opaque(part, param)


def _result_parts(result: ToolResult, param: str) -> tuple[Text | Image | Opaque, ...]:
    said = [_portable(part, param) for part in result.parts]
    return tuple(part for part in said if isinstance(part, Text | Image | Opaque))


def _portable_opaque(part: Opaque, param: str) -> Opaque | None:
    kind = text_of(object_of(part.value).get("type"))
    if kind in wire_format(part.wire).hosted_traces:
        return None
    if read_document(part) is None:
        raise _untranslatable(f"a part of type {kind!r}", param)
    return part


def require_one_answer(request: ChatRequest) -> None:
    """Raise WireError for a request of several answers."""
    if request.sampling.n > 1:
        raise WireError(
            "n above 1 cannot be translated: this model's provider gives one answer at a time",
            param="n",
        )


def only_text(parts: Sequence[Part]) -> str | None:
    """The text of content that is one plain text, which may be written as a string."""
    only = parts[0] if len(parts) == 1 else None
    return only.text or None if isinstance(only, Text) and not only.extra else None


def prefixed_id(prefix: str, identity: str) -> str:
    """An answer's id with the prefix that a client of the wire expects; a new id if it is empty."""
    if not identity:
        return new_id(prefix)
    return identity if identity.startswith(prefix) else f"{prefix}{identity}"


def opaque_value(part: Opaque) -> dict[str, Json]:
    """The JSON of a part, unchanged."""
    return dict(object_of(part.value))


JSON_OBJECT: Mapping[str, Json] = {"schema": {"type": "object"}}
"""`ChatRequest.json_schema` of a caller who accepts any JSON object. Otherwise it has `schema`, and
optionally `name`, `strict` and `description`."""

SCHEMA_NAME = "answer"
"""The name of a schema from the messages wire, which has no names; OpenAI's wires require one."""

DEFAULT_MAX_TOKENS = 32_000
"""`max_tokens` for the messages wire, which requires it. Every model since Claude 4 accepts this
value.
"""

_COMPLETION_TOKENS = re.compile(r"(?:.*/)?(?:o\d|gpt-(?:[5-9]|\d\d))")


def max_tokens_field(model: str) -> str:
    """The name of the field: OpenAI's reasoning models refuse `max_tokens`; most other chat servers
    know only that.
    """
    return "max_completion_tokens" if _COMPLETION_TOKENS.match(model) else "max_tokens"


def anthropic_effort(effort: str) -> str | None:
    """The effort in the messages wire; None for no thinking, which is its default."""
    return {"none": None, "minimal": "low"}.get(effort, effort)


_REDACTED = "redacted:"
_TAGS = {wire: f"{wire.value}:" for wire in Wire}


# Providers sign reasoning, and accept only their own signatures. In the domain a signature is
# tagged: it begins with the wire of the provider that made it. Clients of another wire get it with
# that tag.


def tagged_signature(wire: Wire, shown: str | None) -> tuple[str | None, bool]:
    """Tag a signature of a client or provider of this wire. Also returns whether it is another
    wire's redacted reasoning.
    """
    if not shown:
        return None, False
    bare = shown.removeprefix(_REDACTED)
    if bare.startswith(tuple(_TAGS.values())):
        return bare, bare != shown
    return _TAGS[wire] + shown, False


def client_signature(wire: Wire, signature: str, *, redacted: bool = False) -> str:
    """A tagged signature in the form for a client of this wire."""
    own = provider_signature(wire, signature)
    if own is not None:
        return own
    return _REDACTED + signature if redacted else signature


def provider_signature(wire: Wire, signature: str | None) -> str | None:
    """The signature without its tag if a provider of this wire made it, else None."""
    if signature is None or not signature.startswith(_TAGS[wire]):
        return None
    return signature.removeprefix(_TAGS[wire])


_IMAGE_TOKENS = 1_600
_MESSAGE_TOKENS = 4
_TOOL_TOKENS = 8
_ASCII_CHARS_PER_TOKEN = 3.4
_OTHER_CHARS_PER_TOKEN = 1.3


def estimate_tokens(request: ChatRequest) -> int:
    """Estimate the number of tokens without a tokenizer.

    A token is 3.4 ASCII characters or 1.3 other characters. Each message adds 4 tokens and each
    tool 8, for the prompt template. A picture counts 1,600, as a full-size picture does at
    Anthropic. Compared with the tokenizer of the embedded model, the estimate is 0.90 of the count
    on technical prose, 1.05 on Python and 0.87 on JSON; models with larger vocabularies count less.
    """
    parts = sum(_part(part) for message in request.messages for part in message.parts)
    tools = sum(_tool(tool) + _TOOL_TOKENS for tool in request.tools)
    schema = 0.0 if request.json_schema is None else _json(dict(request.json_schema))
    return max(1, math.ceil(parts + tools + schema + _MESSAGE_TOKENS * len(request.messages)))


def _part(part: Part) -> float:
    match part:
        case Text() | Reasoning():
            return _text(part.text)
        case Image():
            return _IMAGE_TOKENS
        case ToolCall():
            return _text(part.name) + _text(part.arguments)
        case ToolResult():
            return sum(map(_part, part.parts))
        case Opaque():
            return _json(part.value)


def _tool(tool: Tool | Opaque) -> float:
    if isinstance(tool, Opaque):
        return _json(tool.value)
    return _text(tool.name) + _text(tool.description or "") + _json(dict(tool.parameters))


def _json(value: Json) -> float:
    return _text(encode_text(value))


def _text(text: str) -> float:
    others = 0 if text.isascii() else sum(character > "\x7f" for character in text)
    return (len(text) - others) / _ASCII_CHARS_PER_TOKEN + others / _OTHER_CHARS_PER_TOKEN


def split_data_url(url: str) -> tuple[str, str] | None:
    """Media type and base64 text of a data: URL; None for any other URL."""
    head, comma, payload = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    return head[len("data:") : -len(";base64")], payload


def data_url(media_type: str, payload: str) -> str:
    return f"data:{media_type};base64,{payload}"


def read_document(part: Opaque) -> Document | None:
    """The document in a part, or None if it is something else or is in the provider's file
    store.
    """
    return wire_format(part.wire).read_document(object_of(part.value))


def file_document(file_data: Json, filename: Json) -> Document | None:
    """A file as OpenAI's wires send it."""
    if not isinstance(file_data, str):
        return None
    media_type, payload = split_data_url(file_data) or ("application/pdf", file_data)
    return Document(text_of(filename) or None, media_type, payload)
