"""Fakes of servers that load adapters, on loopback: their routes, their words, their statuses. Here
vLLM 0.32.

They hold names and folders. What they answer was read from those servers' own sources. What one
draws comes from the toy backend's weights, which stand for a model.
"""

import json
import pickle
import random
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.softmax import END, Softmax, decode

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


@dataclass
class FakeVllm(FakeServer):
    """An adapter without a folder is refused; a success is told in plain text, a refusal in
    JSON.
    """

    drift: float = 0.0
    """How much more likely each drawn token is here than the weights say, in nats."""
    ends_all: bool = False
    """All that is drawn counts as whole: the toy policy hardly ever draws an end."""
    drawn: int = 0

    def answer(self, path: str, body: Body) -> tuple[int, str]:
        if path == "/v1/completions":
            return self._draw(body)
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
            folder = Path(body["lora_path"])
            if not ((folder / "adapter_config.json").exists() or folder.is_file()):
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

    def _draw(self, body: Body) -> tuple[int, str]:
        folder = self.adapters.get(body["model"])
        if folder is None:
            words = f"The model `{body['model']}` does not exist."
            return 404, self._error(words, "NotFoundError", 404)
        self.drawn += 1
        policy: Softmax = pickle.loads(Path(folder).read_bytes())
        choices = []
        for number in range(body["n"]):
            chance = random.Random(f"{body['model']}/{body['prompt']}/{number}")
            drawn = policy.draw(body["prompt"], body["max_tokens"], body["temperature"], chance)
            tokens = [token for token, _ in drawn]
            scores = [min(0.0, logprob + self.drift) for _, logprob in drawn]
            finish = "stop" if self.ends_all or tokens[-1] == END else "length"
            choices.append(
                {
                    "index": number,
                    "text": decode(tokens),
                    "token_ids": tokens,
                    "logprobs": {"token_logprobs": scores},
                    "finish_reason": finish,
                }
            )
        return 200, json.dumps({"choices": choices})

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
