"""OpenAI responses streams for a client: write them from deltas; in relayed ones find and hold tool
calls, restore true answers, add a line."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, assert_never

from metaclaw.domain.chat import (
    Begin,
    ChatRequest,
    Delta,
    End,
    Failed,
    Finish,
    Json,
    Opaque,
    OpaqueDelta,
    Reasoning,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    Wire,
)
from metaclaw.domain.ids import new_id
from metaclaw.domain.turn import TrueAnswer
from metaclaw.wires.chat.answers import render_logprobs
from metaclaw.wires.deltas import CallQueue, PendingCall
from metaclaw.wires.fields import (
    Object,
    decode_object,
    encode_text,
    json_text,
    list_of,
    object_of,
    text_of,
)
from metaclaw.wires.format import AttemptMessages, CallOutput, FooterPlace, HeldCall
from metaclaw.wires.relay import events_of, has_mark, ids_of, is_shown, plain_id, with_true_id
from metaclaw.wires.responses.answers import (
    Envelope,
    call_item,
    message_item,
    reasoning_item,
    text_part,
)
from metaclaw.wires.sse import event_bytes, events_with
from metaclaw.wires.translation import ClientTools, custom_arguments, flat_name


@dataclass(slots=True)
class _OpenItem:
    """The output item that is being written."""

    kind: str
    id: str
    index: int = 0
    pieces: list[str] = field(default_factory=list)
    signature: str | None = None
    redacted: bool = False
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def error_event(message: str, code: str, number: int) -> Object:
    """An error event of a stream."""
    return {
        "type": "error",
        "sequence_number": number,
        "code": code,
        "message": message,
        "param": None,
    }


class ResponsesWriter:
    """Writes deltas as numbered events: one output item at a time, each added, filled and done;
    then the whole response.
    """

    def __init__(self, request: ChatRequest) -> None:
        self._request = request
        self._tools = ClientTools(request)
        self._envelope: Envelope | None = None
        self.number = 0
        """The number of the next event."""
        self._output: dict[int, Json] = {}
        self._next_index = 0
        self._item: _OpenItem | None = None
        self._begun: dict[int, _OpenItem] = {}
        self._calls = CallQueue()
        self._status = "completed"

    def resume(self, shown: "_ReadStream") -> None:
        """Continue a response of which the client has these items; `write` must not be given a
        Begin.
        """
        self.number, response = shown.number, shown.response
        self._output = {index: item for index, item in shown.items.items() if index in shown.done}
        self._next_index = max(shown.items, default=-1) + 1
        self._envelope = Envelope(
            self._request, text_of(response.get("id")), text_of(response.get("model"))
        )
        self._envelope.repeat(response)
        for place, (index, call) in enumerate(shown.calls()):
            if index not in shown.done:
                pieces, item = shown.pieces.get(index, []), object_of(shown.items[index])
                self._begun[place] = _OpenItem("call", text_of(item.get("id")), index, [*pieces])
                self._calls.add_said(ToolCallDelta(place, call.id, call.name, call.arguments))
        if (first := self._calls.open) is not None:
            self._item = self._begun.pop(first.index)

    def continue_at(self, number: int, index: int) -> None:
        """Continue with this event and this item, without the items before it."""
        self.number, self._next_index = number, index

    def write_whole(self, text: str) -> bytes:
        """Return the bytes for a message that has just this text."""
        return self.write(TextDelta(text)) + self._leave()

    def write(self, delta: Delta) -> bytes:
        """Return the bytes for one delta."""
        match delta:
            case Begin():
                self._envelope = Envelope(self._request, delta.id, delta.model)
                begun = self._envelope.begin()
                return self._event("response.created", {"response": begun}) + self._event(
                    "response.in_progress", {"response": begun}
                )
            case TextDelta():
                return self._text(delta)
            case ReasoningDelta():
                return self._think(delta)
            case ToolCallDelta():
                return self._call(delta)
            case OpaqueDelta():
                return self._opaque(delta.part)
            case End():
                return self._end(delta)
            case Failed():
                return self._fail(delta)
            case _:
                assert_never(delta)

    def _event(self, name: str, body: Object) -> bytes:
        said = event_bytes({"type": name, "sequence_number": self.number, **body}, name)
        self.number += 1
        return said

    def _at(self, item: _OpenItem) -> Object:
        return {"item_id": item.id, "output_index": item.index}

    def _added(self, item: _OpenItem, body: Object) -> bytes:
        self._item, item.index = item, self._next_index
        self._next_index += 1
        return self._event("response.output_item.added", {"output_index": item.index, "item": body})

    def _done(self, item: _OpenItem, body: Object) -> bytes:
        self._item, self._output[item.index] = None, body
        return self._event("response.output_item.done", {"output_index": item.index, "item": body})

    def items(self) -> list[Json]:
        """The items that have been written."""
        return [self._output[index] for index in sorted(self._output)]

    def _leave(self) -> bytes:
        """Finish the open item, and write the waiting calls."""
        item = self._item
        if item is None:
            return b""
        if item.kind == "call":
            return self._calls.write(self._say_call, self._finish_call, is_end=True)
        return self._finish_text(item) if item.kind == "message" else self._finish_reasoning(item)

    def _text(self, delta: TextDelta) -> bytes:
        if not delta.text and not delta.logprobs:
            return b""
        said, item = b"", self._item
        if item is None or item.kind != "message":
            said = self._leave()
            item = _OpenItem("message", new_id("msg_"))
            said += self._added(item, message_item(item.id, None, (), "in_progress"))
            said += self._event(
                "response.content_part.added",
                {**self._at(item), "content_index": 0, "part": text_part("", ())},
            )
        item.pieces.append(delta.text)
        item.logprobs += delta.logprobs
        body: Object = {
            **self._at(item),
            "content_index": 0,
            "delta": delta.text,
            "logprobs": render_logprobs(delta.logprobs),
        }
        return said + self._event("response.output_text.delta", body)

    def _finish_text(self, item: _OpenItem) -> bytes:
        where: Object = {**self._at(item), "content_index": 0}
        logprobs = render_logprobs(item.logprobs)
        said = self._event(
            "response.output_text.done", {**where, "text": item.text, "logprobs": logprobs}
        )
        said += self._event(
            "response.content_part.done", {**where, "part": text_part(item.text, item.logprobs)}
        )
        return said + self._done(
            item, message_item(item.id, item.text, item.logprobs, self._status)
        )

    def _think(self, delta: ReasoningDelta) -> bytes:
        said, item = b"", self._item
        if item is None or item.kind != "reasoning" or delta.redacted:
            if not delta.text and delta.signature is None:
                return b""
            said = self._leave()
            item = _OpenItem("reasoning", new_id("rs_"))
            said += self._added(item, reasoning_item(item.id, Reasoning("")))
        if delta.text:
            if not item.pieces:
                part: Object = {"type": "summary_text", "text": ""}
                said += self._event(
                    "response.reasoning_summary_part.added",
                    {**self._at(item), "summary_index": 0, "part": part},
                )
            item.pieces.append(delta.text)
            said += self._event(
                "response.reasoning_summary_text.delta",
                {**self._at(item), "summary_index": 0, "delta": delta.text},
            )
        if delta.signature is not None:
            item.signature, item.redacted = delta.signature, delta.redacted
            said += self._finish_reasoning(item)
        return said

    def _finish_reasoning(self, item: _OpenItem) -> bytes:
        said = b""
        if item.text:
            where: Object = {**self._at(item), "summary_index": 0}
            said = self._event("response.reasoning_summary_text.done", {**where, "text": item.text})
            part: Object = {"type": "summary_text", "text": item.text}
            said += self._event("response.reasoning_summary_part.done", {**where, "part": part})
        body = reasoning_item(item.id, Reasoning(item.text, item.signature, item.redacted))
        return said + self._done(item, body)

    def _call(self, delta: ToolCallDelta) -> bytes:
        said = b"" if self._item is not None and self._item.kind == "call" else self._leave()
        self._calls.add(delta)
        return said + self._calls.write(self._say_call, self._finish_call)

    def _say_call(self, call: PendingCall) -> bytes:
        """Write the new arguments of the open call. A custom tool's text is known only when its
        arguments are complete.
        """
        said, item = b"", self._item
        if item is None:
            item = self._item = self._begun.pop(call.index, None)
        if item is None:
            custom = self._tools.is_custom(call.name)
            item = _OpenItem("call", new_id("ctc_" if custom else "fc_"))
            said = self._added(
                item,
                call_item(item.id, ToolCall(call.id, call.name, ""), self._tools, "in_progress"),
            )
        if call.unsaid and not self._tools.is_custom(call.name):
            said += self._event(
                "response.function_call_arguments.delta", {**self._at(item), "delta": call.unsaid}
            )
            call.unsaid = ""
        return said

    def _finish_call(self, call: PendingCall) -> bytes:
        item = self._item
        if item is None:
            return b""
        body = call_item(
            item.id, ToolCall(call.id, call.name, call.arguments), self._tools, self._status
        )
        if self._tools.is_custom(call.name):
            rest = text_of(body["input"])[len(item.text) :]
            said = self._event(
                "response.custom_tool_call_input.delta", {**self._at(item), "delta": rest}
            )
            said += self._event(
                "response.custom_tool_call_input.done", {**self._at(item), "input": body["input"]}
            )
        else:
            arguments: Object = {"name": body["name"], "arguments": call.arguments}
            said = self._event(
                "response.function_call_arguments.done", {**self._at(item), **arguments}
            )
        return said + self._done(item, body)

    def _opaque(self, part: Opaque) -> bytes:
        if part.wire is not Wire.RESPONSES:
            return b""
        body = dict(object_of(part.value))
        item = _OpenItem("opaque", "")
        return self._leave() + self._added(item, body) + self._done(item, body)

    def _end(self, delta: End) -> bytes:
        if delta.finish in (Finish.LENGTH, Finish.CONTENT_FILTER):
            self._status = "incomplete"
        said = self._leave()
        envelope = self._envelope or Envelope(self._request, "", "")
        response = envelope.render(self.items(), finish=delta.finish, usage=delta.usage)
        return said + self._event(f"response.{self._status}", {"response": response})

    def _fail(self, delta: Failed) -> bytes:
        """Write both events that clients may expect for a failure: the error, and the failed
        response.
        """
        said = event_bytes(error_event(delta.message, delta.code, self.number), "error")
        self.number += 1
        envelope = self._envelope or Envelope(self._request, "", "")
        return said + self._event(
            "response.failed", {"response": envelope.fail(self.items(), delta.message)}
        )


# Calls that the client runs, and the name of the tool in checks; None if the item has a name.
CALLS: Final[Mapping[str, str | None]] = {
    "function_call": None,
    "custom_tool_call": None,
    "local_shell_call": "local_shell",
    "shell_call": "shell",
    "apply_patch_call": "apply_patch",
    "computer_call": "computer",
}
# Calls whose results are texts, so that they can be refused.
_REFUSABLE = frozenset(("function_call", "custom_tool_call"))


def read_attempt(answer: bytes, stream: bool) -> AttemptMessages:
    if stream:
        identity, items = _streamed(answer)
    else:
        body = decode_object(answer, "an answer")
        identity, items = text_of(body.get("id")), list_of(body.get("output"))
    calls = tuple(_held_calls(items))
    return AttemptMessages(
        identity, tuple(items), calls, all(call.id and call.kind in _REFUSABLE for call in calls)
    )


def _streamed(answer: bytes) -> tuple[str, list[Json]]:
    read = _ReadStream(answer)
    items = [read.items[index] for index in sorted(read.done)]
    return text_of(read.response.get("id")), items or list_of(read.response.get("output"))


def held_call(item: Object) -> HeldCall | None:
    """The call in an output item, if the client is to run it; else None."""
    kind = text_of(item.get("type"))
    if kind not in CALLS:
        return None
    identity = text_of(item.get("call_id")) or text_of(item.get("id"))
    fixed = CALLS[kind]
    if fixed is not None:
        given = item.get("action") or item.get("operation") or item.get("actions")
        return HeldCall(
            identity,
            fixed,
            encode_text(object_of(given) if isinstance(given, dict) else {"input": given}),
            kind,
        )
    name = flat_name(text_of(item.get("namespace")) or None, text_of(item.get("name")))
    if kind == "custom_tool_call":
        return HeldCall(identity, name, custom_arguments(text_of(item.get("input"))), kind)
    return HeldCall(identity, name, json_text(item.get("arguments")), kind)


def _held_calls(items: Iterable[Json]) -> list[HeldCall]:
    return [call for item in items if (call := held_call(object_of(item))) is not None]


def call_results(results: Sequence[CallOutput]) -> list[Json]:
    return [
        {"type": f"{one.call.kind}_output", "call_id": one.call.id, "output": one.text}
        for one in results
    ]


def own_words(text: str) -> Json:
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text}],
    }


def restore(
    items: Sequence[Json], answer: TrueAnswer, messages: Sequence[Json]
) -> list[Json] | None:
    objects = [object_of(item) for item in items]
    known = ids_of(answer)
    shown = _places(objects, answer, known)
    if not shown:
        return None
    first = shown[0]
    while first and _is_said(objects[first - 1]):
        first -= 1
    gone = {*range(first, shown[0]), *shown}
    for place in range(shown[0], shown[-1]):
        if _is_said(objects[place]):
            gone.add(place)
    restored: list[Json] = []
    for place, item in enumerate(items):
        if place == first:
            restored += messages
        if place not in gone:
            restored.append(with_true_id(objects[place], "call_id", known) or item)
    return restored


def _places(objects: Sequence[Object], answer: TrueAnswer, known: Mapping[str, str]) -> list[int]:
    """The indices of the calls that the client was shown, or of the message with the mark."""
    if not answer.calls:
        return _marked(objects, answer)
    places = [
        place
        for place, item in enumerate(objects)
        if plain_id(text_of(item.get("call_id"))) in known and text_of(item.get("type")) in CALLS
    ]
    if not places:
        return _referred(objects, known)
    calls = _held_calls(objects[place] for place in places)
    return places if is_shown(answer.calls, [(call.id, call.arguments) for call in calls]) else []


def _marked(objects: Sequence[Object], answer: TrueAnswer) -> list[int]:
    """The indices of an answer without calls: consecutive items of the provider."""
    run: list[int] = []
    for place in range(len(objects) + 1):
        if place < len(objects) and _is_said(objects[place]):
            run.append(place)
        else:
            if run and has_mark(answer, *(objects[index].get("content") for index in run)):
                return run
            run = []
    return []


def _referred(objects: Sequence[Object], known: Mapping[str, str]) -> list[int]:
    """The indices of references to the answer's stored items, which are right before the results of
    its calls.
    """
    results = [
        place
        for place, item in enumerate(objects)
        if plain_id(text_of(item.get("call_id"))) in known
    ]
    if {plain_id(text_of(objects[place].get("call_id"))) for place in results} != set(known):
        return []
    before = results[0]
    while before and objects[before - 1].get("type") == "item_reference":
        before -= 1
    return list(range(before, results[0]))


def _is_said(item: Object) -> bool:
    """Whether an item is part of a provider's answer, but not a call that the client runs."""
    kind = text_of(item.get("type")) or "message"
    if kind == "message":
        return item.get("role") == "assistant"
    return (
        kind not in CALLS
        and not kind.endswith("_output")
        and item.get("role") in (None, "assistant")
    )


