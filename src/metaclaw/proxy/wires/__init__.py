"""The wires agents speak: OpenAI chat completions, OpenAI responses, Anthropic messages."""

from metaclaw.proxy.wires.collect import collect, deltas_of
from metaclaw.proxy.wires.estimate import estimate_tokens
from metaclaw.proxy.wires.fields import encode as encode_json
from metaclaw.proxy.wires.format import StreamReader, StreamWriter, WireFormat, wire_format
from metaclaw.proxy.wires.plain import plain
from metaclaw.proxy.wires.summary import Facts, streamed_facts, whole_facts
from metaclaw.proxy.wires.tail import TailHold

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
