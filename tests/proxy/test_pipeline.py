"""Requests that are stopped before or after their provider was asked."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from anyio import fail_after

from metaclaw.domain.chat import Begin, ChatRequest, Delta, End, Finish, Json, TextDelta, Usage, Wire
from metaclaw.domain.ids import SessionId
from metaclaw.domain.skill import Nearness
from metaclaw.domain.status import Health, StoreHealth
from metaclaw.domain.turn import Origin, Scope, Turn, TurnEnd
from metaclaw.errors import UpstreamError
from metaclaw.proxy.dispatch import Opener, Providers
from metaclaw.proxy.http.client import Client, Incoming
from metaclaw.proxy.pipeline import Metrics, Pipeline
from metaclaw.proxy.placement import Placed, Placer
from metaclaw.proxy.sessions import Origins
from metaclaw.skills import Budgets, LibraryView

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


class Notes:
    """A ledger in memory."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []

    @property
    def health(self) -> StoreHealth:
        return StoreHealth(Health.HEALTHY, None, 0, 0)

    async def record(self, turn: Turn) -> bool:
        self.turns.append(turn)
        return True

    async def end_session(self, session: SessionId, reason: str) -> None:
        return


class Traced:
    """A pipeline whose stages leave a trace, and clients that speak to it."""

    def __init__(self) -> None:
        trace = self.trace = list[str]()
        self.ledger = Notes()
        self.metrics = Metrics()
        gate = self.gate = asyncio.Event()
        found = self.found = asyncio.Event()

        class Recognising(Origins):
            def identify(
                self, wire: Wire, headers: Mapping[str, str], body: Mapping[str, Json], peer: str | None = None, *, path: str = ""
            ) -> Origin:
                trace.append(f"recognised {body['user']}")
                return super().identify(wire, headers, body, peer, path=path)

        class Placing(Placer):
            def place(self, incoming: Incoming, origin: Origin, nearness: Nearness | None = None, *, query: str = "") -> Placed:
                trace.append(f"placed {incoming.json['user']}")
                return super().place(incoming, origin, nearness, query=query)

        class Model:
            name, models = "model", ("m",)

            async def generate(self, request: ChatRequest, version: int = 0) -> AsyncGenerator[Delta, None]:
                trace.append(f"asked {request.extra.get('user')}")
                await gate.wait()
                yield Begin("x", "m")
                yield TextDelta("hello")
                yield End(Finish.STOP, Usage(1, 1))

            async def aclose(self) -> None:
                return

        class Search:
            async def near(self, query: str, scope: Scope) -> Nearness | None:
                trace.append("searched a")
                await found.wait()
                return None

        self.pipeline = Pipeline(
            origins=Recognising(now=lambda: datetime.now(UTC)),
            placer=Placing(lambda: LibraryView.of(1, ()), Budgets(3, 1000)),
            opener=Opener(Providers([Model()])),
            ledger=self.ledger,
            metrics=self.metrics,
            similarity=Search(),
        )

    def begin(self, name: str) -> tuple["asyncio.Task[None]", Client, Wall]:
        line = Wall()
        client = Client(line, "POST", b"/v1/chat/completions", {})
        client.close_body()
        fields: dict[str, Json] = {"model": "m", "user": name, "messages": [{"role": "user", "content": f"Hello, {name}."}]}
        body = json.dumps(fields).encode()
        now = datetime.now(UTC)
        incoming = Incoming(Wire.CHAT, "/chat/completions", "", {}, [], body, json.loads(body), None, now, time.perf_counter())
        task = client.task = asyncio.get_running_loop().create_task(self.pipeline.answer(incoming, client))
        return task, client, line

    def reached(self, name: str) -> list[str]:
        return [line.split()[0] for line in self.trace if line.endswith(f" {name}")]


async def _reach(traced: Traced, stage: str) -> None:
    with fail_after(5):
        while stage not in traced.reached("a"):
            await asyncio.sleep(0)


@pytest.mark.parametrize("stages", [["recognised"], ["recognised", "searched"]], ids=lambda stages: stages[-1])
async def test_a_request_stopped_before_a_provider_was_asked_is_refused_and_leaves_no_turn(stages: list[str]) -> None:
    traced = Traced()
    task, _, line = traced.begin("a")
    await _reach(traced, stages[-1])
    task.cancel("the program is stopping")
    with pytest.raises(UpstreamError) as refused:
        await task
    assert (refused.value.status, refused.value.code) == (503, "stopping")
    assert traced.reached("a") == stages
    assert line.sent == b""
    assert traced.ledger.turns == []
    assert traced.metrics.in_flight == 0


@pytest.mark.parametrize("leaves", [True, False], ids=["the client leaves", "the program stops"])
async def test_a_request_stopped_while_its_provider_answers_leaves_its_turn(*, leaves: bool) -> None:
    traced = Traced()
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
    assert [turn.end for turn in traced.ledger.turns] == [TurnEnd.CANCELLED if leaves else TurnEnd.FAILED]
    assert line.sent.startswith(b"" if leaves else b"HTTP/1.1 503 ")
    assert line.is_answered is not leaves
    assert traced.metrics.in_flight == 0


async def test_requests_that_come_together_are_all_recognised_before_one_is_placed() -> None:
    traced = Traced()
    traced.found.set()
    begun = [traced.begin(name) for name in ("b", "c", "a")]
    await _reach(traced, "asked")
    traced.gate.set()
    await asyncio.gather(*(task for task, _, _ in begun))
    stages = [line.split()[0] for line in traced.trace]
    assert stages[:3] == ["recognised"] * 3
    assert sorted(stages[3:]) == ["asked"] * 3 + ["placed"] * 3 + ["searched"] * 3
    assert [turn.end for turn in traced.ledger.turns] == [TurnEnd.COMPLETED] * 3
    assert all(line.sent.startswith(b"HTTP/1.1 200 ") for _, _, line in begun)
