"""A scripted provider on loopback: real HTTP, real streams of all wires, and every way a
provider can misbehave.

What it does is chosen by the model's name: `echo` repeats the last user's words, `tools` calls the
first two tools in parallel, `reason` thinks first, `die` drops the connection mid-stream, `garbage`
sends no JSON, `endless` never ends, `status-429` fails. It writes its streams by hand, so that a
mistake in our own writers cannot hide in it."""

import asyncio
import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn

Json = dict[str, Any]

WIRES = {"/chat/completions": "chat", "/responses": "responses", "/messages": "messages"}
GEMINI = re.compile(r"/v1beta/models/([^:]+):(stream)?[gG]enerateContent")
FIXED: dict[str, Json] = {
    "/count_tokens": {"input_tokens": 42},
    ":countTokens": {"totalTokens": 42},
    "/embeddings": {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
        "model": "e",
        "usage": {"prompt_tokens": 1, "total_tokens": 1},
    },
}


@dataclass
class Seen:
    """One request as the provider got it."""

    method: str
    path: str
    query: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def json(self) -> Json:
        value: Json = json.loads(self.body)
        return value

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)


@dataclass
class Provider:
    """The server's state, shared with the test that started it."""

    requests: list[Seen] = field(default_factory=list)
    disconnected: threading.Event = field(default_factory=threading.Event)
    chunk_delay_s: float = 0.0
    missing: tuple[str, ...] = ()
    """Ends of paths that this server does not have."""
    models: tuple[str, ...] = ()
    """If given, it refuses all others, as servers do that have the path but not the model."""
    listed: tuple[str, ...] = ("echo",)
    refused_keys: tuple[str, ...] = ()
    url: str = ""
    _server: uvicorn.Server | None = None
    _thread: threading.Thread | None = None

    def start(self) -> "Provider":
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
        deadline = time.monotonic() + 10
        while not self._server.started:
            if time.monotonic() > deadline:
                raise TimeoutError("the scripted provider did not start")
            time.sleep(0.005)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
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
        headers = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]
        ]
        seen = Seen(scope["method"], scope["path"], scope["query_string"].decode(), headers, body)
        self.requests.append(seen)
        await self._answer(seen, receive, send)

    async def _answer(self, seen: Seen, receive: Any, send: Any) -> None:
        fixed = next((value for path, value in FIXED.items() if seen.path.endswith(path)), None)
        wire = next((wire for path, wire in WIRES.items() if seen.path.endswith(path)), "")
        if (seen.header("authorization") or "").removeprefix("Bearer ") in self.refused_keys:
            await _json(
                send,
                401,
                {"error": {"message": "Incorrect API key provided", "code": "invalid_api_key"}},
            )
        elif self.missing and seen.path.endswith(self.missing):
            await _json(send, 404, {"detail": "Not Found"})
        elif seen.path.endswith("/models"):
            listed = [
                {"id": name, "object": "model", "created": 1, "owned_by": "scripted"}
                for name in self.listed
            ]
            await _json(send, 200, {"object": "list", "data": listed})
        elif fixed is not None:
            await _json(send, 200, fixed)
        elif (asked := GEMINI.fullmatch(seen.path)) is not None:
            named = {"model": asked[1], "stream": asked[2] is not None}
            await self._speak("gemini", {**seen.json, **named}, receive, send)
        elif not wire:
            await _json(
                send,
                404,
                {
                    "error": {
                        "message": "no such route",
                        "type": "not_found",
                        "code": None,
                        "param": None,
                    }
                },
            )
        else:
            await self._speak(wire, seen.json, receive, send)

    async def _speak(self, wire: str, request: Json, receive: Any, send: Any) -> None:
        model, streamed = str(request.get("model", "")), request.get("stream")
        if not request or (self.models and model not in self.models):
            about = f"The model `{model}` does not exist" if request else "you must provide a model"
            await _json(
                send,
                404 if request else 400,
                {"error": {"message": about, "type": "invalid_request_error"}},
            )
        elif model.startswith("status-"):
            await _fail(send, wire, int(model.removeprefix("status-")))
        elif model == "garbage":
            await _raw(
                send,
                b"<html>this is no answer</html>",
                b"text/event-stream" if streamed else b"application/json",
            )
        elif streamed:
            await self._stream(wire, request, model, receive, send)
        elif model == "die":
            raise RuntimeError("scripted death")
        else:
            await _json(send, 200, WHOLES[wire](request))

    async def _stream(self, wire: str, request: Json, model: str, receive: Any, send: Any) -> None:
        events = list(STREAMS[wire](request))
        headers = [(b"content-type", b"text/event-stream"), (b"x-request-id", b"req-scripted")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for number, event in enumerate(events):
            if model == "die" and number == len(events) // 2:
                raise RuntimeError("scripted death")
            if model == "endless" and number == len(events) // 2:
                await self._never_end(receive, send, event)
                return
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await asyncio.sleep(self.chunk_delay_s)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _never_end(self, receive: Any, send: Any, event: bytes) -> None:
        gone = asyncio.create_task(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await asyncio.wait([gone], timeout=0.01)
        self.disconnected.set()


async def _json(send: Any, status: int, value: Json) -> None:
    await _raw(send, json.dumps(value).encode(), b"application/json", status)


async def _raw(send: Any, body: bytes, kind: bytes, status: int = 200) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", kind), (b"x-request-id", b"req-scripted")],
        }
    )
    await send({"type": "http.response.body", "body": body})


