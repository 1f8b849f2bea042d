"""Several versions of the weights in one engine process: each answers with its own, and comes and
goes beside the others.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.scoring import load_model, score
from metaclaw.domain.chat import (
    ChatRequest,
    Delta,
    End,
    Message,
    Role,
    SampledTokens,
    Sampling,
    Text,
    TextDelta,
    Wire,
)
from metaclaw.domain.policy import Weights
from metaclaw.engine import EmbeddedModel
from metaclaw.engine.served_model import ServedModel
from metaclaw.engine.training.lora import read_adapter
from metaclaw.errors import EngineError, TrainingError
from metaclaw.ports import ModelProvider, PolicyHost
from tests.engine.small import Change, make_small_model, merge, write_adapter

pytestmark = pytest.mark.anyio
_PATIENCE_S = 60


@pytest.fixture(scope="module")
def small(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_small_model(folder, tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="module")
def adapters(small: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Weights]:
    root = tmp_path_factory.mktemp("adapters")
    return {
        version: write_adapter(small, root / str(version), seed=version, size=0.7)
        for version in (1, 2)
    }


@pytest.fixture(scope="module")
def truths(
    small: Path, adapters: dict[int, Weights], tmp_path_factory: pytest.TempPathFactory
) -> dict[int, ServedModel]:
    """Each version as a model of its own, with weights merged by other code."""
    root = tmp_path_factory.mktemp("merged")
    folders = {0: small} | {
        version: merge(small, weights, root / str(version)) for version, weights in adapters.items()
    }
    return {version: load_model(folder) for version, folder in folders.items()}


@pytest.fixture(scope="module")
def heard() -> list[bool]:
    """What whoever works beside serving is told."""
    return []


@pytest.fixture(scope="module")
async def engine(
    small: Path, heard: list[bool], anyio_backend: str
) -> AsyncIterator[EmbeddedModel]:
    model = EmbeddedModel(small, convert=False, threads=1, busy=heard.append)
    await model.start()
    yield model
    await model.aclose()


@pytest.fixture
async def model(engine: EmbeddedModel) -> AsyncIterator[EmbeddedModel]:
    """The engine, running, with nothing loaded; one process serves all tests that do not kill
    it.
    """
    await _answer(engine, 0, max_tokens=1)
    yield engine
    await engine.start()
    for version in engine.loaded:
        await engine.unload(version)


def _ask(text: str, *, max_tokens: int = 20) -> ChatRequest:
    sampling = Sampling(temperature=0.0, max_tokens=max_tokens)
    return ChatRequest(Wire.CHAT, "small", (Message(Role.USER, (Text(text),)),), sampling=sampling)


async def _answer(
    model: ModelProvider, version: int, text: str = "Tell me.", *, max_tokens: int = 20
) -> SampledTokens:
    with anyio.fail_after(_PATIENCE_S):
        deltas = [
            delta async for delta in model.generate(_ask(text, max_tokens=max_tokens), version)
        ]
    assert isinstance(deltas[-1], End)
    assert deltas[-1].tokens is not None
    return deltas[-1].tokens


def _is_by(tokens: SampledTokens, truth: ServedModel) -> bool:
    """Whether these weights, and not others that are near, give the answer's log-probabilities."""
    scored = score(truth, tokens.prompt_ids, tokens.sampled_ids)
    return tokens.logprobs == pytest.approx(scored, abs=1e-3)


async def _first_text(answer: AsyncIterator[Delta]) -> None:
    async for delta in answer:
        if isinstance(delta, TextDelta):
            return


async def test_every_version_answers_with_its_own_weights(
    model: EmbeddedModel, adapters: dict[int, Weights], truths: dict[int, ServedModel]
) -> None:
    host: PolicyHost = model
    for version, weights in adapters.items():
        await host.load(version, weights)
    assert host.loaded == {1, 2}
    answers = {version: await _answer(model, version) for version in (0, 1, 2)}
    assert len({tokens.sampled_ids for tokens in answers.values()}) == 3
    for version, tokens in answers.items():
        assert [other for other, truth in truths.items() if _is_by(tokens, truth)] == [version]


async def test_versions_that_answer_at_once_do_not_mix(
    model: EmbeddedModel, adapters: dict[int, Weights], truths: dict[int, ServedModel]
) -> None:
    for version, weights in adapters.items():
        await model.load(version, weights)
    answers: list[tuple[int, SampledTokens]] = []

    async def ask(version: int, number: int) -> None:
        # Each question is asked of all versions: a cache that did not know whose keys it holds
        # would share them.
        answers.append(
            (
                version,
                await _answer(model, version, f"Tell me about the number {number}, at length."),
            )
        )

    async with anyio.create_task_group() as group:
        for number in range(5):
            for version in (0, 1, 2):
                group.start_soon(ask, version, number)
    assert len(answers) == 15
    assert all(_is_by(tokens, truths[version]) for version, tokens in answers)


