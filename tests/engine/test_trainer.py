"""The embedded trainer as the program uses it: a real process on a tiny model, stopped, killed, and
gone on with.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from metaclaw.domain.ids import TurnId
from metaclaw.domain.policy import Weights
from metaclaw.domain.training import Datum, Drawing, Loss, LossKind, RunProgress
from metaclaw.engine.child_process import start_trainer
from metaclaw.engine.frames import TrainerOptions
from metaclaw.engine.trainer import EmbeddedTrainer, TrainingPause
from metaclaw.engine.training.lora import read_adapter
from metaclaw.errors import TrainingError
from metaclaw.ports import RunPlan, TrainingBackend
from tests.engine.cutting import ADAM, LOSS, PROMPTS, drawing, drive, piece_of
from tests.engine.tiny import END, VOCABULARY, make_tiny_model
from tests.support.pause import holding

pytestmark = pytest.mark.anyio
_PATIENCE_S = 120
STEPS, PIECES = 2, 3
_LONG = Drawing(count=8, max_tokens=100, seed=1)
"""Long enough to be stopped in the middle of it."""
_ENDLESS = Drawing(count=64, max_tokens=100, seed=1)
"""So long that it is not over before a test that cancels it gets its turn on a busy machine."""
_PAIR = ((1, 5, 6), (7, 8, 9))
_TURNSTILE = TrainingPause()
"""The shared trainer's."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def _plan(root: Path) -> RunPlan:
    return RunPlan("cut", None, 4, 3, root / "run")


def _make(model: Path, root: Path, **more: object) -> EmbeddedTrainer:
    return EmbeddedTrainer(
        model,
        root / "policies",
        convert=False,
        threads=1,
        device="cpu",
        nice=0,
        **more,  # type: ignore[arg-type]
    )


@asynccontextmanager
async def _trainer(model: Path, root: Path, **more: object) -> AsyncIterator[EmbeddedTrainer]:
    trainer = _make(model, root, **more)
    try:
        with anyio.fail_after(_PATIENCE_S):
            yield trainer
    finally:
        await trainer.aclose()


@pytest.fixture(scope="module")
async def shared(
    model: Path, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncIterator[EmbeddedTrainer]:
    """One process for the tests that leave it as it was."""
    trainer = _make(model, tmp_path_factory.mktemp("shared"), training_pause=_TURNSTILE)
    yield trainer
    await trainer.aclose()


def _used_s(pid: int) -> float:
    """Processor time all threads of a process have had."""
    return time.clock_gettime(~pid << 3 | 2)


async def _until(is_so: Callable[[], bool]) -> None:
    with anyio.fail_after(_PATIENCE_S):
        while not is_so():
            await anyio.sleep(0.005)


def _is_stopped(pid: int) -> bool:
    """Whether every thread has been stopped: on a busy machine some run on for a moment."""
    try:
        stats = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):  # a thread has just ended
        return False
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


async def _stands_still(pid: int) -> None:
    await _until(lambda: _is_stopped(pid))
    before = _used_s(pid)
    await anyio.sleep(0.2)
    assert _used_s(pid) - before < 0.01


async def _finish(
    trainer: TrainingBackend, root: Path, disturb: Callable[[str], Awaitable[None]]
) -> Weights:
    """The run of `cutting.drive` through the client, opened again after each call that fails."""
    while True:
        try:
            progress = await trainer.open(_plan(root))
            for step in range(progress.steps, STEPS):
                await disturb("sample")
                sampled = await trainer.sample(PROMPTS, drawing(step))
                groups = [
                    [(rollout.tokens_T, rollout.logprobs_T) for rollout in group]
                    for group in sampled
                ]
                for number in range(progress.pieces if step == progress.steps else 0, PIECES):
                    await disturb("accumulate")
                    await trainer.accumulate(piece_of(groups, number), LOSS)
                await disturb("apply")
                await trainer.apply(ADAM, 50.0)
            await disturb("keep")
            return await trainer.keep("end")
        except TrainingError as error:
            if "ended with status -9" not in str(error):
                raise


