"""A simulated model over HTTP: OpenAI chat completions, whole or streamed. It calls itself
`simulated`.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

from metaclaw_bench.json_types import Json
from metaclaw_bench.simulated.listener import confirmed, listened
from metaclaw_bench.simulated.model import (
    MODEL,
    Broken,
    Message,
    Prompt,
    Purpose,
    Said,
    SimulatedModel,
    Thought,
)

_MOST_BYTES: Final = 64 * 1024 * 1024
_REASONS: Final = {200: "OK", 400: "Bad Request", 404: "Not Found"}
_CHARS_A_TOKEN: Final = 4
_PURPOSES: Final = frozenset(Purpose)


@asynccontextmanager
async def serving(mind: SimulatedModel) -> AsyncIterator[str]:
    """The mind behind an address on this machine, as `http://127.0.0.1:PORT/v1`, until the block
    ends.
    """
    talks: set[asyncio.Task[None]] = set()

    async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talks.add(task)
        try:
            await _talk(mind, reader, writer)
        except asyncio.CancelledError:
            pass  # the block has ended; asyncio would log this as an error of ours
        finally:
            talks.discard(task)
            writer.close()

    server = await asyncio.start_server(welcome, "127.0.0.1", 0, limit=_MOST_BYTES)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()
        for task in talks:
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
        await server.wait_closed()


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


async def _talk(
    mind: SimulatedModel, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """One connection, kept open for as many requests as the client likes."""
    with suppress(ConnectionError):
        while (request := await _read(reader)) is not None:
            status, kind, body = _answer(mind, request)
            head = (
                f"HTTP/1.1 {status} {_REASONS.get(status, 'Error')}\r\ncontent-type:"
                f" {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode("ascii") + body)
            await writer.drain()


async def _read(reader: asyncio.StreamReader) -> _Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = (line.partition(":") for line in head[1:] if line)
        headers = {name.strip().lower(): value.strip() for name, _, value in fields}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    except (asyncio.IncompleteReadError, ValueError):
        return None  # the client has gone away, or speaks something else
    method, path, _ = head[0].split(" ", 2)
    return _Request(method, path, headers, body)


def _answer(mind: SimulatedModel, request: _Request) -> tuple[int, str, bytes]:
    if request.path.endswith("/models"):
        return _json(
            200,
            {
                "object": "list",
                "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": MODEL}],
            },
        )
    if not request.path.endswith("/chat/completions"):
        return _json(404, _error(f"there is no {request.path} here"))
    try:
        asked = read_object(json.loads(request.body))
        prompt = read_prompt(asked, request.headers.get("x-metaclaw-purpose"))
    except ValueError as error:
        return _json(400, _error(str(error)))
    if prompt.purpose is Purpose.LISTEN:
        # A mind that measures an evolver hears no rules: what it knows must be written by the
        # evolver.
        thought: Thought = Said(getattr(mind, "heard", listened)(prompt.text))
    elif prompt.purpose is Purpose.CONFIRM:
        thought = Said(confirmed())
    else:
        thought = mind.answer(prompt)
    if isinstance(thought, Broken):
        return _json(thought.status, _error("the simulated provider fails here on purpose"))
    usage = _usage(prompt, thought)
    if asked.get("stream") is True:
        return 200, "text/event-stream", _stream(thought, usage)
    return _json(200, _whole(thought, usage))


def read_prompt(asked: Mapping[str, Json], purpose: str | None = None) -> Prompt:
    """The prompt in a chat request. Raises ValueError where there is none."""
    listed = asked.get("messages")
    if not isinstance(listed, list):
        raise ValueError("messages must be a list")
    tools = asked.get("tools")
    names = [_name_in(one) for one in tools] if isinstance(tools, list) else []
    known = Purpose(purpose) if purpose in _PURPOSES else None
    return Prompt(
        tuple(_message(read_object(one)) for one in listed), frozenset(filter(None, names)), known
    )


def read_object(value: Json) -> dict[str, Json]:
    """A JSON object. Raises ValueError for anything else."""
    if not isinstance(value, dict):
        raise ValueError("an object was expected")
    return value


def _message(one: Mapping[str, Json]) -> Message:
    calls = one.get("tool_calls")
    names = [_name_in(call) for call in calls] if isinstance(calls, list) else []
    return Message(str(one.get("role", "")), _flat(one.get("content")), tuple(filter(None, names)))


def _name_in(value: Json) -> str:
    function = value.get("function") if isinstance(value, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""


def _flat(content: Json) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def _usage(prompt: Prompt, said: Said) -> dict[str, Json]:
    """Characters by the handful: these are no tokens of any model, but they grow as tokens do."""
    seen = sum(len(message.text) for message in prompt.messages) // _CHARS_A_TOKEN
    made = (
        len(said.text) + sum(len(json.dumps(dict(call.arguments))) for call in said.calls)
    ) // _CHARS_A_TOKEN + 1
    return {"prompt_tokens": seen, "completion_tokens": made, "total_tokens": seen + made}


def _calls(said: Said, usage: Mapping[str, Json]) -> list[Json]:
    """Ids differ from answer to answer of a conversation, which only grows."""
    return [
        {
            "id": f"call_{usage['prompt_tokens']}_{number}",
            "type": "function",
            "function": {"name": call.tool, "arguments": json.dumps(dict(call.arguments))},
        }
        for number, call in enumerate(said.calls)
    ]


def _frame(kind: str) -> dict[str, Json]:
    return {
        "id": f"chatcmpl-{MODEL}",
        "object": kind,
        "created": 0,
        "model": MODEL,
        "system_fingerprint": MODEL,
    }


def _whole(said: Said, usage: dict[str, Json]) -> dict[str, Json]:
    message: dict[str, Json] = {"role": "assistant", "content": said.text}
    if said.calls:
        message["tool_calls"] = _calls(said, usage)
    choice: Json = {
        "index": 0,
        "message": message,
        "finish_reason": _finish(said),
        "logprobs": None,
    }
    return {**_frame("chat.completion"), "choices": [choice], "usage": usage}


def _stream(said: Said, usage: dict[str, Json]) -> bytes:
    calls: list[Json] = [
        {"index": number, **read_object(call)} for number, call in enumerate(_calls(said, usage))
    ]
    delta: dict[str, Json] = {
        "role": "assistant",
        "content": said.text,
        **({"tool_calls": calls} if calls else {}),
    }
    events: list[dict[str, Json]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": _finish(said)}]},
        {"choices": [], "usage": usage},
    ]
    lines = [json.dumps({**_frame("chat.completion.chunk"), **event}) for event in events]
    return "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()


def _finish(said: Said) -> str:
    return "tool_calls" if said.calls else "stop"


def _error(message: str) -> dict[str, Json]:
    return {"error": {"message": message, "type": "simulated_error", "code": None}}


def _json(status: int, body: Mapping[str, Json]) -> tuple[int, str, bytes]:
    return status, "application/json", json.dumps(body).encode()
