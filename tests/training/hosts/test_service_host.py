"""A training service as a served model: exact tokens, stops, tools, versions, and an error another
provider can stand in for.
"""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from metaclaw.domain.chat import (
    Begin,
    ChatRequest,
    Delta,
    End,
    Finish,
    Message,
    Role,
    Sampling,
    Text,
    TextDelta,
    Tool,
    ToolCallDelta,
    Wire,
)
from metaclaw.domain.policy import Weights
from metaclaw.domain.training import Rollout
from metaclaw.engine.vocabulary import Vocabulary
from metaclaw.errors import TrainingError, UpstreamError, WireError
from metaclaw.training.backends.service import SampleRequest
from metaclaw.training.hosts.service_host import ServiceHost
from metaclaw.training.hosts.token_model import TokenModel
from metaclaw.upstream import TIMEOUT, UNREACHABLE
from tests.support import tiny

pytestmark = pytest.mark.anyio

HELLO = ChatRequest(Wire.CHAT, "tiny", (Message(Role.USER, (Text("Hi"),)),))
TOOL = Tool("look", "Look somewhere.", {"type": "object"})


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    tiny.make_tokenizer(folder)
    return Vocabulary(folder)


class Service:
    """Says what it is told, and remembers what it was asked."""

    def __init__(
        self, vocabulary: Vocabulary, text: str = "Hello there.", *, is_whole: bool = True
    ) -> None:
        ids = [*vocabulary.encode(text), tiny.END] if is_whole else list(vocabulary.encode(text))
        self.rollout = Rollout(
            tuple(ids), tuple(-0.5 - 0.001 * number for number in range(len(ids))), text, is_whole
        )
        self.asked: list[tuple[SampleRequest, Weights | None]] = []
        self.released: list[Weights] = []
        self.error: TrainingError | None = None
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def answer(self, request: SampleRequest, weights: Weights | None) -> Rollout:
        self.asked.append((request, weights))
        await self.goes_on.wait()
        if self.error is not None:
            raise self.error
        return self.rollout

    async def discard(self, weights: Weights) -> None:
        self.released.append(weights)


class Served(TokenModel):
    """The model, and the host of its versions."""

    def __init__(self, host: ServiceHost, vocabulary: Vocabulary) -> None:
        super().__init__(host, lambda: vocabulary, "tiny", max_tokens=50)
        self.host = host
        self.load, self.unload = host.load, host.unload

    @property
    def loaded(self) -> frozenset[int]:
        return self.host.loaded


def make(
    service: Service, vocabulary: Vocabulary, *, answer_s: float = 5.0, context_tokens: int = 200
) -> Served:
    host = ServiceHost(
        service,  # type: ignore[arg-type]
        (1,),
        context_tokens=context_tokens,
        answer_s=answer_s,
    )
    return Served(host, vocabulary)


async def told(model: Served, request: ChatRequest, version: int = 0) -> list[Delta]:
    return [delta async for delta in model.generate(request, version)]