async def test_the_client_does_what_the_learner_does(
    shared: EmbeddedTrainer, model: Path, tmp_path: Path
) -> None:
    drive(model, tmp_path / "direct", STEPS, PIECES)

    async def nothing(call: str) -> None:
        pass

    kept = await _finish(shared, tmp_path, nothing)
    await shared.close(discard=True)
    assert not (tmp_path / "run").exists()
    assert kept == Weights("embedded", kept.adapter, kept.adapter)
    assert _is_same(Path(kept.adapter), tmp_path / "direct" / "end")
    assert await shared.score([_PAIR], kept) != await shared.score_base([_PAIR])
    assert await shared.sample_base(PROMPTS, _LONG) != await shared.sample(PROMPTS, _LONG, kept)
    with pytest.raises(TrainingError, match="no run is open"):
        await shared.sample(PROMPTS, _LONG)


def _is_same(one: Path, other: Path) -> bool:
    mine, theirs = read_adapter(one), read_adapter(other)
    return all(
        bool((here - there).abs().max() < 1e-7)
        for module in mine.pairs
        for here, there in zip(mine.pairs[module], theirs.pairs[module], strict=True)
    )


@pytest.mark.slow
async def test_a_process_killed_in_any_call_is_gone_on_from(model: Path, tmp_path: Path) -> None:
    drive(model, tmp_path / "direct", STEPS, PIECES)
    deadly = {"sample", "accumulate", "apply", "keep"}

    pause = TrainingPause()

    async with _trainer(model, tmp_path, training_pause=pause) as trainer:

        def kill() -> None:
            assert trainer.pid is not None
            os.killpg(trainer.pid, signal.SIGKILL)
            pause.release("to be killed")

        async def kill_once(now: str) -> None:
            if now in deadly:
                deadly.remove(now)
                pause.hold("to be killed")  # the call cannot end before the kill
                asyncio.get_running_loop().call_later(0.01, kill)

        await _finish(trainer, tmp_path, kill_once)
    assert not deadly
    assert _is_same(tmp_path / "policies" / "end", tmp_path / "direct" / "end")


async def test_a_pause_stops_a_call_wherever_it_is_and_it_goes_on_unharmed(
    shared: EmbeddedTrainer,
) -> None:
    undisturbed = await shared.sample_base(PROMPTS, _LONG)
    assert shared.pid is not None
    call = asyncio.create_task(shared.sample_base(PROMPTS, _LONG))
    await anyio.sleep(0.03)
    with holding(_TURNSTILE, "answer"):
        await _stands_still(shared.pid)
        assert not call.done()
    assert await call == undisturbed


async def test_a_process_that_starts_while_training_is_paused_stands_still(
    model: Path, tmp_path: Path
) -> None:
    training_pause = TrainingPause()
    async with _trainer(model, tmp_path, training_pause=training_pause) as trainer:
        training_pause.hold("window shut")
        call = asyncio.create_task(trainer.open(_plan(tmp_path)))
        await _until(lambda: trainer.pid is not None)
        assert trainer.pid is not None
        await _stands_still(trainer.pid)
        training_pause.release("window shut")
        assert await call == RunProgress()


@pytest.mark.slow
async def test_a_cancelled_call_ends_the_process_and_leaves_what_was_on_disk(
    model: Path, tmp_path: Path
) -> None:
    async with _trainer(model, tmp_path) as trainer:
        await trainer.open(_plan(tmp_path))
        await trainer.accumulate(_pieces(), LOSS)
        await trainer.apply(ADAM, 10.0)
        pid = trainer.pid
        call = asyncio.create_task(trainer.sample(PROMPTS, _ENDLESS))
        await anyio.sleep(0.03)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (trainer.pid, trainer.is_open) == (None, False)
        with pytest.raises(TrainingError, match="no run is open"):
            await trainer.apply(ADAM, 10.0)
        assert await trainer.open(_plan(tmp_path)) == RunProgress(1, 0)
        assert trainer.pid != pid


def _pieces() -> list[Datum]:
    return piece_of([[((7, 8, 9), (-1.0, -2.0, -3.0))]] * len(PROMPTS), 0)


@pytest.mark.slow
async def test_memory_is_given_back_after_a_long_stop(model: Path, tmp_path: Path) -> None:
    training_pause = TrainingPause()
    async with _trainer(
        model, tmp_path, training_pause=training_pause, release_memory_after_s=0.1
    ) as trainer:
        await trainer.open(_plan(tmp_path))
        await trainer.accumulate(_pieces(), LOSS)
        await trainer.apply(ADAM, 10.0)
        call = asyncio.create_task(trainer.sample(PROMPTS, _LONG))
        with holding(training_pause, "window shut"):
            with pytest.raises(TrainingError, match="ended"):
                await call
            assert trainer.pid is None
        assert await trainer.open(_plan(tmp_path)) == RunProgress(1, 0)