class _ReadStream:
    """The output items in the events of a stream, by output index: `done`, or begun with these
    `pieces`; the newest state of the response, and the number of the next event.
    """

    def __init__(self, stream: bytes) -> None:
        self.number = 0
        self.response: Object = {}
        self.items: dict[int, Json] = {}
        self.done: set[int] = set()
        self.pieces: dict[int, list[str]] = {}
        for body in events_of(stream):
            count = body.get("sequence_number")
            self.number = count + 1 if isinstance(count, int) else self.number + 1
            self.response = object_of(body.get("response")) or self.response
            if isinstance(index := body.get("output_index"), int):
                self._add(text_of(body.get("type")), index, body)

    def _add(self, kind: str, index: int, body: Object) -> None:
        if kind in ("response.output_item.added", "response.output_item.done"):
            self.items[index] = body.get("item")
            if kind.endswith("done"):
                self.done.add(index)
        elif kind in _PIECES:
            self.pieces.setdefault(index, []).append(text_of(body.get("delta")))

    def calls(self) -> Iterator[tuple[int, HeldCall]]:
        """The calls that the client runs, each with as much of its arguments as it was sent. A
        custom tool's text counts once it is complete.
        """
        for index in sorted(self.items):
            call = held_call(object_of(self.items[index]))
            if call is not None and index not in self.done:
                is_custom = call.kind == "custom_tool_call"
                said = "" if is_custom else "".join(self.pieces.get(index, ()))
                call = replace(call, arguments=said)
            if call is not None:
                yield index, call


