"""What a model hears when the program itself asks, how often, and what it costs."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from metaclaw.domain.chat import (
    Begin,
    ChatRequest,
    Delta,
    End,
    Failed,
    Finish,
    Message,
    Role,
    Sampling,
    Text,
    TextDelta,
    Tool,
    ToolCall,
    Usage,
    Wire,
)
from metaclaw.errors import ConfigError, UpstreamError, WireError
from metaclaw.ports import Model, Purpose
from metaclaw.upstream import PASSTHROUGH, HttpEndpoint, HttpModel, Kind, LocalModel, Spent
from metaclaw.wires import estimate_tokens
from tests.support.cases import each
from tests.support.meter import CountingMeter
from tests.upstream.loopback import WAIT_S, Conversation, Heard, plain, post, read, serve

SCHEMA = {
    "name": "verdict",
    "schema": {
        "type": "object",
        "properties": {"outcome": {"type": "string"}},
        "required": ["outcome"],
    },
}
CHAT_ANSWER = {
    "id": "c1",
    "model": "m-1",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "fine"}, "finish_reason": "stop"}
    ],
    "usage": {
        "prompt_tokens": 11,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 5},
    },
}
MESSAGES_ANSWER = {
    "id": "m1",
    "type": "message",
    "role": "assistant",
    "model": "m-1",
    "content": [{"type": "text", "text": "fine"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 11, "output_tokens": 3},
}
RESPONSES_ANSWER = {
    "id": "r1",
    "object": "response",
    "status": "completed",
    "model": "m-1",
    "output": [
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "fine"}],
        }
    ],
    "usage": {"input_tokens": 11, "output_tokens": 3},
}
Answer = Callable[[Heard], Awaitable[bytes] | bytes]


def question(wire: Wire = Wire.CHAT, **fields: Any) -> ChatRequest:
    messages = (
        Message(Role.SYSTEM, (Text("You judge."),)),
        Message(Role.USER, (Text("Did it work?"),)),
    )
    return ChatRequest(wire, "whatever", messages, **fields)


def ok(body: dict[str, Any]) -> bytes:
    return plain(json.dumps(body).encode(), "200 OK", "content-type: application/json")


def refused(status: str, *fields: str, message: str = "no") -> bytes:
    return plain(
        json.dumps({"error": {"message": message, "code": "nope"}}).encode(), status, *fields
    )


class Provider:
    """A scripted provider: it answers with what `answers` say, one after the other and the last for
    ever.
    """

    def __init__(self, *answers: bytes | Answer) -> None:
        self.heard: list[Heard] = []
        self.meter = CountingMeter()
        self._answers = list(answers)

    async def __call__(self, conversation: Conversation) -> None:
        while True:
            self.heard.append(await conversation.hear())
            answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
            said = answer if isinstance(answer, bytes) else answer(self.heard[-1])
            await conversation.say(said if isinstance(said, bytes) else await said)

    def body(self, number: int = -1) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.heard[number].body)
        return body

    @asynccontextmanager
    async def asked(
        self, kind: Kind = "openai", wires: frozenset[Wire] | None = None, **options: Any
    ) -> AsyncGenerator[HttpModel]:
        async with serve(self) as loopback:
            endpoint = HttpEndpoint("primary", kind, loopback.url, api_key="sk-ours", wires=wires)
            try:
                yield HttpModel(
                    endpoint,
                    "m-1",
                    meter=self.meter,
                    **{"pause_s": 0.001, "timeout_s": WAIT_S, **options},
                )
            finally:
                await endpoint.aclose()


@pytest.mark.anyio
@each(
    ("kind", "wires", "asked_in", "path", "answer"),
    [
        ("openai", None, Wire.CHAT, "/v1/chat/completions", CHAT_ANSWER),
        ("openai", None, Wire.MESSAGES, "/v1/chat/completions", CHAT_ANSWER),
        ("openai", None, Wire.RESPONSES, "/v1/responses", RESPONSES_ANSWER),
        ("openai", frozenset({Wire.RESPONSES}), Wire.CHAT, "/v1/responses", RESPONSES_ANSWER),
        ("anthropic", None, Wire.CHAT, "/v1/messages", MESSAGES_ANSWER),
        ("anthropic", None, Wire.MESSAGES, "/v1/messages", MESSAGES_ANSWER),
    ],
)
async def test_a_question_goes_out_whole_in_a_wire_the_provider_speaks_and_says_what_it_is_for(
    kind: Kind, wires: frozenset[Wire] | None, asked_in: Wire, path: str, answer: dict[str, Any]
) -> None:
    provider = Provider(ok(answer))
    async with provider.asked(kind, wires) as model:
        as_port: Model = model
        said = await as_port.ask(question(asked_in, stream=True, include_usage=True), Purpose.JUDGE)
    heard = provider.heard[0]
    assert heard.line == f"POST {path} HTTP/1.1"
    assert heard.header("x-metaclaw-purpose") == "judge"
    assert heard.header("content-type") == "application/json"
    assert "sk-ours" in (heard.header("authorization") or heard.header("x-api-key") or "")
    assert provider.body()["model"] == "m-1"
    assert not provider.body().get("stream")
    assert "stream_options" not in provider.body()
    assert said.parts == (Text("fine"),)
    assert model.name == "primary/m-1"
    assert provider.meter.spent == {
        Purpose.JUDGE: Spent(1, usage=Usage(11, 3, 5 if "choices" in answer else 0))
    }


@pytest.mark.anyio
async def test_a_wire_whose_path_does_not_exist_is_given_up_for_another() -> None:
    provider = Provider(refused("404 Not Found"), ok(CHAT_ANSWER))
    async with provider.asked() as model:
        for _ in range(2):
            assert (await model.ask(question(Wire.RESPONSES), Purpose.JUDGE)).parts == (
                Text("fine"),
            )
    assert [heard.line.split()[1] for heard in provider.heard] == [
        "/v1/responses",
        *["/v1/chat/completions"] * 2,
    ]


@pytest.mark.anyio
async def test_no_client_can_make_its_request_look_like_one_of_the_programs_own() -> None:
    provider = Provider(ok(CHAT_ANSWER))
    async with serve(provider) as loopback:
        endpoint = HttpEndpoint("primary", "openai", loopback.url)
        await read(await endpoint.call(post(headers=[("X-Metaclaw-Purpose", "judge")]), {}))
        await endpoint.aclose()
    assert provider.heard[0].header("x-metaclaw-purpose") is None


@pytest.mark.anyio
async def test_calls_are_counted_by_purpose_and_estimated_where_the_provider_does_not_count() -> (
    None
):
    silent = {name: value for name, value in CHAT_ANSWER.items() if name != "usage"}
    provider = Provider(ok(CHAT_ANSWER), ok(CHAT_ANSWER), ok(silent), refused("401 Unauthorized"))
    async with provider.asked() as model:
        await model.ask(question(), Purpose.JUDGE)
        await model.ask(question(), Purpose.JUDGE)
        await model.ask(question(), Purpose.EVOLVE)
        with pytest.raises(UpstreamError, match="refused: no") as caught:
            await model.ask(question(), Purpose.LISTEN)
    assert (caught.value.status, caught.value.code) == (401, "nope")
    assert provider.meter.spent == {
        Purpose.JUDGE: Spent(2, usage=Usage(22, 6, 10)),
        Purpose.EVOLVE: Spent(1, estimated=1, usage=Usage(estimate_tokens(question()), 6)),
        Purpose.LISTEN: Spent(1, failures=1),
    }


@pytest.mark.anyio
async def test_a_schema_is_asked_for_as_the_wire_has_it() -> None:
    provider = Provider(ok(CHAT_ANSWER))
    async with provider.asked() as model:
        await model.ask(question(json_schema=SCHEMA), Purpose.JUDGE)
    assert provider.body()["response_format"] == {"type": "json_schema", "json_schema": SCHEMA}
    provider = Provider(ok(MESSAGES_ANSWER))
    async with provider.asked("anthropic") as model:
        await model.ask(question(json_schema=SCHEMA), Purpose.JUDGE)
    assert provider.body()["output_config"]["format"] == {
        "type": "json_schema",
        "schema": SCHEMA["schema"],
    }


@pytest.mark.anyio
@each("status", ["400 Bad Request", "422 Unprocessable Entity", "501 Not Implemented"])
async def test_a_provider_that_refuses_a_schema_gets_it_in_words_and_is_not_asked_so_again(
    status: str,
) -> None:
    provider = Provider(refused(status), ok(CHAT_ANSWER))
    async with provider.asked() as model:
        await model.ask(question(json_schema=SCHEMA), Purpose.JUDGE)
        assert len(provider.heard) == 2
        await model.ask(question(json_schema=SCHEMA), Purpose.JUDGE)
        await model.ask(question(), Purpose.JUDGE)
    assert "response_format" in provider.body(0)
    for number in (1, 2):
        assert "response_format" not in provider.body(number)
        system = json.dumps(provider.body(number)["messages"][0])
        assert "You judge." in system
        assert "JSON Schema" in system
        assert "outcome" in system
    assert "JSON Schema" not in json.dumps(provider.body(3))
    assert len(provider.heard) == 4


@pytest.mark.anyio
async def test_a_question_that_is_wrong_in_itself_says_nothing_about_schemas() -> None:
    """Too long a prompt is a 400 as well: it stays one without the schema, and the schema is tried
    again next time.
    """
    provider = Provider(
        refused("400 Bad Request"), refused("400 Bad Request", message="too long"), ok(CHAT_ANSWER)
    )
    async with provider.asked() as model:
        with pytest.raises(UpstreamError, match="too long"):
            await model.ask(question(json_schema=SCHEMA), Purpose.JUDGE)
        await model.ask(question(json_schema=SCHEMA), Purpose.JUDGE)
    assert "response_format" in provider.body(2)


@pytest.mark.anyio
async def test_a_seed_is_left_out_for_a_provider_that_knows_none() -> None:
    provider = Provider(refused("422 Unprocessable Entity"), ok(CHAT_ANSWER))
    async with provider.asked() as model:
        await model.ask(question(sampling=Sampling(seed=7, temperature=0.3)), Purpose.JUDGE)
        await model.ask(question(sampling=Sampling(seed=8)), Purpose.JUDGE)
    assert [body.get("seed") for body in map(provider.body, range(3))] == [7, None, None]
    assert provider.body(1)["temperature"] == 0.3


@pytest.mark.anyio
@each("first", ["429 Too Many Requests", "500 Internal Server Error", "529 Overloaded"])
async def test_a_failure_that_may_pass_is_tried_once_more(first: str) -> None:
    provider = Provider(refused(first), ok(CHAT_ANSWER))
    async with provider.asked() as model:
        assert (await model.ask(question(), Purpose.JUDGE)).parts == (Text("fine"),)
    assert provider.meter.spent[Purpose.JUDGE] == Spent(2, failures=1, usage=Usage(11, 3, 5))
    provider = Provider(refused(first))
    async with provider.asked() as model:
        with pytest.raises(UpstreamError):
            await model.ask(question(), Purpose.JUDGE)
    assert len(provider.heard) == 2


@pytest.mark.anyio
@each("first", ["400 Bad Request", "401 Unauthorized", "404 Not Found", "413 Payload Too Large"])
async def test_a_failure_that_will_not_pass_is_not_tried_again(first: str) -> None:
    provider = Provider(refused(first))
    async with provider.asked() as model:
        with pytest.raises(UpstreamError):
            await model.ask(question(), Purpose.JUDGE)
    assert len(provider.heard) == 1


@pytest.mark.anyio
async def test_a_provider_that_wants_to_rest_longer_than_there_is_time_is_left_alone() -> None:
    provider = Provider(refused("429 Too Many Requests", "retry-after: 3600"))
    async with provider.asked() as model:
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(UpstreamError) as caught:
                await model.ask(question(), Purpose.JUDGE)
    assert caught.value.status == 429
    assert len(provider.heard) == 1


@pytest.mark.anyio
async def test_a_provider_that_cannot_be_reached_is_an_error_of_its_own() -> None:
    endpoint = HttpEndpoint("primary", "openai", "http://127.0.0.1:1")
    meter = CountingMeter()
    model = HttpModel(endpoint, "m-1", meter=meter, pause_s=0.001)
    with pytest.raises(UpstreamError, match="cannot be reached"):
        await model.ask(question(), Purpose.JUDGE)
    assert meter.spent[Purpose.JUDGE] == Spent(2, failures=2)
    await endpoint.aclose()


@pytest.mark.anyio
async def test_an_answer_that_does_not_come_in_time_is_none() -> None:
    async def never(_: Heard) -> bytes:
        await asyncio.Event().wait()
        return b""

    provider = Provider(never)
    async with provider.asked(timeout_s=0.05) as model:
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(UpstreamError, match=r"within 0\.05 s") as caught:
                await model.ask(question(), Purpose.JUDGE)
    assert caught.value.status == 504
    assert provider.meter.spent[Purpose.JUDGE] == Spent(
        1, failures=1, estimated=1, usage=Usage(estimate_tokens(question()), 0)
    )


@pytest.mark.anyio
async def test_no_more_questions_are_under_way_at_once_than_allowed() -> None:
    open_now, most = 0, 0
    too_many = asyncio.Event()

    async def slowly(_: Heard) -> bytes:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        if most > 2:
            too_many.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await too_many.wait()
        open_now -= 1
        return ok(CHAT_ANSWER)

    provider = Provider(slowly)
    async with provider.asked(max_concurrency=2) as model:
        async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
            for _ in range(6):
                group.create_task(model.ask(question(), Purpose.JUDGE))
    assert most == 2
    assert provider.meter.spent[Purpose.JUDGE].calls == 6


@pytest.mark.anyio
async def test_who_stops_waiting_closes_the_call() -> None:
    began = asyncio.Event()

    async def never(_: Heard) -> bytes:
        began.set()
        await asyncio.Event().wait()
        return b""

    provider = Provider(never)
    async with provider.asked() as model:
        asking = asyncio.create_task(model.ask(question(), Purpose.JUDGE))
        async with asyncio.timeout(WAIT_S):
            await began.wait()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
    assert provider.meter.spent[Purpose.JUDGE] == Spent(
        1, failures=1, estimated=1, usage=Usage(estimate_tokens(question()), 0)
    )


@pytest.mark.anyio
async def test_a_server_that_streams_unasked_is_understood() -> None:
    events = [
        {"id": "c1", "model": "m-1", "choices": [{"index": 0, "delta": {"content": "fi"}}]},
        {
            "id": "c1",
            "choices": [{"index": 0, "delta": {"content": "ne"}, "finish_reason": "stop"}],
        },
    ]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    provider = Provider(plain(body.encode(), "200 OK", "content-type: text/event-stream"))
    async with provider.asked() as model:
        assert (await model.ask(question(), Purpose.JUDGE)).parts == (Text("fine"),)


@pytest.mark.anyio
async def test_an_answer_that_is_none_and_a_question_that_cannot_be_put_are_failures_of_the_model() -> (
    None
):
    async with Provider(
        plain(b"<html>", "200 OK", "content-type: application/json")
    ).asked() as model:
        with pytest.raises(UpstreamError, match="not JSON"):
            await model.ask(question(), Purpose.JUDGE)
    provider = Provider(ok(MESSAGES_ANSWER))
    async with provider.asked("anthropic") as model:
        with pytest.raises(UpstreamError, match="cannot be sent to it"):
            await model.ask(question(sampling=Sampling(n=3)), Purpose.JUDGE)
    assert provider.heard == []
    assert provider.meter.spent == {}


def test_a_provider_without_credentials_of_its_own_cannot_be_asked() -> None:
    endpoint = HttpEndpoint("claude", "anthropic", "http://127.0.0.1:1", api_key=PASSTHROUGH)
    with pytest.raises(ConfigError, match="provider claude forwards its callers' credentials"):
        HttpModel(endpoint, "m-1")


class Scripted:
    """A model in this process."""

    name = "embedded"
    models = ("small",)

    def __init__(self, *deltas: Delta, error: Exception | None = None) -> None:
        self._deltas = deltas
        self._error = error
        self.asked: list[ChatRequest] = []
        self.closed = 0

    async def generate(self, request: ChatRequest, version: int = 0) -> AsyncGenerator[Delta, None]:
        self.asked.append(request)
        try:
            if self._error is not None:
                raise self._error
            for delta in self._deltas:
                yield delta
            if not self._deltas:
                await asyncio.Event().wait()
        finally:
            self.closed += 1

    async def aclose(self) -> None:
        return None


@pytest.mark.anyio
async def test_an_embedded_model_is_asked_with_its_schema_in_words() -> None:
    provider = Scripted(
        Begin("x", "small"), TextDelta("fi"), TextDelta("ne"), End(Finish.STOP, Usage(5, 2))
    )
    meter = CountingMeter()
    model = LocalModel(provider, "small", meter=meter)
    tool = Tool("look", None, {"type": "object"})
    answer = await model.ask(
        question(Wire.MESSAGES, json_schema=SCHEMA, tools=(tool,), stream=True), Purpose.EVOLVE
    )
    assert answer.parts == (Text("fine"),)
    (asked,) = provider.asked
    assert (asked.model, asked.stream, asked.json_schema, asked.tools) == (
        "small",
        False,
        None,
        (tool,),
    )
    assert "JSON Schema" in str(asked.messages[0])
    assert (model.name, meter.spent) == (
        "embedded/small",
        {Purpose.EVOLVE: Spent(1, usage=Usage(5, 2))},
    )


@pytest.mark.anyio
@each(
    "error", [WireError("the prompt is too long"), UpstreamError("the engine is gone", status=503)]
)
async def test_an_embedded_model_that_cannot_answer_says_so_as_any_other(error: Exception) -> None:
    model = LocalModel(Scripted(error=error), "small")
    with pytest.raises(UpstreamError, match=str(error)):
        await model.ask(question(), Purpose.JUDGE)
    with pytest.raises(UpstreamError, match="overheated"):
        await LocalModel(Scripted(Begin("x", "small"), Failed("overheated")), "small").ask(
            question(), Purpose.JUDGE
        )


@pytest.mark.anyio
async def test_an_embedded_model_that_takes_too_long_is_stopped() -> None:
    provider = Scripted()
    with pytest.raises(UpstreamError, match=r"within 0\.02 s"):
        await LocalModel(provider, "small", timeout_s=0.02).ask(question(), Purpose.JUDGE)
    assert provider.closed == 1


@pytest.mark.anyio
async def test_tool_calls_come_back_as_the_model_wrote_them() -> None:
    called = {
        **CHAT_ANSWER,
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "c_1",
                            "type": "function",
                            "function": {"name": "look", "arguments": '{ "at":1 }'},
                        }
                    ],
                },
            }
        ],
    }
    async with Provider(ok(called)).asked() as model:
        answer = await model.ask(
            question(tools=(Tool("look", None, {"type": "object"}),)), Purpose.JUDGE
        )
    assert answer.parts == (ToolCall("c_1", "look", '{ "at":1 }'),)
