"""Anthropic messages: `POST /v1/messages`."""

from typing import Final

from metaclaw.domain.chat import Wire
from metaclaw.wires.deltas import SseReader
from metaclaw.wires.fields import encode_json
from metaclaw.wires.format import WireFormat, anthropic_error
from metaclaw.wires.messages import answers, relay, requests
from metaclaw.wires.sse import event_bytes

FORMAT: Final = WireFormat(
    wire=Wire.MESSAGES,
    path="/messages",
    id_prefix=answers.ID_PREFIX,
    sign="anthropic-version",
    list_key="messages",
    required_key="max_tokens",
    parse_request=requests.parse_request,
    parse_item=requests.parse_message,
    render_request=requests.render_request,
    indispensable=("container", "mcp_servers"),
    hosted_traces=(
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "tool_reference",
        "container_upload",
    ),
    read_document=requests.read_file,
    render_tool=requests.render_tool,
    offered_tools=requests.offered_tools,
    wants_json=requests.wants_json,
    system_texts=requests.system_texts,
    place_in_system=requests.place_in_system,
    has_system_field=True,
    appends_parts=True,
    joins_results=True,
    needs_signed_reasoning=True,
    caches_everything=lambda body: bool(body.get("cache_control")),
    parse_answer=answers.parse_answer,
    render_answer=answers.render_answer,
    reader=lambda: SseReader(answers.MessagesEventReader()),
    writer=answers.MessagesWriter,
    resumed_writer=relay.resume,
    final_events=("message_stop",),
    whole_facts=answers.whole_facts,
    streamed_facts=answers.streamed_facts,
    footer=relay.MessagesFooter(),
    calls=relay.MessagesCalls(),
    read_attempt=relay.read_attempt,
    call_results=relay.call_results,
    own_words=relay.own_words,
    restore=relay.restore,
    error_body=lambda status, message, code, param: encode_json(anthropic_error(status, message)),
    error_event=lambda message, code: event_bytes(anthropic_error(502, message), "error"),
)
