"""OpenAI chat completions."""

from metaclaw.domain.chat import ChatRequest, Completion, Json
from metaclaw.wires import failure
from metaclaw.wires.chat.answer import parse_answer, render_answer
from metaclaw.wires.chat.parsing import parse_request
from metaclaw.wires.chat.rendering import render_request
from metaclaw.wires.chat.stream import ChatMeaning, ChatWriter
from metaclaw.wires.reader import Reader
from metaclaw.wires.sse import event_bytes


class ChatFormat:
    """`POST /v1/chat/completions`."""

    def parse_request(self, body: dict[str, Json]) -> ChatRequest:
        return parse_request(body)

    def render_request(self, request: ChatRequest) -> dict[str, Json]:
        return render_request(request)

    def parse_answer(self, body: bytes) -> Completion:
        return parse_answer(body)

    def render_answer(self, completion: Completion, request: ChatRequest) -> bytes:
        return render_answer(completion, request)

    def reader(self) -> Reader:
        return Reader(ChatMeaning())

    def writer(self, request: ChatRequest) -> ChatWriter:
        return ChatWriter(request)

    def error_body(self, status: int, message: str, code: str, param: str | None) -> bytes:
        return failure.openai_body(status, message, code, param)

    def parse_error(self, status: int, body: bytes) -> tuple[str, str]:
        return failure.parse_error(status, body)

    def error_event(self, message: str, code: str) -> bytes:
        return event_bytes(failure.openai_error(502, message, code, None))
