"""A provider on loopback that breaks rules on a schedule and refuses every history that it did not
make itself.

The last message of the person says what to answer, step by step: `PLAN bad good` answers first with
a call that breaks the rule and then, when it is asked again, with one that does not. Steps are
`bad`, `good`, `mixed` (a good and a bad call in parallel), `two` (two good calls), `text` (no call)
and `fail` (status 500). The streams are written by hand, piece by piece.

Like the real ones it keeps a record of all it has said. An assistant's turn that holds calls or
reasoning and is not exactly one of those, in the place where it was made, is refused with 400, and
so are calls without results and results without calls."""

import asyncio
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import uvicorn

Json = dict[str, Any]
GOOD, BAD = "git push origin topic", "git push --force origin main"
STEPS = {
    "bad": [BAD],
    "good": [GOOD],
    "mixed": [GOOD, BAD],
    "two": [GOOD, "git status"],
    "text": [],
    "look": ["deploy-checklist"],
    "wrong": ["no-such-procedure"],
    "find": ["how to roll back"],
    "look-too": [GOOD, "deploy-checklist", "git status"],
    "look-first": ["deploy-checklist", GOOD],
    "look-bad": ["deploy-checklist", BAD],
}
OWN = {
    "deploy-checklist": ("metaclaw_skill", "name"),
    "no-such-procedure": ("metaclaw_skill", "name"),
    "how to roll back": ("metaclaw_find", "query"),
}
"""Calls of the proxy's own tools, with the name of their argument."""
WIRES = {"/chat/completions": "chat", "/responses": "responses", "/messages": "messages"}


@dataclass
class Answer:
    """What the provider says once: reasoning, its proof, text, and calls as (id, command) of one
    tool, which takes one argument.
    """

    id: str
    thought: str
    proof: str
    text: str
    calls: list[tuple[str, str]]
    tool: str = "bash"
    argument: str = "command"

    def arguments(self, command: str) -> str:
        """The arguments of a call, as JSON."""
        return json.dumps({self.argument_of(command): command})

    def argument_of(self, command: str) -> str:
        """The name of the only argument."""
        return OWN.get(command, ("", self.argument))[1]

    def tool_of(self, command: str) -> str:
        """The name of the tool that a call is of."""
        return OWN.get(command, (self.tool, ""))[0]


class RefusedError(Exception):
    """A history that no answer of this provider led to."""


