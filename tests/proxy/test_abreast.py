"""Requests that come together are prepared in step, and whoever is stopped meanwhile is told so."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from metaclaw.domain.chat import Begin, ChatRequest, Delta, End, Finish, Json, TextDelta, Usage, Wire
from metaclaw.domain.ids import SessionId
from metaclaw.domain.nearness import Nearness
from metaclaw.domain.session import Origin
from metaclaw.domain.status import Health, StoreHealth
from metaclaw.domain.turn import Turn, TurnEnd
from metaclaw.errors import UpstreamError
from metaclaw.proxy.abreast import MAX_ABREAST, Ranks
from metaclaw.proxy.client import Client, Incoming
from metaclaw.proxy.inspection import Limits
from metaclaw.proxy.metrics import Metrics
from metaclaw.proxy.opening import Opener, Providers
from metaclaw.proxy.origin import Origins
from metaclaw.proxy.pipeline import Pipeline
from metaclaw.proxy.placement import Placed, Placer
from metaclaw.skills import Budgets, ShelfView
from metaclaw.skills.index import SkillIndex
from tests.proxy.talking import connected, echo, read_response, serving

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


class House:
    """A pipeline whose stages leave a trace, and clients that speak to it."""

    def __init__(self) -> None:
        trace = self.trace = list[str]()
        self.ledger = Notes()
        self.metrics = Metrics()
        self.ranks = Ranks()
        self.gate = asyncio.Event()
        self.gate.set()
        gate = self.gate

        class Recognising(Origins):
            def identify(
                self, wire: Wire, headers: Mapping[str, str], body: Mapping[str, Json], peer: str | None = None, *, path: str = ""
            ) -> Origin:
                trace.append(f"recognised {body['user']}")
                return super().identify(wire, headers, body, peer, path=path)

        class Placing(Placer):
            def place(self, incoming: Incoming, origin: Origin, nearness: Nearness | None = None) -> Placed:
                trace.append(f"placed {incoming.json['user']}")
                return super().place(incoming, origin, nearness)

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

        self.pipeline = Pipeline(
            origins=Recognising(now=lambda: datetime.now(UTC)),
            placer=Placing(lambda: ShelfView(1, "hash", SkillIndex()), Budgets(3, 1000)),
            opener=Opener(Providers([Model()])),
            ledger=self.ledger,
            metrics=self.metrics,
            limits=Limits(),
            ranks=self.ranks,
        )

    def begin(self, name: str, *, stream: bool = False) -> tuple["asyncio.Task[None]", Client, Wall]:
        line = Wall()
        client = Client(line, "POST", b"/v1/chat/completions", {})
        client.close_body()
        fields: dict[str, Json] = {"model": "m", "user": name, "messages": [{"role": "user", "content": f"Hello, {name}."}]}
        body = json.dumps(fields | {"stream": True} if stream else fields).encode()
        now = datetime.now(UTC)
        incoming = Incoming(Wire.CHAT, "/chat/completions", "", {}, [], body, json.loads(body), None, now, time.perf_counter())
        self.ranks.arriving += 1  # as a connection does

        async def work() -> None:
            self.ranks.arriving -= 1
            await self.pipeline.answer(incoming, client)

        task = client.task = asyncio.get_running_loop().create_task(work())
        return task, client, line

    def reached(self, name: str) -> list[str]:
        return [line.split()[0] for line in self.trace if line.endswith(f" {name}")]


async def _one_round() -> None:
    await asyncio.sleep(0)


async def test_requests_that_come_together_go_through_each_stage_together() -> None:
    house = House()
    names = ["a", "b", "c", "d"]
    await asyncio.gather(*(house.begin(name)[0] for name in names))
    assert house.trace == [f"{stage} {name}" for stage in ("recognised", "placed", "asked") for name in names]
    assert [turn.end for turn in house.ledger.turns] == [TurnEnd.COMPLETED] * 4


async def test_whoever_comes_alone_waits_for_nobody_also_while_others_are_answered() -> None:
    house = House()
    house.gate.clear()
    tasks = []
    for name in ("a", "b"):
        tasks.append(house.begin(name)[0])
        await _one_round()
        assert house.reached(name) == ["recognised", "placed", "asked"]
    house.gate.set()
    await asyncio.gather(*tasks)


async def test_a_streamed_answer_is_asked_for_at_once_whoever_else_comes() -> None:
    house = House()
    house.gate.clear()
    tasks = [house.begin("whole")[0], house.begin("streamed", stream=True)[0]]
    await _one_round()
    assert house.reached("whole") == []
    assert house.reached("streamed") == ["recognised", "placed", "asked"]
    house.gate.set()
    await asyncio.gather(*tasks)


async def test_a_connection_counts_whoever_comes_until_it_is_begun_with() -> None:
    seen: list[int] = []

    async def look(client: Client) -> None:
        seen.append(listener.ranks.arriving)
        await echo(client)

    async with serving(look) as (listener, port):
        lines = [await connected(port) for _ in range(3)]
        for _, writer in lines:
            writer.write(b"GET / HTTP/1.1\r\n\r\nGET /again HTTP/1.1\r\n\r\n")
        for reader, _ in lines:
            for _ in range(2):
                assert (await read_response(reader))[0] == 200
        assert listener.ranks.arriving == 0
        assert not listener.ranks.in_company
    assert len(seen) == 6
    assert max(seen) < 3


async def test_no_more_than_a_few_dozen_wait_for_each_other() -> None:
    ranks, done = Ranks(), list[int]()

    async def go(number: int) -> None:
        await ranks.step()
        done.append(number)

    tasks = [asyncio.create_task(go(number)) for number in range(MAX_ABREAST + 5)]
    await _one_round()
    assert done == list(range(MAX_ABREAST, MAX_ABREAST + 5))
    await _one_round()
    assert sorted(done) == list(range(MAX_ABREAST + 5))
    # Whoever is stopped while it waits makes room as well.
    stopped = [asyncio.create_task(go(-1)) for _ in range(MAX_ABREAST)]
    await _one_round()
    for task in stopped:
        task.cancel()
    await asyncio.gather(*stopped, return_exceptions=True)
    last = asyncio.create_task(go(99))
    await _one_round()
    assert 99 not in done
    await asyncio.gather(last, *tasks)


@pytest.mark.parametrize("reached", [[], ["recognised"]], ids=["just come", "recognised"])
async def test_whoever_is_stopped_before_anything_was_asked_is_refused_and_leaves_no_turn(reached: list[str]) -> None:
    house = House()
    task, _, line = house.begin("a")
    other = house.begin("b")[0]
    await _one_round()
    while house.reached("a") != reached:
        await _one_round()
    task.cancel("the program is stopping")
    with pytest.raises(UpstreamError) as refused:
        await task
    assert (refused.value.status, refused.value.code) == (503, "stopping")
    assert line.sent == b""
    await other
    assert [turn.end for turn in house.ledger.turns] == [TurnEnd.COMPLETED]
    assert house.metrics.in_flight == 0


@pytest.mark.parametrize("leaves", [True, False], ids=["the client leaves", "the program stops"])
async def test_whoever_is_stopped_with_its_skills_placed_leaves_the_turn_it_came_to(*, leaves: bool) -> None:
    house = House()
    task, client, line = house.begin("a")
    other = house.begin("b")[0]
    while "placed" not in house.reached("a"):
        await _one_round()
    if leaves:
        client.lose()
    else:
        task.cancel("the program is stopping")
    with suppress(asyncio.CancelledError):
        await task
    assert house.reached("a") == ["recognised", "placed"]
    await other
    ends = sorted(turn.end for turn in house.ledger.turns)
    assert ends == sorted([TurnEnd.COMPLETED, TurnEnd.CANCELLED if leaves else TurnEnd.FAILED])
    assert line.sent.startswith(b"" if leaves else b"HTTP/1.1 503 ")
    assert line.is_answered is not leaves
    assert house.metrics.in_flight == 0
