"""The embedded model as the program uses it: a real child process with the real weights."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from benchmarks.scoring import score
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
    ToolChoice,
    ToolMode,
    Wire,
)
from metaclaw.engine import MODEL_ID, EmbeddedModel
from metaclaw.engine.served_model import ServedModel
from metaclaw.errors import EngineError, WireError
from metaclaw.ports import ModelProvider

pytestmark = pytest.mark.anyio
_PATIENCE_S = 120
_GREEDY = Sampling(temperature=0.0, max_tokens=12)


def _ask(text: str, sampling: Sampling = _GREEDY, **more: object) -> ChatRequest:
    return ChatRequest(
        Wire.CHAT,
        MODEL_ID,
        (Message(Role.USER, (Text(text),)),),
        sampling=sampling,
        **more,  # type: ignore[arg-type]
    )


async def _answer(model: ModelProvider, request: ChatRequest) -> list[Delta]:
    with anyio.fail_after(_PATIENCE_S):
        return [delta async for delta in model.generate(request)]


def _text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


def _end(deltas: list[Delta]) -> End:
    assert isinstance(deltas[0], Begin)
    assert isinstance(deltas[-1], End)
    return deltas[-1]


async def _until_gone(pid: int) -> None:
    with anyio.fail_after(60):
        while (
            Path(f"/proc/{pid}/stat").exists()
            and ") Z " not in Path(f"/proc/{pid}/stat").read_text()
        ):
            await anyio.sleep(0.05)


async def test_an_answer_comes_whole_with_the_tokens_it_was_made_of(
    embedded: EmbeddedModel, llama: ServedModel
) -> None:
    deltas = await _answer(embedded, _ask("What is the capital of France?"))
    end = _end(deltas)
    assert "Paris" in _text(deltas)
    assert end.finish is Finish.STOP
    assert end.tokens is not None
    assert end.tokens.sampled_ids[-1] == 2
    assert end.tokens.logprobs == pytest.approx(
        score(llama, end.tokens.prompt_ids, end.tokens.sampled_ids), abs=1e-4
    )
    assert end.usage is not None
    assert (end.usage.input_tokens, end.usage.output_tokens) == (
        len(end.tokens.prompt_ids),
        len(end.tokens.sampled_ids),
    )
    assert embedded.state == "ready"


async def test_concurrent_answers_do_not_mix_and_a_seed_repeats_them(
    embedded: EmbeddedModel,
) -> None:
    questions = [
        _ask(f"Tell me about the number {number}.", Sampling(max_tokens=6, seed=number))
        for number in range(6)
    ]
    together: dict[int, list[Delta]] = {}

    async def ask(number: int) -> None:
        together[number] = await _answer(embedded, questions[number])

    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(ask, number)
    for number in (0, 5):
        again = _end(await _answer(embedded, questions[number])).tokens
        first = _end(together[number]).tokens
        assert again is not None
        assert first is not None
        assert again.sampled_ids == first.sampled_ids
    assert len({_text(deltas) for deltas in together.values()}) > 3


async def test_max_tokens_cuts_the_answer_and_says_so(embedded: EmbeddedModel) -> None:
    end = _end(
        await _answer(
            embedded, _ask("Count to one hundred.", Sampling(temperature=0.0, max_tokens=3))
        )
    )
    assert end.finish is Finish.LENGTH
    assert end.tokens is not None
    assert len(end.tokens.sampled_ids) == 3


async def test_a_stop_string_across_tokens_ends_the_answer_before_it(
    embedded: EmbeddedModel,
) -> None:
    whole = _text(await _answer(embedded, _ask("What is the capital of France?")))
    stop = whole[6:14]
    deltas = await _answer(
        embedded,
        _ask(
            "What is the capital of France?",
            Sampling(temperature=0.0, max_tokens=12, stop=("zzz", stop)),
        ),
    )
    assert _text(deltas) == whole[: whole.index(stop)]
    assert (_end(deltas).finish, _end(deltas).stop_sequence) == (Finish.STOP, stop)


async def test_asked_for_logprobs_come_with_their_words(embedded: EmbeddedModel) -> None:
    deltas = await _answer(
        embedded,
        _ask("Say hello.", Sampling(temperature=0.0, max_tokens=6, logprobs=True, top_logprobs=3)),
    )
    shown = [
        logprob for delta in deltas if isinstance(delta, TextDelta) for logprob in delta.logprobs
    ]
    tokens = _end(deltas).tokens
    assert tokens is not None
    assert [item.logprob for item in shown] == list(tokens.logprobs[: len(shown)])
    assert "".join(item.token for item in shown) == _text(deltas)
    assert all(len(item.top) == 3 and item.top[0][1] >= item.logprob for item in shown)


async def test_a_required_tool_is_called(embedded: EmbeddedModel) -> None:
    tool = Tool(
        "get_weather",
        "The weather of a city",
        {"type": "object", "properties": {"city": {"type": "string"}}},
    )
    choice = ToolChoice(ToolMode.REQUIRED, "get_weather")
    request = _ask(
        "Weather in Paris?",
        Sampling(temperature=0.0, max_tokens=60),
        tools=(tool,),
        tool_choice=choice,
        parallel_tool_calls=False,
    )
    deltas = await _answer(embedded, request)
    [call] = [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
    assert (call.index, call.name, call.arguments[:1]) == (0, "get_weather", "{")
    assert call.id
    assert (_end(deltas).finish, _end(deltas).stop_sequence) == (Finish.TOOL_CALLS, None)


async def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(
    embedded: EmbeddedModel,
) -> None:
    with pytest.raises(WireError, match=r"8192 tokens.*\b9\d\d\d tokens") as caught:
        await _answer(embedded, _ask("word " * 9000))
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")


async def test_the_second_turn_of_a_conversation_is_read_from_the_cache(
    embedded: EmbeddedModel,
) -> None:
    messages: tuple[Message, ...] = (
        Message(Role.USER, (Text("Name a colour that is neither red nor green nor blue."),)),
    )
    first = await _answer(
        embedded, ChatRequest(Wire.MESSAGES, MODEL_ID, messages, sampling=_GREEDY)
    )
    messages += (
        Message(Role.ASSISTANT, (Text(_text(first)),)),
        Message(Role.USER, (Text("Another one?"),)),
    )
    usage = _end(
        await _answer(embedded, ChatRequest(Wire.MESSAGES, MODEL_ID, messages, sampling=_GREEDY))
    ).usage
    assert usage is not None
    assert usage.cached_tokens >= 40


async def test_closing_an_answer_early_frees_its_place(folder: Path) -> None:
    model = EmbeddedModel(folder, slots=1)
    await model.start()
    try:
        answer = model.generate(
            _ask(
                "Count to one thousand.",
                Sampling(temperature=0.0, max_tokens=4000, stop=("never said",)),
            )
        )
        with anyio.fail_after(_PATIENCE_S):
            async for delta in answer:
                if isinstance(delta, TextDelta):
                    break
            await answer.aclose()
        # The only slot would be taken for minutes, had the engine gone on.
        assert (
            _end(await _answer(model, _ask("Say hello.", Sampling(max_tokens=2)))).usage is not None
        )
    finally:
        await model.aclose()
    assert model.state == "stopped"
    with pytest.raises(EngineError, match="not running"):
        await _answer(model, _ask("Anyone?"))


async def test_a_killed_engine_fails_its_answers_and_is_started_again(folder: Path) -> None:
    model = EmbeddedModel(folder, threads=1)
    await model.start()
    try:
        answer = model.generate(_ask("Count to one thousand.", Sampling(max_tokens=4000)))
        with anyio.fail_after(_PATIENCE_S):
            await anext(answer)
            assert model.pid is not None
            first = model.pid
            os.kill(first, signal.SIGKILL)
            with pytest.raises(EngineError, match="in the middle of an answer") as caught:
                async for _ in answer:
                    pass
        assert (caught.value.status, caught.value.retryable) == (503, True)
        assert _text(await _answer(model, _ask("Say hello.")))
        assert model.pid != first
    finally:
        await model.aclose()


async def test_the_engine_holds_no_socket_of_the_program(embedded: EmbeddedModel) -> None:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1"):
        await _answer(embedded, _ask("Say hello."))
        handles = [str(handle.readlink()) for handle in Path(f"/proc/{embedded.pid}/fd").iterdir()]
    assert any(handle.startswith("pipe:") for handle in handles)
    assert not [handle for handle in handles if handle.startswith("socket:")]


async def test_the_engine_dies_with_a_program_that_is_killed(folder: Path) -> None:
    code = (
        "import asyncio, pathlib, sys\nfrom metaclaw.engine import EmbeddedModel\nasync def"
        " main():\n m = EmbeddedModel(pathlib.Path(sys.argv[1]), threads=1)\n await m.start()\n"
        " while m.pid is None: await asyncio.sleep(0.05)\n print(m.pid, flush=True)\n await"
        " asyncio.sleep(600)\nasyncio.run(main())"
    )
    async with await anyio.open_process(
        [sys.executable, "-c", code, str(folder)], stderr=None
    ) as program:
        assert program.stdout is not None
        with anyio.fail_after(_PATIENCE_S):
            pid = int(await program.stdout.receive())
        program.kill()
    await _until_gone(pid)


async def test_an_engine_that_cannot_start_says_why_and_is_tried_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaclaw.engine.client._BROKEN_PAUSE_S", 0.2)
    model = EmbeddedModel(tmp_path / "nothing", convert=False)
    await model.start()
    try:
        with pytest.raises(EngineError, match=r"tokenizer_config\.json") as caught:
            await _answer(model, _ask("Anyone?"))
        assert caught.value.status == 503
        assert model.state.startswith("failed: ")
        assert model.models == ("nothing",)
        (tmp_path / "nothing").symlink_to(folder)
        with anyio.fail_after(_PATIENCE_S):
            while model.state != "ready":
                await anyio.sleep(0.02)
        assert await _answer(model, _ask("Anyone?"))
    finally:
        await model.aclose()


async def test_requests_wait_for_the_start_but_not_for_ever(folder: Path) -> None:
    model = EmbeddedModel(folder, start_timeout_s=0.01)
    await model.start()
    try:
        assert model.state == "starting"
        with pytest.raises(EngineError, match="not ready") as caught:
            await _answer(model, _ask("Anyone?"))
        assert (caught.value.status, caught.value.retryable) == (503, True)
    finally:
        await model.aclose()


async def test_requests_do_not_wait_for_an_installation_and_it_serves_afterwards(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaclaw.engine.client._BROKEN_PAUSE_S", 0.2)
    go_on, tries = anyio.Event(), 0

    async def install(tell: Callable[[str], None]) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise EngineError("the disk is full")
        tell("torch, 57 of 191.8 MB")
        await go_on.wait()

    model = EmbeddedModel(folder, threads=1, install=install)
    await model.start()
    try:
        with pytest.raises(EngineError, match="cannot serve: the disk is full"):
            await _answer(model, _ask("Anyone?"))
        with anyio.fail_after(5):
            while model.state != "installing: torch, 57 of 191.8 MB":
                await anyio.sleep(0.02)
        with pytest.raises(EngineError, match="torch, 57 of 191") as caught:
            await _answer(model, _ask("Anyone?"))
        assert (caught.value.status, caught.value.retryable, caught.value.wait_s) == (503, True, 10)
        go_on.set()
        with anyio.fail_after(_PATIENCE_S):
            while not model.state.startswith("starting"):
                await anyio.sleep(0.02)
        assert await _answer(model, _ask("Anyone?"))
    finally:
        await model.aclose()


async def test_bad_requests_are_refused_before_the_engine_is_asked(folder: Path) -> None:
    model = EmbeddedModel(folder)
    with pytest.raises(WireError, match="n is 2"):
        await _answer(model, _ask("x", Sampling(n=2)))
    with pytest.raises(WireError, match="not Unicode"):
        await _answer(model, _ask("half a \ud83d pair"))