async def _fail(send: Any, wire: str, status: int) -> None:
    if wire == "messages":
        await _json(
            send,
            status,
            {
                "type": "error",
                "error": {"type": "scripted_error", "message": f"scripted {status}"},
                "request_id": "req_1",
            },
        )
    elif wire == "gemini":
        error = {"code": status, "message": f"scripted {status}", "status": "SCRIPTED"}
        await _json(send, status, {"error": error})
    else:
        await _json(
            send,
            status,
            {
                "error": {
                    "message": f"scripted {status}",
                    "type": "scripted_error",
                    "param": None,
                    "code": "scripted",
                }
            },
        )


def _texts(value: Any) -> str:
    if isinstance(value, str):
        return value
    return " ".join(part.get("text", "") for part in value or [] if isinstance(part, dict))


def _last_user(request: Json) -> str:
    if "contents" in request:
        spoken = [one for one in request["contents"] if one.get("role") != "model"]
        return " ".join(part["text"] for part in spoken[-1]["parts"] if "text" in part)
    messages = request.get("messages")
    if messages is None:
        messages = request.get("input")
    if isinstance(messages, str):
        return messages
    users = [
        _texts(message.get("content"))
        for message in messages or []
        if isinstance(message, dict) and message.get("role") == "user"
    ]
    return users[-1] if users else ""


def _words(request: Json) -> list[str]:
    return [word + " " for word in f"echo: {_last_user(request)}".split(" ")]


def _tool_names(request: Json) -> list[str]:
    tools = [
        one
        for tool in request.get("tools") or []
        for one in tool.get("functionDeclarations", [tool])
    ]
    names = [tool.get("name") or tool.get("function", {}).get("name") for tool in tools]
    return [str(name) for name in names[:2]] or ["tool_a", "tool_b"]


def _wants(request: Json, what: str) -> bool:
    return request.get("model") == what


def _sse(value: Json, event: str | None = None) -> bytes:
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {json.dumps(value)}\n\n".encode()


def _chat_stream(request: Json) -> Iterator[bytes]:
    base = {
        "id": "chatcmpl-scripted",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": request.get("model"),
        "system_fingerprint": "fp_x",
    }

    def chunk(delta: Json, finish: str | None = None) -> bytes:
        return _sse(
            {
                **base,
                "choices": [
                    {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
                ],
            }
        )

    yield chunk({"role": "assistant", "content": ""})
    if _wants(request, "reason"):
        yield chunk({"reasoning_content": "let me think"})
    if _wants(request, "tools"):
        for index, name in enumerate(_tool_names(request)):
            yield chunk(
                {
                    "tool_calls": [
                        {
                            "index": index,
                            "id": f"call_{index}",
                            "type": "function",
                            "function": {"name": name, "arguments": ""},
                        }
                    ]
                }
            )
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": '{"n": '}}]})
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": f"{index}}}"}}]})
        yield chunk({}, "tool_calls")
    else:
        for word in _words(request):
            yield chunk({"content": word})
        yield chunk({}, "stop")
    if (request.get("stream_options") or {}).get("include_usage"):
        yield _sse(
            {
                **base,
                "choices": [],
                "usage": {
                    "prompt_tokens": 11,
                    "completion_tokens": 7,
                    "total_tokens": 18,
                    "prompt_tokens_details": {"cached_tokens": 3},
                },
            }
        )
    yield b"data: [DONE]\n\n"


