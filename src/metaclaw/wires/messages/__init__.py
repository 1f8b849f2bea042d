"""Anthropic messages."""

from collections.abc import Sequence

from metaclaw.domain.chat import ChatRequest, Completion, Json
from metaclaw.domain.enforcement import TrueAnswer
from metaclaw.wires import failure
from metaclaw.wires.attempt import Attempt, HeldCall
from metaclaw.wires.fields import encode
from metaclaw.wires.messages import history
from metaclaw.wires.messages.answer import parse_answer, render_answer
from metaclaw.wires.messages.parsing import parse_request
from metaclaw.wires.messages.reading import MessagesMeaning
from metaclaw.wires.messages.rendering import render_request
from metaclaw.wires.messages.writing import MessagesWriter
from metaclaw.wires.reader import Reader
from metaclaw.wires.sse import event_bytes


class MessagesFormat:
    """`POST /v1/messages`."""

    def parse_request(self, body: dict[str, Json]) -> ChatRequest:
        return parse_request(body)

    def render_request(self, request: ChatRequest) -> dict[str, Json]:
        return render_request(request)

    def parse_answer(self, body: bytes) -> Completion:
        return parse_answer(body)

    def render_answer(self, completion: Completion, request: ChatRequest) -> bytes:
        return render_answer(completion, request)

    def reader(self) -> Reader:
        return Reader(MessagesMeaning())

    def writer(self, request: ChatRequest) -> MessagesWriter:
        return MessagesWriter(request)

    def resumed_writer(self, request: ChatRequest, passed: bytes) -> MessagesWriter:
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
        return encode(failure.anthropic_error(status, message))

    def parse_error(self, status: int, body: bytes) -> tuple[str, str]:
        return failure.parse_error(status, body)

    def error_event(self, message: str, code: str) -> bytes:
        return event_bytes(failure.anthropic_error(502, message), "error")