@dataclass
class StrictProvider:
    """The server's state, shared with the test that started it."""

    pause_s: float = 0.0
    pieces: int = 3
    random: Random | None = None
    """Mixes the pieces of parallel calls, where a wire allows it."""
    url: str = ""
    bodies: list[tuple[str, Json, dict[str, str]]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    issued: dict[str, set[str]] = field(default_factory=dict)
    kept: dict[str, list[Json]] = field(default_factory=dict)
    calls_made: dict[int, list[tuple[str, str]]] = field(default_factory=dict)
    """The calls of each answer, by the number of its request."""
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    _server: uvicorn.Server | None = None
    _thread: threading.Thread | None = None

    def start(self) -> "StrictProvider":
        config = uvicorn.Config(
            self._app,
            host="127.0.0.1",
            port=0,
            log_level="critical",
            lifespan="off",
            interface="asgi3",
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 30
        while not self._server.started:
            if time.monotonic() > deadline:
                raise TimeoutError("the strict provider did not start")
            time.sleep(0.005)
        self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"
        return self

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._server.force_exit = True
            self._thread.join(10)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        wire = next((wire for path, wire in WIRES.items() if scope["path"].endswith(path)), "")
        if not wire:
            await _json(send, 200, {"object": "list", "data": []})
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        status, said = self.reply(wire, json.loads(body), headers)
        if isinstance(said, dict):
            await _json(send, status, said)
            return
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", b"text/event-stream")],
            }
        )
        for event in said:
            await send({"type": "http.response.body", "body": event, "more_body": True})
            if self.pause_s:
                await asyncio.sleep(self.pause_s)
        await send({"type": "http.response.body", "body": b""})

    def reply(
        self, wire: str, request: Json, headers: dict[str, str]
    ) -> tuple[int, Json | list[bytes]]:
        """The answer to a request: its status, and its body, or the events of its stream."""
        self.bodies.append((wire, request, headers))
        try:
            turns = self._read(wire, request)
            step = self._step(turns)
        except RefusedError as error:
            self.refused.append(str(error))
            return 400, {
                "type": "error",
                "error": {"type": "invalid_request_error", "message": str(error)},
            }
        if step == "fail":
            return 500, {"error": {"message": "scripted failure", "type": "server_error"}}
        answer = self._make(step)
        self.calls_made[len(self.bodies) - 1] = answer.calls
        self.issued.setdefault(_print(turns), set()).add(_answer_print(answer))
        words = {
            "role": "assistant",
            "text": answer.text,
            "thought": answer.thought,
            "proof": answer.proof,
            "calls": answer.calls,
        }
        self.kept[f"resp_{answer.id}"] = [*turns, words]
        return 200, self.written(wire, answer, request)

    def written(self, wire: str, answer: Answer, request: Json) -> Json | list[bytes]:
        """An answer in its wire: whole, or the events of its stream."""
        wholes = {
            "chat": _chat,
            "messages": _message,
            "responses": _response,
            "gemini": _gemini,
        }
        whole = wholes[wire](answer, request)
        if not request.get("stream"):
            return whole
        writers = {
            "chat": _chat_events,
            "messages": _message_events,
            "responses": _response_events,
            "gemini": _gemini_events,
        }
        events = writers[wire](answer, whole, request, self.pieces, self.random)
        said = []
        for name, event in events:
            data = event if isinstance(event, str) else json.dumps(event)
            head = f"event: {name}\n" if name else ""
            blank = "\r\n\r\n" if wire == "gemini" else "\n\n"
            said.append(f"{head}data: {data}{blank}".encode())
        return said

    def _make(self, step: str) -> Answer:
        number = next(self._numbers)
        commands = STEPS[step.removeprefix("mute-")]
        calls = [
            (f"call_{number:05d}_{place}_abcdefgh", command)
            for place, command in enumerate(commands)
        ]
        proof = hashlib.sha256(f"proof {number}".encode()).hexdigest()
        if step.startswith("mute-"):
            return Answer(f"answer{number:05d}", "", "", "", calls)
        return Answer(f"answer{number:05d}", f"thought {number}", proof, f"words {number}", calls)

    def _step(self, turns: list[Json]) -> str:
        plan: list[str] = []
        taken = 0
        for turn in turns:
            if turn["role"] == "user" and "PLAN" in turn["text"]:
                plan, taken = turn["text"].split("PLAN", 1)[1].split("\n")[0].split(), 0
            elif turn["role"] == "assistant" and not turn.get("foreign"):
                taken += 1
        return plan[taken] if taken < len(plan) else "text"

    def _read(self, wire: str, request: Json) -> list[Json]:
        """The history in plain terms, checked turn by turn."""
        before: list[Json] = []
        if wire == "responses" and (previous := request.get("previous_response_id")):
            if previous not in self.kept:
                raise RefusedError(f"previous response {previous} was not found")
            before = self.kept[previous]
        turns = before + read_turns(wire, request)
        seen: list[Json] = []
        open_calls: set[str] = set()
        for turn in turns:
            if turn["role"] == "assistant":
                if open_calls:
                    raise RefusedError(f"calls without results: {sorted(open_calls)}")
                if turn["calls"] or turn["proof"]:
                    known = self.issued.get(_print(seen), set())
                    if _turn_print(turn) not in known and _turn_print(
                        {**turn, "thought": None, "proof": None}
                    ) not in {_loose(one) for one in known}:
                        raise RefusedError(
                            f"an answer that was never given here: {json.dumps(turn)}"
                        )
                else:
                    turn["foreign"] = not self._is_issued_text(turn, seen)
                open_calls = {identity for identity, _ in turn["calls"]}
            elif turn["role"] == "tool":
                if turn["id"] not in open_calls:
                    raise RefusedError(f"a result without its call: {turn['id']}")
                open_calls.discard(turn["id"])
            elif open_calls:
                raise RefusedError(f"calls without results: {sorted(open_calls)}")
            seen.append(turn)
        if open_calls:
            raise RefusedError(f"calls without results: {sorted(open_calls)}")
        return turns

    def _is_issued_text(self, turn: Json, seen: list[Json]) -> bool:
        return any(
            json.loads(one)["text"] == turn["text"] for one in self.issued.get(_print(seen), set())
        )


_REMINDER = re.compile(r'\s*<house_rules by="metaclaw".*?</house_rules>\s*', re.DOTALL)


