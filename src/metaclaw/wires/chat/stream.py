"""A chat completion as it is made: chunks read from a provider, chunks written for a client."""

import time
from typing import assert_never

from metaclaw.domain.chat import (
    Begin,
    ChatRequest,
    Delta,
    End,
    Failed,
    Finish,
    Json,
    OpaqueDelta,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from metaclaw.wires.chat.answer import (
    answer_id,
    finish_of,
    finish_word,
    logprobs_of,
    render_call,
    render_logprobs,
    render_usage,
    usage_of,
)
from metaclaw.wires.failure import error_of, openai_error
from metaclaw.wires.fields import Fields, Object, text_of
from metaclaw.wires.reader import TRUNCATED
from metaclaw.wires.sse import event_bytes
from metaclaw.wires.tools import ClientTools


class ChatMeaning:
    """What chunks mean. The counts come after the reason to finish, so the End waits for `[DONE]` or the close."""

    def __init__(self) -> None:
        self._id = ""
        self._model = ""
        self._begun = False
        self._finish_word: Json = None
        self._stop_sequence: str | None = None
        self._usage: Usage | None = None
        self._calls: dict[int, tuple[int, str]] = {}  # the provider's index → ours, and the call's id
        self._call_count = 0

    def event(self, name: str | None, body: Object) -> list[Delta]:
        if body.get("error"):
            message, code = error_of(body)
            return [Failed(message or "the provider reported an error", code or "upstream_error")]
        self._id = text_of(body.get("id")) or self._id
        self._model = text_of(body.get("model")) or self._model
        self._usage = usage_of(body.get("usage")) or self._usage
        choices = body.get("choices")
        deltas: list[Delta] = []
        for choice in choices if isinstance(choices, list) else ():
            deltas += self._choice(Fields(choice, "choices[]"))
        return deltas

    def done(self) -> list[Delta]:
        self._finish_word = self._finish_word or Finish.STOP.value
        return self.close()

    def close(self) -> list[Delta]:
        finish = finish_of(self._finish_word, called=bool(self._calls))
        if finish is None:
            return [TRUNCATED]
        return [*self._begin(), End(finish, self._usage, self._stop_sequence)]

    def _begin(self) -> list[Delta]:
        if self._begun:
            return []
        self._begun = True
        return [Begin(self._id, self._model)]

    def _choice(self, choice: Fields) -> list[Delta]:
        if choice.pop("index") not in (0, None):
            return []
        deltas = self._begin()
        said = Fields(choice.maybe_object("delta") or {}, "choices[].delta")
        if thought := text_of(said.pop("reasoning_content")) or text_of(said.pop("reasoning")):
            deltas.append(ReasoningDelta(thought))
        logprobs = logprobs_of(choice.pop("logprobs"))
        text = text_of(said.pop("content")) + text_of(said.pop("refusal"))
        if text or logprobs:
            deltas.append(TextDelta(text, logprobs))
        for number, call in enumerate(said.maybe_list("tool_calls") or ()):
            deltas.append(self._call(Fields(call, "choices[].delta.tool_calls[]"), number))
        self._finish_word = choice.pop("finish_reason") or self._finish_word
        self._stop_sequence = text_of(choice.pop("stop_reason")) or self._stop_sequence
        return deltas

    def _call(self, call: Fields, number: int) -> ToolCallDelta:
        """Some servers repeat id and name in every chunk, and some give every parallel call the same index."""
        given = call.maybe_int("index")
        index = number if given is None else given
        identity = call.maybe_text("id") or ""
        function = Fields(call.maybe_object("function") or {}, "choices[].delta.tool_calls[].function")
        name, arguments = function.maybe_text("name") or "", function.maybe_text("arguments") or ""
        known = self._calls.get(index)
        if known is None or (identity and known[1] and identity != known[1]):
            ours = self._call_count
            self._call_count += 1
            self._calls[index] = (ours, identity)
            return ToolCallDelta(ours, identity or f"call_{self._id}_{ours}", name, arguments)
        return ToolCallDelta(known[0], None, None, arguments)


class ChatWriter:
    """Deltas as chunks for a client."""

    def __init__(self, request: ChatRequest) -> None:
        self._request = request
        self._tools = ClientTools(request)
        self._custom: dict[int, tuple[str, str, str]] = {}  # custom calls are written whole: their text is inside JSON until then
        self._head: Object = {"id": "", "object": "chat.completion.chunk", "created": int(time.time()), "model": request.model}

    def resume(self, chunk: Object) -> None:
        """Go on with the message that this chunk is the first of; the Begin is not to be written."""
        self._head |= {key: chunk[key] for key in ("id", "object", "created", "model", "system_fingerprint") if key in chunk}

    def write(self, delta: Delta) -> bytes:
        """The bytes for one delta; those of an End make the answer whole."""
        match delta:
            case Begin():
                self._head |= {"id": answer_id(delta.id), "model": delta.model or self._request.model}
                return self._chunk({"role": "assistant", "content": "", "refusal": None})
            case TextDelta():
                return self._text(delta)
            case ReasoningDelta():
                return self._chunk({"reasoning_content": delta.text}) if delta.text else b""
            case ToolCallDelta():
                return self._call(delta)
            case OpaqueDelta():
                return b""
            case End():
                return self._end(delta)
            case Failed():
                return event_bytes(openai_error(502, delta.message, delta.code, None))
            case _:
                assert_never(delta)

    def _chunk(self, said: Object, *, logprobs: Json = None, finish: str | None = None) -> bytes:
        choice: Object = {"index": 0, "delta": said, "logprobs": logprobs, "finish_reason": finish}
        nothing_yet: Object = {"usage": None} if self._request.include_usage else {}
        return event_bytes({**self._head, "choices": [choice], **nothing_yet})

    def _text(self, delta: TextDelta) -> bytes:
        if not delta.text and not delta.logprobs:
            return b""
        logprobs: Json = {"content": render_logprobs(delta.logprobs), "refusal": None} if delta.logprobs else None
        return self._chunk({"content": delta.text}, logprobs=logprobs)

    def _call(self, delta: ToolCallDelta) -> bytes:
        if delta.index in self._custom:
            identity, name, arguments = self._custom[delta.index]
            self._custom[delta.index] = (identity, name, arguments + delta.arguments)
            return b""
        if delta.name is None:
            return self._chunk({"tool_calls": [{"index": delta.index, "function": {"arguments": delta.arguments}}]})
        if self._tools.is_custom(delta.name):
            self._custom[delta.index] = (delta.id or "", delta.name, delta.arguments)
            return b""
        return self._chunk({"tool_calls": [self._whole_call(delta.index, delta.id or "", delta.name, delta.arguments)]})

    def _whole_call(self, index: int, identity: str, name: str, arguments: str) -> Object:
        return {"index": index, "id": identity, **render_call(name, arguments, self._tools)}

    def _end(self, delta: End) -> bytes:
        said = b"".join(self._chunk({"tool_calls": [self._whole_call(index, *call)]}) for index, call in self._custom.items())
        said += self._chunk({}, finish=finish_word(delta.finish))
        if self._request.include_usage and delta.usage is not None:
            said += event_bytes({**self._head, "choices": [], "usage": render_usage(delta.usage)})
        return said + b"data: [DONE]\n\n"