def _chat_whole(request: Json) -> Json:
    message: Json = {"role": "assistant", "content": "".join(_words(request)), "refusal": None}
    if _wants(request, "tools"):
        calls = [
            {
                "id": f"call_{index}",
                "type": "function",
                "function": {"name": name, "arguments": f'{{"n": {index}}}'},
            }
            for index, name in enumerate(_tool_names(request))
        ]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
    if _wants(request, "reason"):
        message["reasoning_content"] = "let me think"
    return {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "created": 1,
        "model": request.get("model"),
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": "tool_calls" if _wants(request, "tools") else "stop",
                "logprobs": None,
            }
        ],
        "usage": {
            "prompt_tokens": 11,
            "completion_tokens": 7,
            "total_tokens": 18,
            "prompt_tokens_details": {"cached_tokens": 3},
        },
        "unknown_field": {"kept": True},
    }


def _blocks(request: Json) -> list[Json]:
    if _wants(request, "tools"):
        return [
            {"type": "tool_use", "id": f"toolu_{index}", "name": name, "input": {"n": index}}
            for index, name in enumerate(_tool_names(request))
        ]
    blocks: list[Json] = [{"type": "text", "text": "".join(_words(request))}]
    if _wants(request, "reason"):
        blocks.insert(0, {"type": "thinking", "thinking": "let me think", "signature": "c2ln"})
    return blocks


def _messages_whole(request: Json) -> Json:
    return {
        "id": "msg_scripted",
        "type": "message",
        "role": "assistant",
        "model": request.get("model"),
        "content": _blocks(request),
        "stop_reason": "tool_use" if _wants(request, "tools") else "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 8,
            "cache_read_input_tokens": 3,
            "cache_creation_input_tokens": 0,
            "output_tokens": 7,
        },
    }


def _messages_stream(request: Json) -> Iterator[bytes]:
    whole = _messages_whole(request)
    start = {
        **whole,
        "content": [],
        "stop_reason": None,
        "usage": {**whole["usage"], "output_tokens": 1},
    }
    yield _sse({"type": "message_start", "message": start}, "message_start")
    yield _sse({"type": "ping"}, "ping")
    for index, block in enumerate(_blocks(request)):
        yield from _block_events(index, block, _words(request))
    yield _sse(
        {
            "type": "message_delta",
            "delta": {"stop_reason": whole["stop_reason"], "stop_sequence": None},
            "usage": {"output_tokens": 7},
        },
        "message_delta",
    )
    yield _sse({"type": "message_stop"}, "message_stop")


def _block_events(index: int, block: Json, words: list[str]) -> Iterator[bytes]:
    kind = block["type"]
    empty: Json = {
        "text": {"type": "text", "text": ""},
        "thinking": {"type": "thinking", "thinking": "", "signature": ""},
    }.get(kind) or {
        **block,
        "input": {},
    }
    deltas: list[Json]
    if kind == "text":
        deltas = [{"type": "text_delta", "text": word} for word in words]
    elif kind == "thinking":
        deltas = [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    else:
        text = json.dumps(block["input"])
        deltas = [
            {"type": "input_json_delta", "partial_json": piece}
            for piece in ("", text[:3], text[3:])
        ]
    yield _sse(
        {"type": "content_block_start", "index": index, "content_block": empty},
        "content_block_start",
    )
    for delta in deltas:
        yield _sse(
            {"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta"
        )
    yield _sse({"type": "content_block_stop", "index": index}, "content_block_stop")


def _items(request: Json) -> list[Json]:
    if _wants(request, "tools"):
        return [
            {
                "type": "function_call",
                "id": f"fc_{index}",
                "call_id": f"call_{index}",
                "name": name,
                "arguments": f'{{"n": {index}}}',
                "status": "completed",
            }
            for index, name in enumerate(_tool_names(request))
        ]
    text = {
        "type": "output_text",
        "text": "".join(_words(request)),
        "annotations": [],
        "logprobs": [],
    }
    items: list[Json] = [
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [text],
        }
    ]
    if _wants(request, "reason"):
        items.insert(
            0,
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "let me think"}],
                "encrypted_content": "ZW5j",
            },
        )
    return items


def _responses_whole(request: Json) -> Json:
    return {
        "id": "resp_scripted",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": request.get("model"),
        "output": _items(request),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "temperature": 1.0,
        "top_p": 1.0,
        "usage": {
            "input_tokens": 11,
            "input_tokens_details": {"cached_tokens": 3},
            "output_tokens": 7,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 18,
        },
    }