class RemindedProvider(StrictProvider):
    """A strict provider whose requests hold reminders: they stand in one request only, and are no
    part of the history.
    """

    def reply(
        self, wire: str, request: Json, headers: dict[str, str]
    ) -> tuple[int, Json | list[bytes]]:
        return super().reply(wire, _without_reminders(request), headers)


def _without_reminders(value: Any) -> Any:
    """A request as its client wrote it. A part or a message that is only a reminder goes with it."""
    if isinstance(value, str):
        return _REMINDER.sub("", value)
    if isinstance(value, list):
        return [_without_reminders(one) for one in value if not _is_reminder(one)]
    if isinstance(value, dict):
        return {key: _without_reminders(one) for key, one in value.items()}
    return value


def _is_reminder(value: Any) -> bool:
    """Whether a text, a part, or a message of the person is nothing but a reminder."""
    if isinstance(value, list):
        return bool(value) and all(map(_is_reminder, value))
    if isinstance(value, dict):
        is_user = value.get("role") == "user"
        return _is_reminder(
            value.get("parts", value.get("content")) if is_user else value.get("text")
        )
    return isinstance(value, str) and _REMINDER.fullmatch(value) is not None


def read_turns(wire: str, request: Json) -> list[Json]:
    """The history of a request in plain terms."""
    readers = {
        "chat": _chat_turns,
        "messages": _message_turns,
        "responses": _response_turns,
        "gemini": _gemini_turns,
    }
    return readers[wire](request)


def _print(turns: list[Json]) -> str:
    plain = [
        {key: turn[key] for key in ("role", "text", "calls", "id") if key in turn} for turn in turns
    ]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _answer_print(answer: Answer) -> str:
    return _turn_print(
        {
            "thought": answer.thought or None,
            "proof": answer.proof or None,
            "text": answer.text,
            "calls": answer.calls,
        }
    )


def _turn_print(turn: Json) -> str:
    calls = [list(call) for call in turn["calls"]]
    return json.dumps(
        {"thought": turn["thought"], "proof": turn["proof"], "text": turn["text"], "calls": calls}
    )


def _loose(printed: str) -> str:
    """An answer without its reasoning, which clients of other wires cannot keep; never with another
    one's.
    """
    return json.dumps({**json.loads(printed), "thought": None, "proof": None})


def _texts(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or [] if isinstance(part, dict))


def _command(arguments: Json) -> str:
    """The one argument of a call; all of them, where a client has added some."""
    return str(next(iter(arguments.values()))) if len(arguments) == 1 else json.dumps(arguments)


def _chat_turns(request: Json) -> list[Json]:
    turns: list[Json] = []
    for message in request["messages"]:
        role = message["role"]
        if role == "assistant":
            calls = [
                (one["id"], _command(json.loads(one["function"]["arguments"])))
                for one in message.get("tool_calls") or []
            ]
            proof = message.get("proof")
            turns.append(
                {
                    "role": role,
                    "text": _texts(message.get("content")),
                    "thought": message.get("reasoning_content") if proof else None,
                    "proof": proof,
                    "reasoning": message.get("reasoning_content"),
                    "calls": calls,
                }
            )
        elif role == "tool":
            turns.append(
                {"role": "tool", "id": message["tool_call_id"], "text": _texts(message["content"])}
            )
        elif role == "user":
            turns.append({"role": role, "text": _texts(message["content"])})
    return turns


def _message_turns(request: Json) -> list[Json]:
    turns: list[Json] = []
    for message in request["messages"]:
        blocks = (
            message["content"]
            if isinstance(message["content"], list)
            else [{"type": "text", "text": message["content"]}]
        )
        if message["role"] == "assistant":
            thoughts = [one for one in blocks if one["type"] == "thinking"]
            if len(thoughts) > 1 or (thoughts and blocks[0] is not thoughts[0]):
                raise RefusedError(
                    "thinking blocks in the latest assistant message cannot be modified"
                )
            turns.append(
                {
                    "role": "assistant",
                    "text": _texts([one for one in blocks if one["type"] == "text"]),
                    "thought": thoughts[0]["thinking"] if thoughts else None,
                    "proof": thoughts[0]["signature"] if thoughts else None,
                    "calls": [
                        (one["id"], _command(one["input"]))
                        for one in blocks
                        if one["type"] == "tool_use"
                    ],
                }
            )
            continue
        turns += [
            {"role": "tool", "id": one["tool_use_id"], "text": _texts(one.get("content"))}
            for one in blocks
            if one["type"] == "tool_result"
        ]
        if any(one["type"] == "text" for one in blocks):
            turns.append(
                {"role": "user", "text": _texts([one for one in blocks if one["type"] == "text"])}
            )
    return turns


