"""A model that says what a test wrote down, behind real HTTP: OpenAI chat completions, one step of
the script for each request.
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, dict[str, Any] | bytes | None]
"""A status with a body; no body at all means that the line is dropped."""
Step = Callable[[dict[str, Any]], Reply]
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
PROXY_HEADERS = {
    "X-Metaclaw-Turn": "t_1",
    "X-Metaclaw-Generation": "3",
    "X-Metaclaw-Policy": "2",
    "X-Metaclaw-Skills": "dates,names",
}


def say(text: str, *, usage: Mapping[str, int] | None = USAGE) -> Step:
    return lambda request: (200, _completion({"role": "assistant", "content": text}, "stop", usage))


def call(*calls: tuple[str, Any], text: str | None = None) -> Step:
    """Calls of tools by name; arguments that are a string go out as they are, so that they may be
    broken.
    """
    made = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {
                "name": name,
                "arguments": given if isinstance(given, str) else json.dumps(given),
            },
        }
        for number, (name, given) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": text, "tool_calls": made}
    return lambda request: (200, _completion(message, "tool_calls", USAGE))


def refuse(status: int) -> Step:
    return lambda request: (
        status,
        {
            "error": {
                "message": f"scripted {status}",
                "type": "scripted",
                "code": None,
                "param": None,
            }
        },
    )


def drop() -> Step:
    return lambda request: (0, None)


def garble() -> Step:
    return lambda request: (200, b"<html>this is no answer</html>")


@dataclass
class Asked:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    def texts(self, role: str) -> list[str]:
        return [
            _text(message.get("content"))
            for message in self.body["messages"]
            if message["role"] == role
        ]


@dataclass
class ScriptedModel:
    """Answers by its script; after the last step, that one again and again."""

    script: Sequence[Step]
    headers: Mapping[str, str] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)

    def __enter__(self) -> "ScriptedModel":
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def answer(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> Reply:
        self.asked.append(Asked(path, headers, body))
        return self.script[min(len(self.asked), len(self.script)) - 1](body)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                status, reply = model.answer(
                    self.path, {name.lower(): value for name, value in self.headers.items()}, body
                )
                if reply is None:
                    self.close_connection = True
                    return
                sent = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
                self.send_response(status)
                kind = "text/event-stream" if sent.startswith(b"data: ") else "application/json"
                for name, value in {
                    **model.headers,
                    "Content-Type": kind,
                    "Content-Length": str(len(sent)),
                }.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(sent)

            def log_message(self, format: str, *args: object) -> None:
                return

        return Handler


def _completion(
    message: dict[str, Any], finish: str, usage: Mapping[str, int] | None
) -> dict[str, Any]:
    whole = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "scripted"}
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    return {**whole, "choices": [choice], **({"usage": dict(usage)} if usage is not None else {})}


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""
