"""Moving on to the next provider, only while nothing has come that could be relayed."""

import asyncio
from dataclasses import dataclass, field

import pytest

from metaclaw.errors import UpstreamError
from metaclaw.upstream import ProviderCandidate, ProviderHealth, moves_on, open_first
from tests.support.cases import each
from tests.upstream.loopback import Conversation, answering, endpoint, plain, post, read, serve

pytestmark = pytest.mark.anyio

UNREACHABLE = UpstreamError("gone", retryable=True, code="upstream_unreachable")
SILENT = UpstreamError("silent", status=504, code="upstream_timeout")


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Given:
    """An answer that knows whether it was given up."""

    status: int
    closed: bool = False

    async def aclose(self) -> None:
        self.closed = True


@dataclass
class Providers:
    """What each provider gives when it is asked, and who was asked."""

    gives: dict[str, int | UpstreamError]
    asked: list[str] = field(default_factory=list)
    answers: list[Given] = field(default_factory=list)
    health: ProviderHealth = field(default_factory=ProviderHealth)

    async def open(self) -> tuple[str, int]:
        self.answers.clear()
        candidate, answer = await open_first(
            [ProviderCandidate(name, "m") for name in self.gives], self._ask, self.health
        )
        assert not answer.closed
        assert all(other.closed for other in self.answers if other is not answer)
        return candidate.name, answer.status

    async def _ask(self, candidate: ProviderCandidate) -> Given:
        self.asked.append(candidate.name)
        given = self.gives[candidate.name]
        if isinstance(given, UpstreamError):
            raise given
        self.answers.append(Given(given))
        return self.answers[-1]


def test_the_statuses_that_move_on() -> None:
    assert [status for status in range(100, 600) if moves_on(status)] == [
        408,
        409,
        425,
        429,
        *range(500, 600),
    ]


@each("trouble", [408, 409, 425, 429, 500, 503, 529, UNREACHABLE, SILENT])
async def test_trouble_moves_on_to_the_next(trouble: int | UpstreamError) -> None:
    providers = Providers({"a": trouble, "b": 200, "c": 200})
    assert await providers.open() == ("b", 200)
    assert providers.asked == ["a", "b"]


@each("status", [200, 201, 302, 400, 401, 403, 404, 422])
async def test_an_answer_is_an_answer_even_if_it_is_a_no(status: int) -> None:
    providers = Providers({"a": status, "b": 200})
    assert await providers.open() == ("a", status)
    assert providers.asked == ["a"]


async def test_the_last_ones_own_status_is_passed_through() -> None:
    assert await Providers({"a": 500, "b": 429}).open() == ("b", 429)


async def test_where_the_last_gives_nothing_the_latest_refusal_is_passed_through() -> None:
    assert await Providers({"a": 500, "b": 429, "c": UNREACHABLE}).open() == ("b", 429)


async def test_where_nobody_gives_anything_the_last_error_is_raised() -> None:
    with pytest.raises(UpstreamError, match="silent"):
        await Providers({"a": UNREACHABLE, "b": SILENT}).open()


async def test_nobody_to_ask_is_an_error_too() -> None:
    with pytest.raises(UpstreamError) as caught:
        await Providers({}).open()
    assert (caught.value.status, caught.value.code) == (503, "no_provider")


async def test_a_cancelled_search_closes_the_refusal_it_holds() -> None:
    refused = Given(503)
    waiting = asyncio.Event()

    async def ask(candidate: ProviderCandidate) -> Given:
        if candidate.name == "a":
            return refused
        waiting.set()
        await asyncio.Event().wait()
        raise AssertionError

    task = asyncio.create_task(
        open_first(
            [ProviderCandidate("a", "m"), ProviderCandidate("b", "m")], ask, ProviderHealth()
        )
    )
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert refused.closed


async def test_who_cannot_be_reached_is_left_alone_for_a_while_and_then_probed_once() -> None:
    clock = Clock()
    providers = Providers({"a": UNREACHABLE, "b": 200}, health=ProviderHealth(5.0, clock))
    for now, asked in [
        (0.0, ["a", "b"]),
        (4.9, ["b"]),
        (5.0, ["a", "b"]),
        (9.9, ["b"]),
        (10.0, ["a", "b"]),
    ]:
        clock.now = now
        providers.asked.clear()
        await providers.open()
        assert providers.asked == asked


async def test_only_one_request_probes() -> None:
    clock = Clock()
    health = ProviderHealth(5.0, clock)
    health.failed("a", "gone", rests=True)
    clock.now = 5.0
    assert [health.admits("a"), health.admits("a")] == [True, False]
    health.reached("a")
    assert health.admits("a")


async def test_who_is_back_is_asked_every_time() -> None:
    clock = Clock()
    providers = Providers({"a": UNREACHABLE, "b": 200}, health=ProviderHealth(5.0, clock))
    await providers.open()
    clock.now = 5.0
    providers.gives["a"] = 200
    assert [await providers.open() for _ in range(2)] == [("a", 200)] * 2


async def test_a_slow_or_failing_provider_is_not_left_alone() -> None:
    providers = Providers({"a": SILENT, "b": 200})
    for _ in range(2):
        await providers.open()
    assert providers.asked == ["a", "b"] * 2


async def test_when_all_rest_all_are_tried() -> None:
    providers = Providers({"a": UNREACHABLE, "b": UNREACHABLE})
    for _ in range(2):
        with pytest.raises(UpstreamError, match="gone"):
            await providers.open()
    assert providers.asked == ["a", "b"] * 2


async def test_a_dead_primary_is_replaced_and_a_broken_stream_is_not() -> None:
    async def cut(conversation: Conversation) -> None:
        await conversation.hear()
        await conversation.say(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
        conversation.writer.close()

    async with serve(answering()) as dead:
        pass
    async with serve(cut) as first, serve(answering(plain(b"spare"))) as second:
        async with endpoint(dead.url) as a, endpoint(first.url) as b, endpoint(second.url) as c:
            named = {"a": a, "b": b, "c": c}
            candidates = [ProviderCandidate(name, "m") for name in named]
            chosen, reply = await open_first(
                candidates,
                lambda candidate: named[candidate.name].call(post(), {}),
                ProviderHealth(),
            )
            assert chosen.name == "b"
            with pytest.raises(UpstreamError, match="middle of the answer"):
                await read(reply)
            assert not second.conversations
