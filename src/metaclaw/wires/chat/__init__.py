"""OpenAI chat completions."""

from collections.abc import Sequence

from metaclaw.domain.chat import ChatRequest, Completion, Json
from metaclaw.domain.enforcement import TrueAnswer
from metaclaw.wires import failure
from metaclaw.wires.attempt import Attempt, HeldCall
from metaclaw.wires.chat import history
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

    def resumed_writer(self, request: ChatRequest, passed: bytes) -> ChatWriter:
        return history.resume(request, passed)

    def read_attempt(self, said: bytes, *, stream: bool) -> Attempt:
        return history.read_attempt(said, stream=stream)

    def call_results(self, calls: Sequence[HeldCall], texts: Sequence[str]) -> list[Json]:
        return history.call_results(calls, texts)

    def own_words(self, text: str) -> Json:
        return history.own_words(text)

    def restore(self, items: Sequence[Json], answer: TrueAnswer, messages: Sequence[Json]) -> list[Json] | None:
        return history.restore(items, answer, messages)

    def error_body(self, status: int, message: str, code: str, param: str | None) -> bytes:
        return failure.openai_body(status, message, code, param)

    def parse_error(self, status: int, body: bytes) -> tuple[str, str]:
        return failure.parse_error(status, body)

    def error_event(self, message: str, code: str) -> bytes:
        return event_bytes(failure.openai_error(502, message, code, None))
