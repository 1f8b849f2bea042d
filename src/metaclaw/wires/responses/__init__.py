"""OpenAI responses: `POST /v1/responses`."""

from typing import Final

from metaclaw.domain.chat import Wire
from metaclaw.wires.deltas import SseReader
from metaclaw.wires.format import WireFormat, openai_body
from metaclaw.wires.responses import answers, relay, requests
from metaclaw.wires.sse import event_bytes

FORMAT: Final = WireFormat(
    wire=Wire.RESPONSES,
    path="/responses",
    id_prefix=answers.ID_PREFIX,
    list_key="input",
    previous_key="previous_response_id",
    kept_history_keys=("previous_response_id", "conversation", "prompt"),
    is_kept_by_provider=lambda body: (
        bool(body.get("conversation")) or body.get("background") is True
    ),
    unkept={"store": False},
    parse_request=requests.parse_request,
    parse_item=requests.parse_item,
    render_request=requests.render_request,
    indispensable=("previous_response_id", "conversation", "prompt", "background"),
    hosted_traces=(
        *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"),
        *("mcp_list_tools", "additional_tools"),
    ),
    read_document=requests.read_file,
    render_tool=lambda tool: requests.render_tool(tool, own=False),
    offered_tools=requests.offered_tools,
    wants_json=requests.wants_json,
    system_texts=lambda body: body.get("instructions"),
    place_in_system=requests.place_in_system,
    has_system_field=True,
    later_system={"role": "developer"},
    text_part="input_text",
    continues_messages=False,
    needs_signed_reasoning=True,
    parse_answer=answers.parse_answer,
    render_answer=answers.render_answer,
    reader=lambda: SseReader(answers.ResponsesEventReader()),
    writer=relay.ResponsesWriter,
    resumed_writer=relay.resume,
    final_events=("response.completed", "response.failed", "response.incomplete"),
    whole_facts=answers.whole_facts,
    streamed_facts=answers.streamed_facts,
    footer=relay.ResponsesFooter(),
    calls=relay.ResponsesCalls(),
    read_attempt=relay.read_attempt,
    call_results=relay.call_results,
    own_words=relay.own_words,
    restore=relay.restore,
    error_body=openai_body,
    error_event=lambda message, code: event_bytes(relay.error_event(message, code, 0), "error"),
)
