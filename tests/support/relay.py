"""A relay in front of a Tinker-API server: it can be cut, and it translates for SDKs that are newer
than the server.

From 0.26 on the SDK expects names for the sequences it samples, which SkyRL 0.4.0 does not give; from
0.25 on it sends training data as protobuf, which SkyRL 0.3.0 does not read, and the newest wants
results as protobuf, too. Both are read and written with the SDK's own description of them."""

import array
import importlib
import itertools
import json
import socket
import threading
import time
from typing import Any

import httpx
import uvicorn

_PROTOBUF = "application/x-protobuf"
_DROPPED = {
    "host",
    "content-length",
    "connection",
    "transfer-encoding",
    "content-encoding",
    "accept-encoding",
    "accept",
}


class Relay:
    """A running relay. `translates` is False for a server that speaks protobuf itself."""

    def __init__(self, target: str, port: int = 0, *, translates: bool = True) -> None:
        self._target = target
        self._translates = translates
        self._client = httpx.AsyncClient(base_url=target, timeout=600)
        self._socket = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.translated = 0
        config = uvicorn.Config(
            self._app,
            log_level="critical",
            lifespan="off",
            interface="asgi3",
            loop="asyncio",
            timeout_graceful_shutdown=0,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), daemon=True
        )

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
        status, kind, answer = await self._forward(
            scope["method"], scope["path"], scope["query_string"].decode(), headers, body
        )
        if (
            self._translates
            and status == 200
            and scope["path"] == "/api/v1/retrieve_future"
            and headers.get("accept") == _PROTOBUF
        ):
            kind, answer = _write_result(kind, answer)
        # With its length: the SDK's client takes a refusal that comes in chunks for a broken
        # connection, and tries for ever.
        told = [(b"content-type", kind.encode()), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": told})
        await send({"type": "http.response.body", "body": answer})

    async def _forward(
        self, method: str, path: str, query: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, str, bytes]:
        passed = {name: value for name, value in headers.items() if name not in _DROPPED}
        if not self._translates:
            passed["accept"] = headers.get("accept", "*/*")
        elif headers.get("content-type") == _PROTOBUF:
            self.translated += 1
            path, body = _read_training(body)
            passed["content-type"] = "application/json"
        url = f"{path}?{query}" if query else path
        reply = await self._client.request(method, url, headers=passed, content=body)
        answer = reply.content
        if path == "/api/v1/asample" and reply.status_code == 200:
            named = json.loads(answer)
            named["sample_sequence_ids"] = [
                f"{named['request_id']}-{n}" for n in range(json.loads(body).get("num_samples", 1))
            ]
            answer = json.dumps(named).encode()
        return reply.status_code, reply.headers.get("content-type", "application/json"), answer


def _read_training(body: bytes) -> tuple[str, bytes]:
    """A protobuf request as the older JSON one: its path and its body."""
    message = _messages().ForwardBackwardRequest.FromString(body)
    data = [
        {
            "model_input": {"chunks": [_chunk(chunk) for chunk in datum.model_input]},
            "loss_fn_inputs": {
                name: _tensor(tensor) for name, tensor in datum.loss_fn_inputs.items()
            },
        }
        for datum in message.data
    ]
    inputs = {
        "data": data,
        "loss_fn": message.loss_fn,
        "loss_fn_config": dict(message.loss_fn_config) or None,
    }
    name = "forward" if message.forward_only else "forward_backward"
    asked = {"model_id": message.model_id, "seq_id": message.seq_id, f"{name}_input": inputs}
    return f"/api/v1/{name}", json.dumps(asked).encode()


def _write_result(kind: str, answer: bytes) -> tuple[str, bytes]:
    """A result as the newer protobuf one, if it is of a kind that has one; its content type and its
    body.
    """
    result = json.loads(answer)
    if "sequences" in result:
        return _PROTOBUF, _write_sample(result)
    if "loss_fn_outputs" in result:
        return _PROTOBUF, _write_taught(result)
    return kind, answer


def _write_sample(result: dict[str, Any]) -> bytes:
    messages = _messages()
    reasons = {"stop": messages.STOP_REASON_STOP, "length": messages.STOP_REASON_LENGTH}
    sequences = [
        messages.SampledSequence(
            stop_reason=reasons[each["stop_reason"]],
            tokens=_raw("i", each["tokens"]),
            logprobs=_raw("f", each["logprobs"]),
        )
        for each in result["sequences"]
    ]
    scores = result.get("prompt_logprobs")
    written: bytes = messages.SampleResponse(
        sequences=sequences, prompt_logprobs=None if scores is None else _raw("f", scores)
    ).SerializeToString()
    return written


def _write_taught(result: dict[str, Any]) -> bytes:
    messages = _messages()
    outputs: list[dict[str, Any]] = result["loss_fn_outputs"]
    record = messages.ArrayRecord(num_datums=len(outputs))
    for name in outputs[0]:
        columns = [_raw("f", output[name]["data"]) for output in outputs]
        offsets = list(itertools.accumulate(map(len, columns), initial=0))
        tensor = messages.BatchedTensor(
            dtype=messages.DTYPE_FLOAT32, offsets=_raw("q", offsets), data=b"".join(columns)
        )
        record.fields[name].CopyFrom(tensor)
    written: bytes = messages.ForwardBackwardOutput(
        loss_fn_output_type="ArrayRecord", loss_fn_outputs=[record], metrics=result["metrics"]
    ).SerializeToString()
    return written


def _chunk(chunk: Any) -> dict[str, Any]:
    return {"type": "encoded_text", "tokens": _numbers("i", chunk.encoded_text.tokens)}


def _tensor(tensor: Any) -> dict[str, Any]:
    is_float = tensor.dtype == _messages().DTYPE_FLOAT32
    kind, name = ("f", "float32") if is_float else ("q", "int64")
    return {"data": _numbers(kind, tensor.dense), "dtype": name, "shape": list(tensor.shape)}


def _numbers(kind: str, raw: bytes) -> list[Any]:
    numbers: array.array[Any] = array.array(kind)
    numbers.frombytes(raw)
    return numbers.tolist()


def _raw(kind: str, numbers: list[Any]) -> bytes:
    return array.array(kind, numbers).tobytes()


def _messages() -> Any:
    return importlib.import_module("tinker.proto.tinker_public_pb2")