_PIECES: Final = (
    "response.function_call_arguments.delta",
    "response.custom_tool_call_input.delta",
)


def resume(request: ChatRequest, passed: bytes) -> ResponsesWriter:
    writer = ResponsesWriter(request)
    writer.resume(_ReadStream(passed))
    return writer


_PLAIN_ITEMS: Final = frozenset(("message", "reasoning"))


class ResponsesCalls:
    """Tool calls in responses."""

    marks: tuple[bytes, ...] = (b'_call"',)
    words: tuple[bytes, ...] = (b".delta",)

    def whole(self, answer: Object) -> list[HeldCall]:
        return _held_calls(list_of(answer.get("output")))

    def read(self, held: bytes) -> list[HeldCall]:
        # Most events are pieces of arguments, which are whole in these.
        telling = events_with(held, (b"output_item.done", b"response.completed", b"incomplete"))
        return _held_calls(_streamed(b"".join(telling))[1])

    def shown(self, sent: bytes) -> list[HeldCall]:
        return [call for _, call in _ReadStream(sent).calls()]

    def begun(self, body: Object) -> list[str]:
        """A call may appear first when it is added, when it is done, or in the whole answer at the
        end.
        """
        match body.get("type"):
            case "response.output_item.added" | "response.output_item.done":
                call = held_call(object_of(body.get("item")))
                return [] if call is None else [call.name]
            case "response.completed" | "response.incomplete":
                output = list_of(object_of(body.get("response")).get("output"))
                return [call.name for call in _held_calls(output)]
            case _:
                return []

    def passes(self, body: Object) -> bool:
        return False

    def all_wait(self, chunk: bytes) -> bool:
        return True