@pytest.mark.slow
async def test_memory_is_given_back_where_nothing_is_open_and_nothing_is_asked(
    model: Path, tmp_path: Path
) -> None:
    async with _trainer(model, tmp_path, release_memory_after_s=0.1) as trainer:
        await trainer.open(_plan(tmp_path))
        await anyio.sleep(0.3)
        assert trainer.is_open
        await trainer.close(discard=False)
        await _until(lambda: trainer.pid is None)


@pytest.mark.slow
async def test_a_run_is_thrown_away_even_while_everything_stands_still(
    model: Path, tmp_path: Path
) -> None:
    training_pause = TrainingPause()
    async with _trainer(model, tmp_path, training_pause=training_pause) as trainer:
        await trainer.open(_plan(tmp_path))
        with holding(training_pause, "answer"):
            await trainer.close(discard=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
async def test_a_model_that_cannot_be_read_is_a_training_error(tmp_path: Path) -> None:
    async with _trainer(tmp_path / "nothing", tmp_path) as trainer:
        with pytest.raises(TrainingError, match="cannot read the model"):
            await trainer.open(_plan(tmp_path))


async def test_kept_weights_are_made_smaller_without_touching_the_run_and_removed(
    model: Path, tmp_path: Path
) -> None:
    async with _trainer(model, tmp_path) as trainer:
        await trainer.open(_plan(tmp_path))
        sampled = await trainer.sample(PROMPTS, drawing(0))
        groups = [
            [(rollout.tokens_T, rollout.logprobs_T) for rollout in group] for group in sampled
        ]
        await trainer.accumulate(piece_of(groups, 0), LOSS)
        await trainer.apply(ADAM, 10.0)
        whole = await trainer.keep("whole")
        half, same = (
            await trainer.shrink(whole, 0.5, "half"),
            await trainer.shrink(whole, 1.0, "same"),
        )
        pairs, halved = (read_adapter(Path(one.adapter)).pairs for one in (whole, half))
        assert all(
            (0.5 * pairs[name].b).equal(halved[name].b) and pairs[name].a.equal(halved[name].a)
            for name in pairs
        )
        assert _is_same(Path(whole.adapter), Path(same.adapter))
        present, kept = await trainer.score([_PAIR]), await trainer.score([_PAIR], whole)
        assert present == kept
        assert present != await trainer.score([_PAIR], half)
        # A run goes on from smaller weights.
        assert await trainer.open(RunPlan("next", half, 4, 3, tmp_path / "next")) == RunProgress()
        assert await trainer.score([_PAIR]) == await trainer.score([_PAIR], half)
        await trainer.discard(half)
        await trainer.discard(half)
        assert not Path(half.adapter).exists()
        await trainer.discard(Weights("embedded", str(tmp_path / "run")))
        assert (tmp_path / "run").exists()


async def test_another_process_makes_kept_weights_smaller_in_their_place(
    model: Path, tmp_path: Path
) -> None:
    async with _trainer(model, tmp_path) as trainer:
        await trainer.open(_plan(tmp_path))
        sampled = await trainer.sample(PROMPTS, drawing(0))
        groups = [
            [(rollout.tokens_T, rollout.logprobs_T) for rollout in group] for group in sampled
        ]
        await trainer.accumulate(piece_of(groups, 0), LOSS)
        await trainer.apply(ADAM, 10.0)
        kept = await trainer.keep("000001")
    before = read_adapter(Path(kept.adapter)).pairs
    async with _trainer(model, tmp_path) as trainer:
        assert await trainer.shrink(kept, 0.5, "000001") == kept
    after = read_adapter(Path(kept.adapter)).pairs
    assert all((0.5 * before[name].b).equal(after[name].b) for name in before)


@pytest.mark.parametrize("label", ["", "../elsewhere", ".hidden", "a/b"])
async def test_weights_are_kept_under_plain_names_only(
    label: str, model: Path, tmp_path: Path
) -> None:
    trainer = EmbeddedTrainer(model, tmp_path)
    trainer.is_open = True
    with pytest.raises(TrainingError, match="name for a folder"):
        await trainer.keep(label)


_PARENT = """
import asyncio, os, sys
from pathlib import Path
from metaclaw.engine.trainer import EmbeddedTrainer
from metaclaw.engine.trainer import TrainingPause
from metaclaw.ports import RunPlan

async def main():
    training_pause = TrainingPause()
    trainer = EmbeddedTrainer(Path(sys.argv[1]), Path(sys.argv[2]), training_pause=training_pause, convert=False, threads=1, nice=0)
    await trainer.open(RunPlan("r", None, 4, 3, Path(sys.argv[2]) / "run"))
    training_pause.hold("window shut")
    print(trainer.pid, flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


async def test_a_stopped_trainer_does_not_outlive_a_program_that_is_killed(
    model: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", _PARENT, str(model), str(tmp_path)]
    out = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=_PATIENCE_S
    )
    pid = int(out.stdout)
    await _until(lambda: not _lives(pid))
    assert not _lives(pid)


def _lives(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and ") Z " not in stat.read_text()


async def test_the_program_imports_nothing_heavy_for_it() -> None:
    code = (
        "import sys, metaclaw.engine.trainer; print({'torch', 'safetensors', 'numpy', 'tokenizers'}"
        " & set(sys.modules))"
    )
    out = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert out.stdout.strip() == "set()"


@pytest.mark.slow
async def test_a_model_with_biases_is_taught_and_goes_on(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = make_tiny_model(tmp_path / "model")
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    config = transformers.Qwen2Config(**sizes, max_position_embeddings=128, eos_token_id=END)
    transformers.Qwen2ForCausalLM(config).save_pretrained(folder)
    async with _trainer(folder, tmp_path) as trainer:
        await trainer.open(_plan(tmp_path))
        await trainer.accumulate(_pieces(), Loss(LossKind.CROSS_ENTROPY))
        await trainer.apply(ADAM, 10.0)
        kept = await trainer.keep("taught")
        assert (
            await trainer.score([_PAIR], kept)
            == await trainer.score([_PAIR])
            != await trainer.score_base([_PAIR])
        )
        await trainer.aclose()
        assert await trainer.open(_plan(tmp_path)) == RunProgress(1, 0)


@pytest.mark.nightly
@pytest.mark.slow
async def test_the_real_model_is_taught_stopped_killed_and_taught_on(
    folder: Path, tmp_path: Path
) -> None:
    training_pause = TrainingPause()
    trainer = EmbeddedTrainer(
        folder,
        tmp_path / "policies",
        training_pause=training_pause,
        threads=1,
        device="cpu",
        nice=0,
    )
    prompt = (1, 9690, 198, 2683, 418, 253)
    good = [Datum(TurnId("turn"), prompt, (5356, 2), (1.0, 1.0), None)]
    try:
        with anyio.fail_after(600):
            await trainer.open(_plan(tmp_path))
            before = await trainer.score([(prompt, (5356, 2))])
            await trainer.accumulate(good, Loss(LossKind.CROSS_ENTROPY))
            await trainer.apply(ADAM, 2.0)
            call = asyncio.create_task(trainer.accumulate(good, Loss(LossKind.CROSS_ENTROPY)))
            await anyio.sleep(0.1)
            assert trainer.pid is not None
            with holding(training_pause, "answer"):
                await _stands_still(trainer.pid)
            os.killpg(trainer.pid, signal.SIGKILL)
            with pytest.raises(TrainingError, match="status -9"):
                await call
            assert (await trainer.open(_plan(tmp_path))).steps == 1
            after = await trainer.score([(prompt, (5356, 2))])
            assert sum(after[0]) > sum(before[0])
    finally:
        await trainer.aclose()


async def test_a_process_that_has_ended_can_still_be_stopped_and_continued() -> None:
    options = TrainerOptions(
        folder="nowhere", convert=False, threads=1, device="cpu", dtype="auto", nice=0
    )
    child = await start_trainer(options)
    with anyio.fail_after(_PATIENCE_S):
        while await child.next_message() is not None:
            pass  # it ends, since there is no such folder
        child.stop()
        child.go()
        assert await child.close() == 0
    child.stop()
    child.go()
