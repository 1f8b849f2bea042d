"""The wires agents speak: OpenAI chat completions, OpenAI responses, Anthropic messages, Gemini. A
new one is registered here.
"""

from metaclaw.wires import chat, gemini, messages, responses
from metaclaw.wires.deltas import collect, deltas_of, read_answer, said_parts
from metaclaw.wires.fields import decode_json, decode_object, encode_json, literal_json
from metaclaw.wires.format import (
    AttemptMessages,
    CallOutput,
    Facts,
    HeldCall,
    StreamWriter,
    parse_error,
    register,
    reported_error,
    signed_wire,
    streamed_facts,
    whole_facts,
    wire_format,
    wire_formats,
)
from metaclaw.wires.gemini import COUNT, google_model, join_call, read_path, split_call
from metaclaw.wires.relay import (
    TURN_MARK,
    CallHold,
    Footer,
    has_call_mark,
    plain_id,
    plain_text,
    read_json,
    streamed_calls,
    whole_calls,
)
from metaclaw.wires.responses.requests import developer_item
from metaclaw.wires.results import WHOLE_ITEM, new_results, result_places
from metaclaw.wires.sse import EventParser, TailHold, begins_answer
from metaclaw.wires.translation import call_name, estimate_tokens, plain, portable_tools

# A provider that does not speak a client's wire is asked in the first of these that it speaks.
for _format in (chat.FORMAT, messages.FORMAT, responses.FORMAT, gemini.FORMAT):
    register(_format)
