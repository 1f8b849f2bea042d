"""Requests that are stopped before or after their provider was asked."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from anyio import fail_after

from metaclaw.app.application import Application
from metaclaw.domain.chat import (
    Begin,
    ChatRequest,
    Delta,
    End,
    Finish,
    Json,
    TextDelta,
    Usage,
    Wire,
)
from metaclaw.domain.skill import Nearness
from metaclaw.domain.turn import Origin, Scope, TurnEnd
from metaclaw.engine import EmbeddedModel
from metaclaw.errors import UpstreamError
from metaclaw.proxy.http.client import Client, Incoming
from metaclaw.proxy.placement import Asked, NoSimilarity, Placed
from tests.support.application import configured, opened

pytestmark = pytest.mark.anyio


class Wall:
    """A client's connection that keeps what is sent."""

    peer: str | None = None
    is_full = False

    def __init__(self) -> None:
        self.sent = b""
        self.is_answered = False

    def send(self, data: bytes) -> None:
        self.sent += data

    async def drain(self) -> None:
        return

    def pause(self) -> None:
        return

    def resume(self) -> None:
        return

    def answered(self, client: Client) -> None:
        self.is_answered = True


class GatedModel:
    """A model that answers when its gate is open."""

    name, models = "model", ("m",)

    def __init__(self) -> None:
        self.trace: list[str] = []
        self.gate = asyncio.Event()

    async def generate(self, request: ChatRequest, version: int = 0) -> AsyncGenerator[Delta, None]:
        self.trace.append(f"asked {request.extra.get('user')}")
        await self.gate.wait()
        yield Begin("x", "m")
        yield TextDelta("hello")
        yield End(Finish.STOP, Usage(1, 1))

    async def aclose(self) -> None:
        return


class Traced(NoSimilarity):
    """The program's own pipeline, whose stages leave a trace, and clients that speak to it. Its
    search by meaning is one that ends when `found` is set."""

    def __init__(self, app: Application, model: GatedModel) -> None:
        self.app = app
        self.model, self.trace = model, model.trace
        self.found = asyncio.Event()
        self.pipeline = app.server.pipeline
        self.pipeline.similarity = self
        self._trace_stages()

    def _trace_stages(self) -> None:
        identify, place = self.pipeline.origins.identify, self.pipeline.placer.place

        def identified(
            wire: Wire,
            headers: Mapping[str, str],
            body: Mapping[str, Json],
            *rest: Any,
            **named: Any,
        ) -> Origin:
            self.trace.append(f"recognised {body['user']}")
            return identify(wire, headers, body, *rest, **named)

        def placed(asked: Asked, *rest: Any, **named: Any) -> Placed:
            self.trace.append(f"placed {asked.incoming.json['user']}")
            return place(asked, *rest, **named)

        self.pipeline.origins.identify = identified  # type: ignore[method-assign]
        self.pipeline.placer.place = placed  # type: ignore[method-assign]

    async def near(self, query: str, scope: Scope) -> Nearness | None:
        self.trace.append("searched a")
        await self.found.wait()
        return None

    def begin(self, name: str) -> tuple["asyncio.Task[None]", Client, Wall]:
        line = Wall()
        client = Client(line, "POST", b"/v1/chat/completions", {})
        client.close_body()
        fields: dict[str, Json] = {
            "model": "m",
            "user": name,
            "messages": [{"role": "user", "content": f"Hello, {name}."}],
        }
        body = json.dumps(fields).encode()
        now = datetime.now(UTC)
        incoming = Incoming(
            Wire.CHAT,
            "/chat/completions",
            "",
            {},
            [],
            body,
            json.loads(body),
            None,
            now,
            time.perf_counter(),
        )
        task = client.task = asyncio.get_running_loop().create_task(
            self.pipeline.answer(incoming, client)
        )
        return task, client, line

    def reached(self, name: str) -> list[str]:
        return [line.split()[0] for line in self.trace if line.endswith(f" {name}")]

    async def ends(self) -> list[TurnEnd]:
        """How the turns in the ledger ended, once everything is on disk."""
        await self.app.ledger.aclose()
        reader = self.app.reader
        return [turn.end for session in reader.sessions() for turn in reader.turns_of(session.id)]


@pytest.fixture
async def traced(tmp_path: Path) -> AsyncIterator[Traced]:
    model = GatedModel()
    async with opened(configured(tmp_path, model)) as app:
        yield Traced(app, model)


async def _reach(traced: Traced, stage: str) -> None:
    with fail_after(5):
        while stage not in traced.reached("a"):
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    "stages", [["recognised"], ["recognised", "searched"]], ids=lambda stages: stages[-1]
)
async def test_a_request_stopped_before_a_provider_was_asked_is_refused_and_leaves_no_turn(
    traced: Traced, stages: list[str]
) -> None:
    task, _, line = traced.begin("a")
    await _reach(traced, stages[-1])
    task.cancel("the program is stopping")
    with pytest.raises(UpstreamError) as refused:
        await task
    assert (refused.value.status, refused.value.code) == (503, "stopping")
    assert traced.reached("a") == stages
    assert line.sent == b""
    assert await traced.ends() == []
    assert traced.app.metrics.in_flight == 0


@pytest.mark.parametrize("leaves", [True, False], ids=["the client leaves", "the program stops"])
async def test_a_request_stopped_while_its_provider_answers_leaves_its_turn(
    traced: Traced, *, leaves: bool
) -> None:
    traced.found.set()
    task, client, line = traced.begin("a")
    await _reach(traced, "asked")
    if leaves:
        client.lose()
    else:
        task.cancel("the program is stopping")
    with suppress(asyncio.CancelledError):
        await task
    assert traced.reached("a") == ["recognised", "searched", "placed", "asked"]
    assert await traced.ends() == [TurnEnd.CANCELLED if leaves else TurnEnd.FAILED]
    assert line.sent.startswith(b"" if leaves else b"HTTP/1.1 503 ")
    assert line.is_answered is not leaves
    assert traced.app.metrics.in_flight == 0


async def test_requests_that_come_together_are_all_recognised_before_one_is_placed(
    traced: Traced,
) -> None:
    traced.found.set()
    begun = [traced.begin(name) for name in ("b", "c", "a")]
    await _reach(traced, "asked")
    traced.model.gate.set()
    await asyncio.gather(*(task for task, _, _ in begun))
    stages = [line.split()[0] for line in traced.trace]
    assert stages[:3] == ["recognised"] * 3
    assert sorted(stages[3:]) == ["asked"] * 3 + ["placed"] * 3 + ["searched"] * 3
    assert await traced.ends() == [TurnEnd.COMPLETED] * 3
    assert all(line.sent.startswith(b"HTTP/1.1 200 ") for _, _, line in begun)


async def test_a_model_that_is_being_installed_says_when_to_try_again(tmp_path: Path) -> None:
    async def install(tell: Callable[[str], None]) -> None:
        tell("torch, 57 of 191.8 MB")
        await asyncio.Event().wait()

    model = EmbeddedModel(tmp_path / "model", install=install)
    async with opened(configured(tmp_path, model)) as app:
        await model.start()
        with fail_after(5):
            while not model.state.startswith("installing"):
                await asyncio.sleep(0)
        traced = Traced(app, GatedModel())
        traced.found.set()
        task, _, line = traced.begin("a")
        await task
    assert line.sent.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 10\r\n" in line.sent
    assert b"still being installed (torch, 57 of 191.8 MB); try again in a minute" in line.sent
