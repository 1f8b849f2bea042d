"""A relay in front of a Tinker-API server: it can be cut, and it translates for SDKs that are newer than the server.

From 0.25 on the SDK sends training data as protobuf, which SkyRL 0.3.0 does not read, and from 0.26 on it expects names for the
sequences it samples. Data are read with the SDK's own description of them, so nothing of it is written down here.
"""

import array
import importlib
import json
import socket
import threading
import time
from typing import Any

import httpx
import uvicorn

_PROTOBUF = "application/x-protobuf"
_DROPPED = {"host", "content-length", "connection", "transfer-encoding", "content-encoding", "accept-encoding", "accept"}


class Relay:
    """A running relay."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._client = httpx.AsyncClient(base_url=target, timeout=600)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.translated = 0
        config = uvicorn.Config(self._app, log_level="critical", lifespan="off", interface="asgi3", timeout_graceful_shutdown=0)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)

    def start(self) -> "Relay":
        self._thread.start()
        deadline = time.monotonic() + 10
        while not self._server.started:
            if time.monotonic() > deadline:
                raise TimeoutError("the relay did not start")
            time.sleep(0.005)
        return self

    def cut(self) -> None:
        """From now on nobody is there."""
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(10)
        self._socket.close()

    async def _app(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        status, answer = await self._forward(scope["method"], scope["path"], scope["query_string"].decode(), headers, body)
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": answer})

    async def _forward(self, method: str, path: str, query: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        passed = {name: value for name, value in headers.items() if name not in _DROPPED}
        if headers.get("content-type") == _PROTOBUF:
            self.translated += 1
            path, body = _read_training(body)
            passed["content-type"] = "application/json"
        url = f"{path}?{query}" if query else path
        reply = await self._client.request(method, url, headers=passed, content=body)
        answer = reply.content
        if path == "/api/v1/asample" and reply.status_code == 200:
            named = json.loads(answer)
            named["sample_sequence_ids"] = [f"{named['request_id']}-{n}" for n in range(json.loads(body).get("num_samples", 1))]
            answer = json.dumps(named).encode()
        return reply.status_code, answer


def _read_training(body: bytes) -> tuple[str, bytes]:
    """A protobuf request as the older JSON one: its path and its body."""
    message = importlib.import_module("tinker.proto.tinker_public_pb2").ForwardBackwardRequest.FromString(body)
    data = [
        {
            "model_input": {
                "chunks": [
                    {"type": "encoded_text", "tokens": _numbers("i", chunk.encoded_text.tokens)} for chunk in datum.model_input
                ]
            },
            "loss_fn_inputs": {name: _tensor(tensor) for name, tensor in datum.loss_fn_inputs.items()},
        }
        for datum in message.data
    ]
    inputs = {"data": data, "loss_fn": message.loss_fn, "loss_fn_config": dict(message.loss_fn_config) or None}
    name = "forward" if message.forward_only else "forward_backward"
    asked = {"model_id": message.model_id, "seq_id": message.seq_id, f"{name}_input": inputs}
    return f"/api/v1/{name}", json.dumps(asked).encode()


def _tensor(tensor: Any) -> dict[str, Any]:
    pb2 = importlib.import_module("tinker.proto.tinker_public_pb2")
    is_float = tensor.dtype == pb2.DTYPE_FLOAT32
    kind, name = ("f", "float32") if is_float else ("q", "int64")
    return {"data": _numbers(kind, tensor.dense), "dtype": name, "shape": list(tensor.shape)}


def _numbers(kind: str, raw: bytes) -> list[Any]:
    numbers: array.array[Any] = array.array(kind)
    numbers.frombytes(raw)
    return numbers.tolist()
