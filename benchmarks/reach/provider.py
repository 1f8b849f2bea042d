"""A provider on loopback that the scripted model answers for, and that counts what it was sent by
purpose.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from benchmarks.reach.model import ScriptedModel, message_text

TRAFFIC = "traffic"
_GOING_ON = "enforce"


class ScriptedProvider:
    """Keeps the words of the newest request of an agent, and the size and number of all. Four bytes
    count as one token.
    """

    def __init__(self, model: ScriptedModel, delay_s: float = 0.0) -> None:
        self.newest = ""
        self.requests = 0
        self.calls: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.traffic: list[int] = []
        self._model = model
        self._delay_s = delay_s
        self._lock = threading.Lock()
        self.url = ""

    def answer(self, purpose: str, raw: bytes) -> dict[str, Any]:
        """The answer to one request in the chat wire."""
        # The program goes on with an agent's request after a call of its own tools.
        is_of_agent = purpose in ("", _GOING_ON)
        body = json.loads(raw or b"{}")
        messages = body.get("messages", [])
        if purpose == "listen" and self._delay_s:
            time.sleep(self._delay_s)
        tools = [tool.get("function", {}).get("name", "") for tool in body.get("tools") or ()]
        lookup = self._model.lookup(messages, tools) if is_of_agent else None
        message: dict[str, Any] = {"role": "assistant"}
        if lookup is None:
            asked = "" if is_of_agent else purpose
            message["content"] = text = self._model.answer(asked, messages)
        else:
            call = {"name": lookup[0], "arguments": json.dumps(lookup[1])}
            identity = f"call_{len(messages)}"
            message |= {
                "content": None,
                "tool_calls": [{"id": identity, "type": "function", "function": call}],
            }
            text = call["arguments"]
        prompt, completion = len(raw) // 4, max(1, len(text.encode()) // 4)
        with self._lock:
            self.calls[purpose or TRAFFIC] += 1
            self.tokens[purpose or TRAFFIC] += prompt + completion
            if is_of_agent:
                self.requests += 1
                self.newest = "\n".join(map(message_text, messages))
            if not purpose:
                self.traffic.append(prompt + completion)
        return {
            "id": "chatcmpl-reach",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "message": message,
                    "finish_reason": "stop" if lookup is None else "tool_calls",
                }
            ],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "total_tokens": prompt + completion,
            },
        }

    def learning_tokens(self) -> int:
        """The tokens of every call that the program made on its own."""
        return sum(tokens for purpose, tokens in self.tokens.items() if purpose != TRAFFIC)

    def spent(self) -> dict[str, dict[str, int]]:
        """Calls and tokens by purpose."""
        return {
            purpose: {"calls": self.calls[purpose], "tokens": self.tokens[purpose]}
            for purpose in sorted(self.calls)
        }

    @contextmanager
    def serving(self) -> Iterator["ScriptedProvider"]:
        """Serve on a free port until the block ends."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def _streamed(answer: dict[str, Any]) -> bytes:
    """An answer as events: its message in one piece, then why it ended, then the usage."""
    (choice,) = answer["choices"]
    message = choice["message"]
    calls = [{"index": 0, **call} for call in message.get("tool_calls") or ()]
    first = {"index": 0, "delta": {**message, **({"tool_calls": calls} if calls else {})}}
    last = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    common = {**answer, "object": "chat.completion.chunk"}
    usage = common.pop("usage")
    chunks = [{**common, "choices": [one]} for one in (first, last)]
    chunks.append({**common, "choices": [], "usage": usage})
    lines = [f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n" for chunk in chunks]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


def _handler(provider: ScriptedProvider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle(self) -> None:
            with suppress(ConnectionError):  # the program closes idle connections
                super().handle()

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._send({"object": "list", "data": [{"id": "m", "object": "model"}]})

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            if "chat/completions" not in self.path:
                self._send({"error": {"message": "not offered", "type": "not_found_error"}}, 404)
                return
            answer = provider.answer(self.headers.get("x-metaclaw-purpose", ""), raw)
            if json.loads(raw or b"{}").get("stream"):
                self._send_bytes(_streamed(answer), "text/event-stream")
            else:
                self._send(answer)

        def _send(self, answer: dict[str, Any], status: int = 200) -> None:
            data = json.dumps(answer, ensure_ascii=False).encode()
            self._send_bytes(data, "application/json", status)

        def _send_bytes(self, data: bytes, kind: str, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler
