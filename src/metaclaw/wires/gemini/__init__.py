"""Gemini: `POST /v1beta/models/MODEL:generateContent` and `:streamGenerateContent`.

The paths name the model and whether to stream. The proxy writes both into the body, as the other
wires have them, and the endpoint of a Gemini provider takes them out again (`split_call`).
"""

import re
from typing import Final, NamedTuple

import msgspec

from metaclaw.domain.chat import Json, Wire
from metaclaw.errors import WireError
from metaclaw.wires.deltas import SseReader
from metaclaw.wires.fields import Object, decode_or_text, encode_json
from metaclaw.wires.format import WireFormat
from metaclaw.wires.gemini import answers, relay, requests
from metaclaw.wires.messages import requests as messages
from metaclaw.wires.sse import event_bytes

PATH: Final = "/models:generateContent"
COUNT: Final = "countTokens"
_METHODS: Final = {"generateContent": False, "streamGenerateContent": True}
_CALL = re.compile(r"/models/([^:]+):([A-Za-z]+)")
_HEAD = re.compile(
    rb'\s*\{\s*"model":\s*("(?:[^"\\]|\\.)*+")\s*(?:,\s*"stream":\s*(true|false)\s*)?,?\s*'
)


class GeminiCall(NamedTuple):
    """What a path asks for."""

    model: str
    method: str


def read_path(path: str) -> GeminiCall | None:
    """The model and the method that a path below the version names, or None."""
    found = _CALL.fullmatch(path)
    return None if found is None else GeminiCall(found[1], found[2])


def join_call(asked: GeminiCall, query: str, body: bytes) -> bytes | None:
    """The body with the model, and whether to stream, at its beginning; None for a method that asks
    for no answer. Raises WireError for a stream in another form than events.
    """
    streams = _METHODS.get(asked.method)
    if streams is None:
        return None
    if streams and "alt=sse" not in query.split("&"):
        raise WireError("a stream must be asked for with ?alt=sse", param="alt")
    rest = body.lstrip()
    if not rest.startswith(b"{"):
        return body
    if b'"model"' in rest or b'"stream"' in rest:
        fields = decode_or_text(rest)
        if isinstance(fields, dict) and fields.keys() & {"model", "stream"}:
            rest = encode_json({k: v for k, v in fields.items() if k not in ("model", "stream")})
    rest = rest[1:].lstrip()
    head = b'{"model":' + msgspec.json.encode(asked.model) + (b',"stream":true' if streams else b"")
    return head + (b"" if rest.startswith(b"}") else b",") + rest


def split_call(body: bytes) -> tuple[str, str, bytes]:
    """Path, query and body that Google's servers take, of a body as the proxy has it."""
    found = _HEAD.match(body)
    if found is None:
        return "/models/none:generateContent", "", body
    model: str = msgspec.json.decode(found[1])
    name = model if "/" in model else f"models/{model}"
    rest = b"{" + body[found.end() :]
    if found[2] == b"true":
        return f"/{name}:streamGenerateContent", "alt=sse", rest
    return f"/{name}:generateContent", "", rest


def google_model(name: str) -> Object:
    """An entry of a list of models."""
    methods: Json = [*_METHODS, COUNT]
    return {
        "name": f"models/{name}",
        "displayName": name,
        "supportedGenerationMethods": methods,
    }


FORMAT: Final = WireFormat(
    wire=Wire.GEMINI,
    path=PATH,
    id_prefix=answers.ID_PREFIX,
    sign="x-goog-api-key",
    list_key="contents",
    parts_key="parts",
    tool_keys=("functionDeclarations", "function_declarations"),
    view=requests.view,
    view_item=requests.as_message,
    kept_history_keys=("cachedContent",),
    parse_request=requests.parse_request,
    parse_item=messages.parse_message,
    render_request=requests.render_request,
    indispensable=("cachedContent",),
    read_document=messages.read_file,
    render_tool=requests.render_tool,
    offered_tools=messages.offered_tools,
    wants_json=messages.wants_json,
    system_texts=messages.system_texts,
    place_in_system=requests.place_in_system,
    has_system_field=True,
    continues_messages=False,
    needs_signed_reasoning=True,
    parse_answer=answers.parse_answer,
    render_answer=answers.render_answer,
    reader=lambda: SseReader(answers.GeminiEventReader()),
    writer=answers.GeminiWriter,
    resumed_writer=relay.resume,
    final_events=("finishReason",),
    goes_on=True,
    whole_facts=answers.whole_facts,
    streamed_facts=answers.streamed_facts,
    footer=relay.GeminiFooter(),
    calls=relay.GeminiCalls(),
    read_attempt=relay.read_attempt,
    call_results=relay.call_results,
    own_words=relay.own_words,
    restore=relay.restore,
    error_body=lambda status, message, code, param: encode_json(
        answers.google_error(status, message)
    ),
    error_event=lambda message, code: event_bytes(answers.google_error(502, message)),
)
