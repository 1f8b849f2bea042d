"""Fakes of servers that load adapters, on loopback: their routes, their words, their statuses. Here
vLLM 0.32.

They hold names and folders, no model. What they answer was read from those servers' own sources.
"""

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Body = dict[str, Any]


@dataclass
class FakeServer:
    """What all have in common. `asked` are the calls as they came."""

    adapters: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, Body, str | None]] = field(default_factory=list)
    fails: str | None = None
    """The next call is answered with this, and nothing is done."""

    def __post_init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def answer(self, path: str, body: Body) -> tuple[int, str]:
        raise NotImplementedError


class FakeVllm(FakeServer):
    """An adapter without a folder is refused; a success is told in plain text, a refusal in
    JSON.
    """

    def answer(self, path: str, body: Body) -> tuple[int, str]:
        name = body["lora_name"]
        if self.fails is not None:
            return 500, self._error(self.fails, "InternalServerError", 500)
        if path == "/v1/load_lora_adapter":
            if name in self.adapters and not body.get("load_inplace"):
                words = (
                    f"The lora adapter '{name}' has already been loaded. If you want to load the"
                    " adapter in place, set"
                )
                return 400, self._error(f"{words} 'load_inplace' to True.", "InvalidUserInput", 400)
            if not (Path(body["lora_path"]) / "adapter_config.json").exists():
                return 404, self._error(
                    f"Loading lora {name} failed: No adapter found for {body['lora_path']}",
                    "NotFoundError",
                    404,
                )
            self.adapters[name] = body["lora_path"]
            return 200, f"Success: LoRA adapter '{name}' added successfully."
        if path == "/v1/unload_lora_adapter":
            if self.adapters.pop(name, None) is None:
                return 404, self._error(
                    f"The lora adapter '{name}' cannot be found.", "NotFoundError", 404
                )
            return 200, f"Success: LoRA adapter '{name}' removed successfully."
        return 404, json.dumps({"detail": "Not Found"})

    @staticmethod
    def _error(message: str, kind: str, code: int) -> str:
        return json.dumps(
            {"error": {"message": message, "type": kind, "param": None, "code": code}}
        )


def _handler(server: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            server.asked.append((self.path, body, self.headers["authorization"]))
            status, text = server.answer(self.path, body)
            self.send_response(status)
            self.send_header("content-length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            return

    return Handler
