"""The wires agents speak: OpenAI chat completions, OpenAI responses, Anthropic messages."""

from metaclaw.wires.attempt import Attempt, HeldCall, plain_id
from metaclaw.wires.collect import collect, deltas_of
from metaclaw.wires.estimate import estimate_tokens
from metaclaw.wires.failure import reported_error
from metaclaw.wires.fields import decode as decode_json
from metaclaw.wires.fields import encode as encode_json
from metaclaw.wires.first_event import begins_answer
from metaclaw.wires.footer import Footer, wants_json
from metaclaw.wires.format import StreamReader, StreamWriter, WireFormat, wire_format
from metaclaw.wires.hold import CallHold, has_call_mark, whole_calls
from metaclaw.wires.plain import plain
from metaclaw.wires.said import read_answer, said_parts
from metaclaw.wires.summary import Facts, streamed_facts, whole_facts
from metaclaw.wires.tail import TailHold
from metaclaw.wires.tools import call_name, portable_tools

__all__ = [
    "Attempt",
    "CallHold",
    "Facts",
    "Footer",
    "HeldCall",
    "StreamReader",
    "StreamWriter",
    "TailHold",
    "WireFormat",
    "begins_answer",
    "call_name",
    "collect",
    "decode_json",
    "deltas_of",
    "encode_json",
    "estimate_tokens",
    "has_call_mark",
    "plain",
    "plain_id",
    "portable_tools",
    "read_answer",
    "reported_error",
    "said_parts",
    "streamed_facts",
    "wants_json",
    "whole_calls",
    "whole_facts",
    "wire_format",
]