def _response_turns(request: Json) -> list[Json]:
    items = (
        request["input"]
        if isinstance(request["input"], list)
        else [{"role": "user", "content": request["input"]}]
    )
    turns: list[Json] = []
    for item in items:
        kind = item.get("type", "message")
        if kind in ("reasoning", "function_call") or (
            kind == "message" and item.get("role") == "assistant"
        ):
            last = (
                turns[-1]
                if turns and turns[-1]["role"] == "assistant" and not turns[-1].get("shut")
                else None
            )
            if last is None or (
                kind == "reasoning" and (last["proof"] or last["text"] or last["calls"])
            ):
                last = {
                    "role": "assistant",
                    "text": "",
                    "thought": None,
                    "proof": None,
                    "calls": [],
                }
                turns.append(last)
            if kind == "reasoning":
                last["thought"], last["proof"] = _texts(item["summary"]), item["encrypted_content"]
            elif kind == "message":
                last["text"] += _texts(item["content"])
            else:
                last["calls"].append((item["call_id"], _command(json.loads(item["arguments"]))))
        elif kind == "function_call_output":
            turns.append({"role": "tool", "id": item["call_id"], "text": _texts(item["output"])})
        elif item.get("role") == "user":
            turns.append({"role": "user", "text": _texts(item["content"])})
    return turns


def _gemini_turns(request: Json) -> list[Json]:
    turns: list[Json] = []
    for content in request["contents"]:
        parts = content["parts"]
        texts = [one for one in parts if "text" in one and not one.get("thought")]
        if content["role"] == "model":
            calls = [one["functionCall"] for one in parts if "functionCall" in one]
            proofs = [one["thoughtSignature"] for one in parts if "thoughtSignature" in one]
            proofs = [one for one in proofs if one != "skip_thought_signature_validator"]
            if len(proofs) > 1:
                raise RefusedError("two signatures in one answer")
            turns.append(
                {
                    "role": "assistant",
                    "text": _texts(texts),
                    "thought": _texts([one for one in parts if one.get("thought")]) or None,
                    "proof": proofs[0] if proofs else None,
                    "calls": [(one["id"], _command(one["args"])) for one in calls],
                }
            )
            continue
        results = [one["functionResponse"] for one in parts if "functionResponse" in one]
        turns += [
            {"role": "tool", "id": one["id"], "text": json.dumps(one["response"])}
            for one in results
        ]
        if texts:
            turns.append({"role": "user", "text": _texts(texts)})
    return turns


def _cut(text: str, pieces: int) -> list[str]:
    size = max(1, -(-len(text) // pieces))
    return [text[at : at + size] for at in range(0, len(text), size)]


def _mixed(lists: list[list[Json]], random: Random | None) -> Iterator[Json]:
    """All of them: the lists begin in their order, and then come in any."""
    left, begun = [list(one) for one in lists], 0
    while any(left):
        open_lists = [one for one in left[:begun] if one]
        chosen = random.randrange(len(open_lists) + 1) if random is not None else 0
        if begun < len(left) and chosen >= len(open_lists):
            begun += 1
            yield left[begun - 1].pop(0)
        elif open_lists:
            yield open_lists[min(chosen, len(open_lists) - 1)].pop(0)


def _chat(answer: Answer, request: Json) -> Json:
    message: Json = {
        "role": "assistant",
        "content": answer.text,
        "refusal": None,
        "annotations": [],
    }
    if answer.proof:
        message |= {"reasoning_content": answer.thought, "proof": answer.proof}
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": identity,
                "type": "function",
                "function": {
                    "name": answer.tool_of(command),
                    "arguments": answer.arguments(command),
                },
            }
            for identity, command in answer.calls
        ]
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": "tool_calls" if answer.calls else "stop",
        "logprobs": None,
    }
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    head = {
        "id": f"chatcmpl-{answer.id}",
        "object": "chat.completion",
        "created": 1,
        "model": request["model"],
    }
    return {**head, "choices": [choice], "usage": usage}