def spoken(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


def ended(deltas: list[Delta]) -> End:
    end = deltas[-1]
    assert isinstance(end, End)
    return end


async def test_an_answer_carries_exactly_what_was_seen_and_drawn(vocabulary: Vocabulary) -> None:
    service = Service(vocabulary)
    deltas = await told(make(service, vocabulary), HELLO)
    assert isinstance(deltas[0], Begin)
    assert spoken(deltas) == "Hello there."
    end = ended(deltas)
    assert end.finish is Finish.STOP
    assert end.tokens is not None
    assert (
        end.tokens.prompt_ids
        == tuple(vocabulary.render([("user", "Hi")], ""))
        == service.asked[0][0].prompt
    )
    assert end.tokens.sampled_ids == service.rollout.tokens_T
    assert end.tokens.logprobs == service.rollout.logprobs_T
    assert end.usage is not None
    assert (end.usage.input_tokens, end.usage.output_tokens) == (
        len(end.tokens.prompt_ids),
        len(end.tokens.sampled_ids),
    )


async def test_where_the_caller_says_nothing_the_policy_answers_as_it_is_trained(
    vocabulary: Vocabulary,
) -> None:
    service = Service(vocabulary)
    model = make(service, vocabulary)
    await told(model, HELLO)
    await told(model, HELLO)
    (first, weights), (second, _) = service.asked
    assert weights is None
    assert (first.count, first.max_tokens, first.temperature, first.top_p, first.top_k) == (
        1,
        50,
        1.0,
        1.0,
        0,
    )
    assert first.seed is second.seed is None
    options = Sampling(max_tokens=9, temperature=0.2, top_p=0.5, top_k=3, seed=2**40 + 5)
    await told(model, replace(HELLO, sampling=options))
    asked = service.asked[2][0]
    assert (asked.max_tokens, asked.temperature, asked.top_p, asked.top_k, asked.seed) == (
        9,
        0.2,
        0.5,
        3,
        5,
    )


async def test_an_answer_that_ran_out_of_room_says_so(vocabulary: Vocabulary) -> None:
    deltas = await told(make(Service(vocabulary, "Hello the", is_whole=False), vocabulary), HELLO)
    assert ended(deltas).finish is Finish.LENGTH
    assert spoken(deltas) == "Hello the"


async def test_a_stop_string_ends_text_and_tokens(vocabulary: Vocabulary) -> None:
    service = Service(vocabulary, "one two three")
    deltas = await told(
        make(service, vocabulary), replace(HELLO, sampling=Sampling(stop=(" two",)))
    )
    end = ended(deltas)
    assert spoken(deltas) == "one"
    assert (end.finish, end.stop_sequence) == (Finish.STOP, " two")
    assert end.tokens is not None
    assert end.tokens.sampled_ids == service.rollout.tokens_T[: len("one two")]
    assert len(end.tokens.logprobs) == len("one two")


async def test_tool_calls_are_read_from_the_answer(vocabulary: Vocabulary) -> None:
    service = Service(
        vocabulary, 'Let me. <tool_call>{"name": "look", "arguments": {"at": 1}}</tool_call>'
    )
    deltas = await told(
        make(service, vocabulary, context_tokens=2000), replace(HELLO, tools=(TOOL,))
    )
    [call] = [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
    assert (call.name, call.arguments) == ("look", '{"at": 1}')
    assert spoken(deltas) == "Let me."
    assert ended(deltas).finish is Finish.TOOL_CALLS


async def test_logprobs_are_shown_to_who_asks_for_them(vocabulary: Vocabulary) -> None:
    service = Service(vocabulary, "abc")
    [delta] = [
        delta
        for delta in await told(
            make(service, vocabulary), replace(HELLO, sampling=Sampling(logprobs=True))
        )
        if isinstance(delta, TextDelta)
    ]
    assert [(shown.token, shown.logprob) for shown in delta.logprobs] == [
        ("a", -0.5),
        ("b", -0.501),
        ("c", -0.502),
    ]


async def test_what_does_not_fit_or_is_no_text_is_refused(vocabulary: Vocabulary) -> None:
    model = make(Service(vocabulary), vocabulary)
    long = replace(HELLO, messages=(Message(Role.USER, (Text("x" * 300),)),))
    with pytest.raises(WireError, match="room for 200") as caught:
        await told(model, long)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(WireError, match="n is 2"):
        await told(model, replace(HELLO, sampling=Sampling(n=2)))
    with pytest.raises(WireError, match="surrogate"):
        await told(model, replace(HELLO, messages=(Message(Role.USER, (Text("\ud800"),)),)))


async def test_a_service_that_is_down_lets_another_provider_take_over(
    vocabulary: Vocabulary,
) -> None:
    service = Service(vocabulary)
    service.error = TrainingError("no server answers")
    with pytest.raises(UpstreamError, match="no server answers") as caught:
        await anext(make(service, vocabulary).generate(HELLO))
    assert (caught.value.status, caught.value.retryable, caught.value.code) == (
        503,
        True,
        UNREACHABLE,
    )


async def test_a_service_that_is_slow_lets_another_provider_take_over(
    vocabulary: Vocabulary,
) -> None:
    service = Service(vocabulary)
    service.goes_on.clear()
    with pytest.raises(UpstreamError) as caught:
        await anext(make(service, vocabulary, answer_s=0.05).generate(HELLO))
    assert (caught.value.status, caught.value.retryable, caught.value.code) == (504, True, TIMEOUT)


async def test_versions_answer_with_their_own_weights(vocabulary: Vocabulary) -> None:
    service = Service(vocabulary)
    model = make(service, vocabulary)
    one, two = Weights("tinker", "one"), Weights("tinker", "two")
    await model.load(1, one)
    await model.load(2, two)
    assert model.loaded == {1, 2}
    service.asked.clear()
    await told(model, HELLO, 2)
    await told(model, HELLO, 1)
    await told(model, HELLO)
    assert [weights for _, weights in service.asked] == [two, one, None]
    with pytest.raises(UpstreamError, match="version 3 is not loaded") as caught:
        await told(model, HELLO, 3)
    assert caught.value.retryable


async def test_a_version_that_does_not_answer_is_not_loaded(vocabulary: Vocabulary) -> None:
    service = Service(vocabulary)
    model = make(service, vocabulary)
    service.error = TrainingError("no such weights")
    with pytest.raises(TrainingError):
        await model.load(1, Weights("tinker", "one"))
    assert model.loaded == frozenset()
    service.error = None
    await model.load(1, Weights("tinker", "one"))
    with pytest.raises(TrainingError, match="other weights"):
        await model.load(1, Weights("tinker", "two"))
    with pytest.raises(TrainingError, match="version 0"):
        await model.load(0, Weights("tinker", "one"))


async def test_a_version_is_let_go_when_its_running_answers_are_finished(
    vocabulary: Vocabulary,
) -> None:
    service = Service(vocabulary)
    model = make(service, vocabulary)
    weights = Weights("tinker", "one")
    await model.load(1, weights)
    service.goes_on.clear()
    answer = asyncio.create_task(told(model, HELLO, 1))
    async with asyncio.timeout(5):
        while len(service.asked) < 2:
            await asyncio.sleep(0)
        unloading = asyncio.create_task(model.unload(1))
        while model.loaded:
            await asyncio.sleep(0)
        assert not service.released
        with pytest.raises(UpstreamError):
            await told(model, HELLO, 1)
        service.goes_on.set()
        assert spoken(await answer) == "Hello there."
        await unloading
    assert service.released == [weights]
    await model.unload(1)
    assert service.released == [weights]