def _responses_stream(request: Json) -> Iterator[bytes]:
    whole = _responses_whole(request)
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    events: list[Json] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for index, item in enumerate(_items(request)):
        events += _item_events(index, item, _words(request))
    events.append({"type": "response.completed", "response": whole})
    for number, event in enumerate(events):
        yield _sse({**event, "sequence_number": number}, event["type"])


def _item_events(index: int, item: Json, words: list[str]) -> list[Json]:
    at = {"output_index": index, "item_id": item["id"]}
    added = {**item, "status": "in_progress"}
    events: list[Json] = []
    if item["type"] == "message":
        part = item["content"][0]
        events = [
            {
                "type": "response.content_part.added",
                **at,
                "content_index": 0,
                "part": {**part, "text": ""},
            }
        ]
        events += [
            {
                "type": "response.output_text.delta",
                **at,
                "content_index": 0,
                "delta": word,
                "logprobs": [],
            }
            for word in words
        ]
        events += [
            {
                "type": "response.output_text.done",
                **at,
                "content_index": 0,
                "text": part["text"],
                "logprobs": [],
            },
            {"type": "response.content_part.done", **at, "content_index": 0, "part": part},
        ]
        added = {**added, "content": []}
    elif item["type"] == "function_call":
        added = {**added, "arguments": ""}
        events = [
            {"type": "response.function_call_arguments.delta", **at, "delta": piece}
            for piece in (item["arguments"][:3], item["arguments"][3:])
        ]
        events.append(
            {"type": "response.function_call_arguments.done", **at, "arguments": item["arguments"]}
        )
    elif item["type"] == "reasoning":
        part = item["summary"][0]
        added = {**added, "summary": []}
        events = [
            {
                "type": "response.reasoning_summary_part.added",
                **at,
                "summary_index": 0,
                "part": {**part, "text": ""},
            },
            {
                "type": "response.reasoning_summary_text.delta",
                **at,
                "summary_index": 0,
                "delta": part["text"],
            },
            {
                "type": "response.reasoning_summary_text.done",
                **at,
                "summary_index": 0,
                "text": part["text"],
            },
            {
                "type": "response.reasoning_summary_part.done",
                **at,
                "summary_index": 0,
                "part": part,
            },
        ]
    begin = {"type": "response.output_item.added", "output_index": index, "item": added}
    return [
        begin,
        *events,
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


def _gemini_event(request: Json, parts: list[Json], finish: str | None = None) -> Json:
    candidate: Json = {"content": {"parts": parts, "role": "model"}, "index": 0}
    usage = {"promptTokenCount": 11, "totalTokenCount": 11}
    if finish is not None:
        candidate["finishReason"] = finish
        counts = {"candidatesTokenCount": 4, "thoughtsTokenCount": 3, "cachedContentTokenCount": 3}
        usage = {**usage, **counts, "totalTokenCount": 18}
    named = {"modelVersion": request.get("model"), "responseId": "scripted"}
    return {"candidates": [candidate], "usageMetadata": usage, **named}


def _gemini_parts(request: Json) -> list[Json]:
    if _wants(request, "tools"):
        calls: list[Json] = [
            {"functionCall": {"name": name, "args": {"n": index}}}
            for index, name in enumerate(_tool_names(request))
        ]
        return [{**calls[0], "thoughtSignature": "c2ln"}, *calls[1:]]
    thought = [{"text": "let me think", "thought": True}] if _wants(request, "reason") else []
    return [*thought, *({"text": word} for word in _words(request))]


def _gemini_whole(request: Json) -> Json:
    return _gemini_event(request, _gemini_parts(request), "STOP")


def _gemini_stream(request: Json) -> Iterator[bytes]:
    """As Google's servers write it: with carriage returns, and without an event for the end."""
    parts = _gemini_parts(request)
    for number, part in enumerate(parts):
        finish = "STOP" if number == len(parts) - 1 else None
        event = json.dumps(_gemini_event(request, [part], finish))
        yield f"data: {event}\r\n\r\n".encode()


STREAMS = {
    "chat": _chat_stream,
    "messages": _messages_stream,
    "responses": _responses_stream,
    "gemini": _gemini_stream,
}
WHOLES = {
    "chat": _chat_whole,
    "messages": _messages_whole,
    "responses": _responses_whole,
    "gemini": _gemini_whole,
}


def main() -> None:
    """Run as a process of its own, for tests that kill it."""
    app = Provider(chunk_delay_s=float(sys.argv[2]))._app
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        log_level="critical",
        lifespan="off",
        interface="asgi3",
    )


if __name__ == "__main__":
    main()
