"""The wires agents speak: OpenAI chat completions, OpenAI responses, Anthropic messages. A new one is registered here."""

from metaclaw.wires import chat, messages, responses
from metaclaw.wires.deltas import collect as collect
from metaclaw.wires.deltas import deltas_of as deltas_of
from metaclaw.wires.deltas import read_answer as read_answer
from metaclaw.wires.deltas import said_parts as said_parts
from metaclaw.wires.fields import decode_json as decode_json
from metaclaw.wires.fields import encode_json as encode_json
from metaclaw.wires.fields import literal_json as literal_json
from metaclaw.wires.format import Facts as Facts
from metaclaw.wires.format import StreamWriter as StreamWriter
from metaclaw.wires.format import parse_error as parse_error
from metaclaw.wires.format import register
from metaclaw.wires.format import reported_error as reported_error
from metaclaw.wires.format import signed_wire as signed_wire
from metaclaw.wires.format import streamed_facts as streamed_facts
from metaclaw.wires.format import whole_facts as whole_facts
from metaclaw.wires.format import wire_format as wire_format
from metaclaw.wires.format import wire_formats as wire_formats
from metaclaw.wires.relay import TURN_MARK as TURN_MARK
from metaclaw.wires.relay import CallHold as CallHold
from metaclaw.wires.relay import Footer as Footer
from metaclaw.wires.relay import HeldCall as HeldCall
from metaclaw.wires.relay import has_call_mark as has_call_mark
from metaclaw.wires.relay import plain_id as plain_id
from metaclaw.wires.relay import plain_text as plain_text
from metaclaw.wires.relay import whole_calls as whole_calls
from metaclaw.wires.sse import EventParser as EventParser
from metaclaw.wires.sse import TailHold as TailHold
from metaclaw.wires.sse import begins_answer as begins_answer
from metaclaw.wires.translation import call_name as call_name
from metaclaw.wires.translation import estimate_tokens as estimate_tokens
from metaclaw.wires.translation import plain as plain
from metaclaw.wires.translation import portable_tools as portable_tools

# A provider that does not speak a client's wire is asked in the first of these that it speaks.
for _format in (chat.FORMAT, messages.FORMAT, responses.FORMAT):
    register(_format)
