"""Weaver's REST API in small, on loopback: a stub, for there is no Weaver server to be had. Its
weights are a classroom's.
"""

import asyncio
import itertools
import json
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import uvicorn

from metaclaw.domain.training import Adam
from metaclaw.errors import TrainingError
from metaclaw.training.backends.service import Objective, Row, SampleRequest
from tests.support.classroom import Classroom

Body = dict[str, Any]
Work = Callable[[Body, str], Body]


class WeaverStub:
    """Routes as Weaver's SDK asks for them; long work is an operation that is done at the second
    look.
    """

    def __init__(self) -> None:
        self.room = Classroom()
        self.calls: list[tuple[str, str, Body]] = []
        self.keys: set[str | None] = set()
        self._samplers: dict[str, str | None] = {}
        self._checkpoints: dict[str, list[Body]] = {}
        self._operations: dict[str, Body] = {}
        self._numbers = itertools.count(1)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(self._app, log_level="critical", lifespan="off", interface="asgi3")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), daemon=True
        )

    def start(self) -> "WeaverStub":
        self._thread.start()
        deadline = time.monotonic() + 10
        while not self._server.started:
            if time.monotonic() > deadline:
                raise TimeoutError("the stub did not start")
            time.sleep(0.005)
        return self

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()

    async def _app(self, scope: Body, receive: Any, send: Any) -> None:
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.keys.add(headers.get("x-weaver-api-key"))
        status, answer = await asyncio.to_thread(
            self._answer, scope["method"], scope["path"], json.loads(body or b"{}") or {}
        )
        content = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": content})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    def _answer(self, method: str, path: str, body: Body) -> tuple[int, Body]:
        self.calls.append((method, path, body))
        for wanted, pattern, work, is_long in self._routes():
            if method == wanted and (found := re.fullmatch(pattern, path)):
                subject = found[1] if found.groups() else ""
                return self._operate(work, body, subject) if is_long else (200, work(body, subject))
        return 404, {"error": {"code": "not_found", "message": f"no route {method} {path}"}}

    def _routes(self) -> list[tuple[str, str, Work, bool]]:
        model = r"/api/v1/models/([^/]+)"
        return [
            ("POST", r"/api/v1/sessions", lambda body, _: {"id": "session-1"}, False),
            ("POST", r"/api/v1/sessions/([^/]+)/heartbeat", lambda body, _: {}, False),
            ("POST", r"/api/v1/sessions/([^/]+)/models", self._create, False),
            ("POST", r"/api/v1/sessions/([^/]+)/sampling-sessions", self._sampler, False),
            ("GET", r"/api/v1/supported-models", lambda body, _: {"items": []}, False),
            (
                "GET",
                r"/api/v1/operations/([^/]+)",
                lambda body, operation: self._operations[operation],
                False,
            ),
            ("POST", f"{model}/forward-backward-passes", self._teach, True),
            ("POST", f"{model}/optimizer-steps", self._step, True),
            ("POST", f"{model}/export-sampler", self._publish, True),
            ("POST", f"{model}/checkpoints", self._save, True),
            (
                "GET",
                f"{model}/checkpoints",
                lambda body, name: {"items": self._checkpoints.get(name, [])},
                False,
            ),
            ("POST", f"{model}/load", self._load, True),
            ("POST", f"{model}/terminate", self._terminate, False),
            ("POST", r"/api/v1/sampling-sessions/([^/]+)/samples", self._sample, True),
            ("POST", r"/api/v1/sampling-sessions/([^/]+)/logprobs", self._score, True),
        ]

    def _operate(self, work: Work, body: Body, subject: str) -> tuple[int, Body]:
        operation = f"operation-{next(self._numbers)}"
        try:
            done: Body = {"id": operation, "status": "done", "response": work(body, subject)}
        except (TrainingError, LookupError) as error:
            done = {
                "id": operation,
                "status": "error",
                "error_code": "failed",
                "error_message": str(error),
            }
        self._operations[operation] = done
        return 202, {"id": operation, "status": "pending"}

    def _create(self, body: Body, _: str) -> Body:
        assert body["lora_config"]["rank"] > 0
        return {
            "id": self.room.create(),
            "base_model": body["base_model"],
            "tokenizer_path": "none",
        }

    def _sampler(self, body: Body, _: str) -> Body:
        name = f"sampler-{next(self._numbers)}"
        path = body["model_path"]
        self._samplers[name] = (
            None
            if path is None
            else path.replace("weaver://", "weights://").replace("/samplers/", "/")
        )
        return {"id": name}

    def _teach(self, body: Body, model: str) -> Body:
        asked = body["payload"]["forward_backward_input"]
        weighs = asked["loss_fn"] == "cross_entropy"
        rows = [_row(datum, weighs=weighs) for datum in asked["data"]]
        scores = self.room.teach(
            model, rows, Objective(asked["loss_fn"], asked.get("loss_fn_config"), weighs)
        )
        return {
            "result": {
                "loss_fn_outputs": [
                    {"logprobs": {"data": score, "dtype": "float32"}} for score in scores
                ]
            }
        }

    def _step(self, body: Body, model: str) -> Body:
        return {
            "metrics": {"grad_norm": self.room.step(model, Adam(**body["payload"]["adam_params"]))}
        }

    def _publish(self, body: Body, model: str) -> Body:
        self.room.publish(model, body["path"])
        return {"model_path": f"weaver://{model}/samplers/{body['path']}"}

    def _save(self, body: Body, model: str) -> Body:
        assert body["type"] == "weight_and_optimizer"
        self.room.save(model, body["name"])
        path = f"weaver://{model}/checkpoints/{body['name']}"
        checkpoint = {
            "id": f"checkpoint-{path}",
            "path": path,
            "name": body["name"],
            "status": "completed",
            **body,
        }
        self._checkpoints.setdefault(model, []).append(checkpoint)
        return checkpoint

    def _load(self, body: Body, model: str) -> Body:
        assert body["include_optimizer"]
        state = body["path"].replace("weaver://", "state://").replace("/checkpoints/", "/")
        self.room.models[model] = self.room.models[self.room.create(state)]
        return {}

    def _terminate(self, body: Body, model: str) -> Body:
        self.room.models.pop(model, None)
        return {}

    def _sample(self, body: Body, sampler: str) -> Body:
        options = body["sampling_params"]
        request = SampleRequest(
            tuple(_tokens(body["prompt"])),
            body["num_samples"],
            options["max_tokens"],
            options["temperature"],
            options["seed"],
        )
        drawn = self.room.sample(self._samplers[sampler], request)
        sequences = [
            {
                "tokens": list(each.tokens),
                "logprobs": list(each.logprobs),
                "stop_reason": "stop" if each.is_whole else "length",
            }
            for each in drawn
        ]
        return {"result": {"sequences": sequences}}

    def _score(self, body: Body, sampler: str) -> Body:
        return {
            "result": {
                "prompt_logprobs": [
                    None,
                    *self.room.score(self._samplers[sampler], _tokens(body["prompt"])),
                ]
            }
        }


def _row(datum: Body, *, weighs: bool) -> Row:
    inputs = datum["loss_fn_inputs"]
    targets = tuple(inputs["target_tokens"]["data"])
    advantages = tuple(inputs["weights" if weighs else "advantages"]["data"])
    logprobs = (0.0,) * len(targets) if weighs else tuple(inputs["logprobs"]["data"])
    return Row(tuple(_tokens(datum["model_input"])), targets, logprobs, advantages)


def _tokens(model_input: Body) -> list[int]:
    return [token for chunk in model_input["chunks"] for token in chunk["tokens"]]
