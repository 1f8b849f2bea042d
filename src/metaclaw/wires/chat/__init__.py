"""OpenAI chat completions: `POST /v1/chat/completions`."""

from typing import Final

from metaclaw.domain.chat import Wire
from metaclaw.wires.chat import answers, relay, requests
from metaclaw.wires.deltas import SseReader
from metaclaw.wires.format import WireFormat, openai_body, openai_error
from metaclaw.wires.sse import event_bytes

FORMAT: Final = WireFormat(
    wire=Wire.CHAT,
    path="/chat/completions",
    id_prefix=answers.ID_PREFIX,
    list_key="messages",
    parse_request=requests.parse_request,
    parse_item=requests.parse_message,
    render_request=requests.render_request,
    indispensable=("audio", "function_call", "functions"),
    read_document=requests.read_file,
    render_tool=requests.render_tool,
    offered_tools=requests.offered_tools,
    wants_json=requests.wants_json,
    place_in_system=requests.place_in_system,
    parse_answer=answers.parse_answer,
    render_answer=answers.render_answer,
    reader=lambda: SseReader(answers.ChatEventReader()),
    writer=answers.ChatWriter,
    resumed_writer=relay.resume,
    whole_facts=answers.whole_facts,
    streamed_facts=answers.streamed_facts,
    footer=relay.ChatFooter(),
    is_ordered=False,
    calls=relay.ChatCalls(),
    read_attempt=relay.read_attempt,
    call_results=relay.call_results,
    own_words=relay.own_words,
    restore=relay.restore,
    error_body=openai_body,
    error_event=lambda message, code: event_bytes(openai_error(502, message, code)),
)