def _chat_events(
    answer: Answer, whole: Json, request: Json, pieces: int, random: Random | None
) -> Iterator[tuple[str, Json | str]]:
    head = {
        **{key: whole[key] for key in ("id", "created", "model")},
        "object": "chat.completion.chunk",
    }

    def chunk(delta: Json, finish: str | None = None) -> tuple[str, Json | str]:
        return "", {
            **head,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}],
        }

    yield chunk({"role": "assistant", "content": ""})
    if answer.proof:
        yield chunk({"reasoning_content": answer.thought, "proof": answer.proof})
    for piece in _cut(answer.text, pieces):
        yield chunk({"content": piece})
    said: list[list[Json]] = []
    for place, (identity, command) in enumerate(answer.calls):
        function = {"name": answer.tool_of(command), "arguments": ""}
        begun: Json = {"index": place, "id": identity, "type": "function", "function": function}
        said.append(
            [
                begun,
                *(
                    {"index": place, "function": {"arguments": one}}
                    for one in _cut(answer.arguments(command), pieces)
                ),
            ]
        )
    for call in _mixed(said, random):
        yield chunk({"tool_calls": [call]})
    yield chunk({}, "tool_calls" if answer.calls else "stop")
    if (request.get("stream_options") or {}).get("include_usage"):
        yield "", {**head, "choices": [], "usage": whole["usage"]}
    yield "", "[DONE]"


def _message(answer: Answer, request: Json) -> Json:
    content: list[Json] = []
    if answer.proof:
        content.append({"type": "thinking", "thinking": answer.thought, "signature": answer.proof})
    if answer.text:
        content.append({"type": "text", "text": answer.text, "citations": None})
    content += [
        {
            "type": "tool_use",
            "id": identity,
            "name": answer.tool_of(command),
            "input": {answer.argument_of(command): command},
        }
        for identity, command in answer.calls
    ]
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": request["model"],
        "content": content,
        "stop_reason": "tool_use" if answer.calls else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 5},
    }


def _message_events(
    answer: Answer, whole: Json, request: Json, pieces: int, random: Random | None
) -> Iterator[tuple[str, Json | str]]:
    begun = {
        **whole,
        "content": [],
        "stop_reason": None,
        "usage": {"input_tokens": 10, "output_tokens": 1},
    }

    def event(name: str, /, **fields: Any) -> tuple[str, Json | str]:
        return name, {"type": name, **fields}

    yield event("message_start", message=begun)
    place = 0
    if answer.proof:
        yield event(
            "content_block_start",
            index=0,
            content_block={"type": "thinking", "thinking": "", "signature": ""},
        )
        for piece in _cut(answer.thought, pieces):
            yield event(
                "content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": piece}
            )
        yield event(
            "content_block_delta",
            index=0,
            delta={"type": "signature_delta", "signature": answer.proof},
        )
        yield event("content_block_stop", index=0)
        place += 1
    if answer.text:
        yield event("content_block_start", index=place, content_block={"type": "text", "text": ""})
        yield event("ping")
        for piece in _cut(answer.text, pieces):
            yield event(
                "content_block_delta", index=place, delta={"type": "text_delta", "text": piece}
            )
        yield event("content_block_stop", index=place)
        place += 1
    for identity, command in answer.calls:
        block = {"type": "tool_use", "id": identity, "name": answer.tool_of(command), "input": {}}
        yield event("content_block_start", index=place, content_block=block)
        for piece in _cut(answer.arguments(command), pieces):
            yield event(
                "content_block_delta",
                index=place,
                delta={"type": "input_json_delta", "partial_json": piece},
            )
        yield event("content_block_stop", index=place)
        place += 1
    yield event(
        "message_delta",
        delta={"stop_reason": whole["stop_reason"], "stop_sequence": None},
        usage={"output_tokens": 5},
    )
    yield event("message_stop")


def _gemini(answer: Answer, request: Json) -> Json:
    thought = [{"text": answer.thought, "thought": True}] if answer.proof else []
    said: list[Json] = [{"text": answer.text}] if answer.text else []
    said += [
        {
            "functionCall": {
                "id": identity,
                "name": answer.tool_of(command),
                "args": {answer.argument_of(command): command},
            }
        }
        for identity, command in answer.calls
    ]
    if answer.proof:
        signed = 1 if answer.calls else 0
        said[signed] = {**said[signed], "thoughtSignature": answer.proof}
    candidate = {
        "content": {"role": "model", "parts": [*thought, *said]},
        "finishReason": "STOP",
        "index": 0,
    }
    return {
        "candidates": [candidate],
        "usageMetadata": {
            "promptTokenCount": 10,
            "candidatesTokenCount": 5,
            "totalTokenCount": 15,
        },
        "modelVersion": request["model"],
        "responseId": answer.id,
    }


