"""The wires agents speak: OpenAI chat completions, OpenAI responses, Anthropic messages."""

from metaclaw.wires.collect import collect, deltas_of
from metaclaw.wires.estimate import estimate_tokens
from metaclaw.wires.fields import encode as encode_json
from metaclaw.wires.format import StreamReader, StreamWriter, WireFormat, wire_format
from metaclaw.wires.plain import plain
from metaclaw.wires.summary import Facts, streamed_facts, whole_facts
from metaclaw.wires.tail import TailHold

__all__ = [
    "Facts",
    "StreamReader",
    "StreamWriter",
    "TailHold",
    "WireFormat",
    "collect",
    "deltas_of",
    "encode_json",
    "estimate_tokens",
    "plain",
    "streamed_facts",
    "whole_facts",
    "wire_format",
]