async def test_a_version_that_is_not_loaded_is_never_answered_by_another(
    model: EmbeddedModel,
) -> None:
    with pytest.raises(EngineError, match=r"version 7 .* not loaded") as caught:
        await _answer(model, 7)
    assert caught.value.retryable
    await _answer(model, 0)


def _drop_a_tensor(tensors: dict[str, Tensor], config: dict[str, object]) -> None:
    tensors.pop("base_model.model.model.layers.1.mlp.up_proj.lora_B.weight")


def _poison(tensors: dict[str, Tensor], config: dict[str, object]) -> None:
    tensors["base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight"][1, 2] = float("nan")


def _overflow(tensors: dict[str, Tensor], config: dict[str, object]) -> None:
    for name in tensors:
        if "layers.1.mlp.down_proj" in name:
            tensors[name] *= 1e30


def _widen(tensors: dict[str, Tensor], config: dict[str, object]) -> None:
    for name in tensors:
        if "lora_A" in name:
            tensors[name] = torch.cat((tensors[name], tensors[name]), dim=1)


def _miscount(tensors: dict[str, Tensor], config: dict[str, object]) -> None:
    config["r"] = 5


def _explode(tensors: dict[str, Tensor], config: dict[str, object]) -> None:
    config["lora_alpha"] = 10**400


def _go_beyond(tensors: dict[str, Tensor], config: dict[str, object]) -> None:
    for end in ("lora_A", "lora_B"):
        for name in [name for name in tensors if "layers.0" in name and end in name]:
            tensors[name.replace("layers.0", "layers.2")] = tensors[name].clone()


def _change_the_head(tensors: dict[str, Tensor], config: dict[str, object]) -> None:
    tensors["base_model.model.lm_head.lora_A.weight"] = torch.ones(4, 48)
    tensors["base_model.model.lm_head.lora_B.weight"] = torch.ones(49_152, 4)


_SPOILT: tuple[Change, ...] = (
    _drop_a_tensor, _poison, _overflow, _widen, _miscount, _explode, _go_beyond, _change_the_head,
)  # fmt: skip


async def test_unusable_adapters_are_refused_and_nothing_changes(
    model: EmbeddedModel,
    small: Path,
    tmp_path: Path,
    adapters: dict[int, Weights],
    truths: dict[int, ServedModel],
) -> None:
    await model.load(1, adapters[1])
    pid = model.pid
    for number, change in enumerate(_SPOILT):
        weights = write_adapter(small, tmp_path / str(number), seed=1, size=0.7, change=change)
        with pytest.raises(TrainingError, match="version 2 cannot be loaded"):
            await model.load(2, weights)
    with pytest.raises(TrainingError, match="adapter_config"):
        await model.load(2, Weights("embedded", str(tmp_path / "nowhere")))
    assert model.loaded == {1}
    assert model.pid == pid
    assert _is_by(await _answer(model, 1), truths[1])
    await model.load(2, adapters[2])
    assert _is_by(await _answer(model, 2), truths[2])