class ResponsesFooter:
    """Appends a line to a response."""

    def add_to_answer(self, place: FooterPlace, answer: Object) -> bool:
        output = answer.get("output")
        if (
            answer.get("status") != "completed"
            or not isinstance(output, list)
            or not self._has_only_words(output)
        ):
            return False
        for item in output:
            for part in list_of(object_of(item).get("content")):
                place.note(text_of(object_of(part).get("text")))
        output.append(message_item(new_id("msg_"), place.line, (), "completed"))
        return place.may_add

    def add_to_event(self, place: FooterPlace, raw: bytes, body: Object) -> bytes:
        if body.get("type") == "response.output_text.delta":
            place.note(text_of(body.get("delta")))
        if body.get("type") != "response.completed":
            return raw
        response = object_of(body.get("response"))
        output = response.get("output")
        if not isinstance(output, list) or not self._has_only_words(output) or not place.may_add:
            return raw
        place.is_added = True
        number = body.get("sequence_number")
        writer = ResponsesWriter(ChatRequest(Wire.RESPONSES, "", ()))
        writer.continue_at(number if isinstance(number, int) else 0, len(output))
        said = writer.write_whole(place.line)
        whole = {
            **body,
            "sequence_number": writer.number,
            "response": {**response, "output": [*output, *writer.items()]},
        }
        return said + event_bytes(whole, "response.completed")

    def _has_only_words(self, output: list[Json]) -> bool:
        return all(text_of(object_of(item).get("type")) in _PLAIN_ITEMS for item in output)