def _gemini_events(
    answer: Answer, whole: Json, request: Json, pieces: int, random: Random | None
) -> Iterator[tuple[str, Json | str]]:
    (candidate,) = whole["candidates"]
    parts: list[Json] = []
    for part in candidate["content"]["parts"]:
        if "text" not in part:
            parts.append(part)
            continue
        cut = _cut(part["text"], pieces)
        parts += [{**part, "text": one} for one in cut]
        for early in parts[len(parts) - len(cut) : -1]:
            early.pop("thoughtSignature", None)
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        now = {**candidate, "content": {"role": "model", "parts": [part]}}
        if not is_last:
            del now["finishReason"]
        yield "", {**whole, "candidates": [now]}


def _response(answer: Answer, request: Json) -> Json:
    thought = {
        "id": f"rs_{answer.id}",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": answer.thought}],
        "encrypted_content": answer.proof,
    }
    words = {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": answer.text, "annotations": []}],
    }
    output: list[Json] = [thought] * bool(answer.proof) + [words] * bool(answer.text)
    output += [
        {
            "id": f"fc_{identity}",
            "type": "function_call",
            "call_id": identity,
            "name": answer.tool_of(command),
            "arguments": answer.arguments(command),
            "status": "completed",
        }
        for identity, command in answer.calls
    ]
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": request["model"],
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "usage": {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 15,
        },
    }


def _response_events(
    answer: Answer, whole: Json, request: Json, pieces: int, random: Random | None
) -> Iterator[tuple[str, Json | str]]:
    numbers = count()

    def event(name: str, /, **fields: Any) -> tuple[str, Json | str]:
        return name, {"type": name, "sequence_number": next(numbers), **fields}

    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    yield event("response.created", response=begun)
    yield event("response.in_progress", response=begun)
    said, calls = (
        whole["output"][: -len(answer.calls) or None],
        whole["output"][len(whole["output"]) - len(answer.calls) :],
    )
    if answer.proof:
        yield event("response.output_item.added", output_index=0, item={**said[0], "summary": []})
        yield event("response.output_item.done", output_index=0, item=said[0])
    if answer.text:
        words, place = said[-1], len(said) - 1
        yield event(
            "response.output_item.added",
            output_index=place,
            item={**words, "status": "in_progress", "content": []},
        )
        where = {"item_id": words["id"], "output_index": place, "content_index": 0}
        yield event(
            "response.content_part.added",
            **where,
            part={"type": "output_text", "text": "", "annotations": []},
        )
        for piece in _cut(answer.text, pieces):
            yield event("response.output_text.delta", **where, delta=piece, logprobs=[])
        yield event("response.output_text.done", **where, text=answer.text, logprobs=[])
        yield event("response.content_part.done", **where, part=words["content"][0])
        yield event("response.output_item.done", output_index=place, item=words)
    for place, call in enumerate(calls, len(said)):
        yield event(
            "response.output_item.added",
            output_index=place,
            item={**call, "status": "in_progress", "arguments": ""},
        )
        if random is None:
            for piece in _cut(call["arguments"], pieces):
                yield event(
                    "response.function_call_arguments.delta",
                    item_id=call["id"],
                    output_index=place,
                    delta=piece,
                )
    if random is not None:
        mixed = [
            [
                {"item_id": call["id"], "output_index": place, "delta": one}
                for one in _cut(call["arguments"], pieces)
            ]
            for place, call in enumerate(calls, len(said))
        ]
        for fields in _mixed(mixed, random):
            yield event("response.function_call_arguments.delta", **fields)
    for place, call in enumerate(calls, len(said)):
        yield event(
            "response.function_call_arguments.done",
            item_id=call["id"],
            output_index=place,
            arguments=call["arguments"],
            name=call["name"],
        )
        yield event("response.output_item.done", output_index=place, item=call)
    yield event("response.completed", response=whole)


async def _json(send: Any, status: int, value: Json) -> None:
    body = json.dumps(value).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