async def test_files_broken_anywhere_never_end_the_engine(
    model: EmbeddedModel, small: Path, tmp_path: Path
) -> None:
    weights = write_adapter(small, tmp_path / "whole", seed=1, size=0.7)
    bodies = {path.name: path.read_bytes() for path in Path(weights.adapter).iterdir()}
    broken = tmp_path / "broken"
    broken.mkdir()
    pid = model.pid
    for name, body in bodies.items():
        for cut in (0, 7, 8, 100, len(body) // 2, len(body) - 1):
            for other, whole in bodies.items():
                (broken / other).write_bytes(whole[:cut] if other == name else whole)
            with pytest.raises(TrainingError):
                await model.load(3, Weights("embedded", str(broken)))
    await _answer(model, 0)
    assert model.loaded == frozenset()
    assert model.pid == pid


async def test_a_version_is_never_loaded_over_another(
    model: EmbeddedModel, adapters: dict[int, Weights]
) -> None:
    await model.load(1, adapters[1])
    await model.load(1, adapters[1])
    with pytest.raises(TrainingError, match="other weights"):
        await model.load(1, adapters[2])
    with pytest.raises(TrainingError, match="version 0"):
        await model.load(0, adapters[1])


async def test_a_crashed_engine_has_all_versions_again_before_it_answers(
    model: EmbeddedModel, adapters: dict[int, Weights], truths: dict[int, ServedModel]
) -> None:
    for version, weights in adapters.items():
        await model.load(version, weights)
    await model.unload(1)
    assert model.pid is not None
    os.kill(model.pid, signal.SIGKILL)
    with pytest.raises(EngineError):  # noqa: PT012 - whether the pipe's end is seen before or during the answer
        while True:
            await _answer(model, 2, max_tokens=400)
    assert _is_by(await _answer(model, 2), truths[2])
    assert model.loaded == {2}
    with pytest.raises(EngineError, match="not loaded"):
        await _answer(model, 1)


async def test_a_version_whose_files_went_missing_does_not_keep_a_crashed_engine_from_serving(
    model: EmbeddedModel,
    small: Path,
    adapters: dict[int, Weights],
    truths: dict[int, ServedModel],
    tmp_path: Path,
) -> None:
    gone = write_adapter(small, tmp_path / "gone", seed=3, size=0.7)
    await model.load(3, gone)
    await model.load(1, adapters[1])
    (tmp_path / "gone" / "adapter_config.json").unlink()
    assert model.pid is not None
    os.kill(model.pid, signal.SIGKILL)
    with anyio.fail_after(_PATIENCE_S):
        while 3 in model.loaded:
            await anyio.sleep(0.02)
    assert _is_by(await _answer(model, 1), truths[1])
    with pytest.raises(EngineError, match="not loaded"):
        await _answer(model, 3)


async def test_a_version_leaves_when_its_last_answer_is_finished(
    model: EmbeddedModel, adapters: dict[int, Weights], truths: dict[int, ServedModel]
) -> None:
    await model.load(1, adapters[1])
    ends: list[SampledTokens | None] = []
    answer = model.generate(_ask("Tell me all.", max_tokens=300), 1)
    await _first_text(answer)
    with anyio.fail_after(_PATIENCE_S):
        async with anyio.create_task_group() as group:
            group.start_soon(model.unload, 1)
            await anyio.wait_all_tasks_blocked()
            assert model.loaded == frozenset()
            with pytest.raises(EngineError, match="not loaded"):
                await _answer(model, 1)
            async for delta in answer:
                if isinstance(delta, End):
                    ends.append(delta.tokens)
    [tokens] = ends
    assert tokens is not None
    assert len(tokens.sampled_ids) == 300
    assert _is_by(tokens, truths[1])
    await model.load(1, adapters[1])
    assert model.loaded == {1}


async def test_a_version_on_its_way_out_stays_if_it_is_wanted_again(
    model: EmbeddedModel, adapters: dict[int, Weights], truths: dict[int, ServedModel]
) -> None:
    await model.load(1, adapters[1])
    answer = model.generate(_ask("Tell me all.", max_tokens=2000), 1)
    await _first_text(answer)
    with anyio.fail_after(_PATIENCE_S):
        async with anyio.create_task_group() as group:
            group.start_soon(model.unload, 1)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(TrainingError, match="other weights"):
                await model.load(1, adapters[2])
            # Long before the answer is finished: going back takes no time.
            await model.load(1, adapters[1])
        assert model.loaded == {1}
        assert _is_by(await _answer(model, 1), truths[1])
    await answer.aclose()


async def test_unloading_what_is_not_there_is_no_error(
    model: EmbeddedModel, adapters: dict[int, Weights]
) -> None:
    await model.unload(5)
    await model.load(1, adapters[1])
    with anyio.fail_after(_PATIENCE_S):
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(model.unload, 1)
    await model.aclose()
    await model.unload(1)
    with pytest.raises(TrainingError, match="not running"):
        await model.load(1, adapters[1])


async def test_a_load_that_nobody_waits_for_any_more_leaves_nothing_behind(
    model: EmbeddedModel, adapters: dict[int, Weights], truths: dict[int, ServedModel]
) -> None:
    await _answer(model, 0)
    for _ in range(3):
        with anyio.move_on_after(0.001):
            await model.load(1, adapters[1])
        await model.unload(1)
    await model.load(1, adapters[2])
    assert _is_by(await _answer(model, 1), truths[2])


async def test_whoever_stops_asking_is_heard_at_whatever_moment(model: EmbeddedModel) -> None:
    async def ask() -> None:
        async for _ in model.generate(_ask("Tell me.", max_tokens=500), 0):
            pass

    for rounds in range(10):
        task = asyncio.create_task(ask())
        for _ in range(rounds):
            await asyncio.sleep(0)
        task.cancel()
        with anyio.fail_after(_PATIENCE_S), pytest.raises(asyncio.CancelledError):
            await task


async def test_loads_and_unloads_in_any_order_end_with_what_was_asked_last(
    model: EmbeddedModel, adapters: dict[int, Weights], truths: dict[int, ServedModel]
) -> None:
    with anyio.fail_after(_PATIENCE_S):
        for _ in range(10):
            async with anyio.create_task_group() as group:
                await model.load(1, adapters[1])
                for _ in range(3):
                    group.start_soon(model.unload, 1)
                    await anyio.lowlevel.checkpoint()
                    await model.load(1, adapters[1])
            assert model.loaded == {1}
            assert _is_by(await _answer(model, 1), truths[1])


async def test_a_crash_in_the_middle_of_a_load_fails_the_load_and_the_next_one_succeeds(
    model: EmbeddedModel, adapters: dict[int, Weights]
) -> None:
    await _answer(model, 0)
    assert model.pid is not None
    os.kill(model.pid, signal.SIGSTOP)
    with anyio.fail_after(_PATIENCE_S):
        async with anyio.create_task_group() as group:

            async def load() -> None:
                with pytest.raises(TrainingError, match="ended with status"):
                    await model.load(1, adapters[1])

            group.start_soon(load)
            await anyio.wait_all_tasks_blocked()
            os.kill(model.pid, signal.SIGKILL)
        assert model.loaded == frozenset()
        await model.load(1, adapters[1])
    assert model.loaded == {1}


async def test_the_trainer_hears_when_answers_begin_and_when_the_last_has_ended(
    model: EmbeddedModel, heard: list[bool]
) -> None:
    heard.clear()
    first = model.generate(_ask("One.", max_tokens=200))
    await _first_text(first)
    await _answer(model, 0)
    assert heard == [True]
    await first.aclose()
    assert heard == [True, False]
    with pytest.raises(EngineError):
        await _answer(model, 9)
    assert heard == [True, False] * 2


def _resident_mib(model: EmbeddedModel) -> int:
    status = Path(f"/proc/{model.pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) // 1024


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
async def test_the_real_model_with_an_adapter_says_what_transformers_says_and_frees_its_memory(
    folder: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    weights = write_adapter(folder, tmp_path / "adapter", seed=5, size=0.15, rank=8)
    model = EmbeddedModel(folder, threads=2)
    await model.start()
    try:
        plain = await _answer(model, 0, "What is the capital of France?", max_tokens=16)
        before = _resident_mib(model)
        await model.load(4, weights)
        found = await _answer(model, 4, "What is the capital of France?", max_tokens=16)
        again = await _answer(model, 4, "And what is the capital of France?", max_tokens=16)
        loaded = _resident_mib(model)
        await model.unload(4)
        # What a version took it gives back.
        assert _resident_mib(model) - before < (loaded - before) / 4
    finally:
        await model.aclose()
    assert found.sampled_ids != plain.sampled_ids
    reference = transformers.LlamaForCausalLM.from_pretrained(
        merge(folder, weights, tmp_path / "merged"), dtype=torch.float32
    ).eval()
    for tokens in (found, again):
        ids = torch.tensor([[*tokens.prompt_ids, *tokens.sampled_ids]])
        with torch.inference_mode():
            logits = reference(ids).logits[0, len(tokens.prompt_ids) - 1 : -1]
        assert logits.argmax(-1).tolist() == list(tokens.sampled_ids)
        expected = (
            logits.log_softmax(-1)
            .gather(1, torch.tensor(tokens.sampled_ids).unsqueeze(1))
            .squeeze(1)
        )
        assert list(tokens.logprobs) == pytest.approx(expected.tolist(), abs=1e-3)


def test_an_adapter_of_some_projections_changes_only_those(small: Path, tmp_path: Path) -> None:
    def only_queries(tensors: dict[str, Tensor], config: dict[str, object]) -> None:
        for name in [name for name in tensors if "q_proj" not in name]:
            del tensors[name]

    weights = write_adapter(small, tmp_path / "adapter", seed=1, size=0.7, change=only_queries)
    base = load_model(small)
    tokens = list(range(100, 140))
    model = base.with_adapter(read_adapter(Path(weights.adapter)))
    truth = score(load_model(merge(small, weights, tmp_path / "merged")), tokens[:1], tokens[1:])
    assert score(model, tokens[:1], tokens[1:]) == pytest.approx(truth, abs=1e-4)
    of_model, of_base = (one._stack.held["embedding"] for one in (model, base))
    assert of_model.data_ptr() == of_base.data_ptr()
    assert len(load_file(Path(weights.adapter) / "adapter_model.safetensors")) == 4
