"""Tools on wires that do not know their kind: offered as functions, and called back as what they are."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from metaclaw.domain.chat import ChatRequest, Json, Opaque, Tool, ToolCall
from metaclaw.wires.fields import Object, encode_text, object_of, text_of
from metaclaw.wires.format import wire_format

_MAX_NAME_CHARS = 64
_DEFAULT_NAMESPACE = "functions"
_INPUT: Mapping[str, Json] = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The tool's input as plain text."}},
    "required": ["input"],
    "additionalProperties": False,
}


class Kind(StrEnum):
    """How a client wants a tool to be called."""

    FUNCTION = "function"
    CUSTOM = "custom"


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool as the client knows it."""

    kind: Kind
    name: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """A tool as other wires are offered it, and as its client knows it."""

    tool: Tool
    spoken: ClientTool


def flat_name(namespace: str | None, name: str) -> str:
    """One name for a tool in a namespace, short enough for every wire."""
    full = name if namespace in (None, "", _DEFAULT_NAMESPACE) else f"{namespace}__{name}"
    if len(full) <= _MAX_NAME_CHARS:
        return full
    digest = hashlib.blake2b(full.encode("utf-8", "replace"), digest_size=4).hexdigest()
    return f"{full[: _MAX_NAME_CHARS - 9]}_{digest}"


def call_name(call: ToolCall) -> str:
    """The flat name of a call in a client's history."""
    return flat_name(text_of(call.extra.get("namespace")) or None, call.name)


def portable_tools(request: ChatRequest) -> tuple[Tool, ...]:
    """Every tool of the request that can be offered as a function. Tools a provider would run itself are left out."""
    return tuple(offer.tool for offer in _offers(request))


class ClientTools:
    """The client's own names and kinds for the tools that were offered under flat names."""

    def __init__(self, request: ChatRequest) -> None:
        self._spoken = {offer.tool.name: offer.spoken for offer in _offers(request, lenient=True)}

    def spoken(self, name: str) -> ClientTool:
        """How the client calls the tool that the model called `name`."""
        return self._spoken.get(name) or ClientTool(Kind.FUNCTION, name)

    def is_custom(self, name: str) -> bool:
        """Whether the client expects free text for this tool, and not JSON."""
        return self.spoken(name).kind is Kind.CUSTOM


def custom_arguments(text: str) -> str:
    """Free text for a custom tool, as the arguments of the function that stands for it."""
    return encode_text({"input": text})


def custom_input(arguments: str) -> str:
    """The free text in such arguments; where a model wrote something else, all of it."""
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return arguments
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
    """Tools that travel as an input item."""
    for message in request.messages:
        for part in message.parts:
            if isinstance(part, Opaque) and (value := object_of(part.value)).get("type") == "additional_tools":
                yield from (Opaque(part.wire, tool) for tool in _items(value.get("tools")))


def custom_offer(value: Object, namespace: str | None) -> ToolOffer:
    """A custom tool as a function with one text."""
    name = text_of(value.get("name"))
    described = "\n\n".join(part for part in (text_of(value.get("description")), _grammar(object_of(value.get("format")))) if part)
    return ToolOffer(Tool(flat_name(namespace, name), described or None, _INPUT), ClientTool(Kind.CUSTOM, name, namespace))


def _grammar(format_: Object) -> str:
    """A grammar cannot be enforced through a function, so the model is told of it."""
    rules = object_of(format_.get("grammar")) or format_
    definition = text_of(rules.get("definition"))
    return f"The input must follow this {text_of(rules.get('syntax')) or 'formal'} grammar:\n{definition}" if definition else ""


def _items(value: Json) -> Iterable[Json]:
    return value if isinstance(value, list) else ()
