"""A trainer that runs out of memory: it works on less at once, or says so in words and goes on
later from what is on disk.
"""

from pathlib import Path

import anyio
import pytest
import torch
from torch import Tensor

from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Adam, Datum, Drawing, Loss
from metaclaw.engine.trainer import EmbeddedTrainer
from metaclaw.engine.training.calls import FromTrainer, TrainerCall
from metaclaw.engine.training.learner import Learner, is_out_of_memory
from metaclaw.engine.training.packing import Pairs
from metaclaw.engine.training.process import Trainer
from metaclaw.engine.training.rollout import Rollouts
from metaclaw.errors import TrainerMemoryError
from metaclaw.ports import RunPlan
from tests.engine.tiny import make_tiny_model

_ROWS = 600
_PROMPTS = [[5, 6, 7, 8], [9, 10, 11]]
_DRAWING = Drawing(count=4, max_tokens=9, seed=1)
_SAID = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.72 GiB of"
    " which 1.20 GiB is free."
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("memory") / "tiny")


class ShortOfMemory(Learner):
    """A learner whose device holds so many rows of a pass, and waves of so small a share of the
    usual size.
    """

    rows = _ROWS
    share = 0.25
    refused = 0

    def _logprobs(self, pairs: Pairs, *, is_base: bool = False) -> Tensor:
        if sum(len(prompt) + len(drawn) for prompt, drawn in pairs) > self.rows:
            self.refused += 1
            raise torch.OutOfMemoryError(_SAID)
        return super()._logprobs(pairs, is_base=is_base)

    def _sampler(self) -> Rollouts:
        if self._work.share > self.share:
            self.refused += 1
            raise torch.OutOfMemoryError(_SAID)
        return super()._sampler()


def _data() -> list[Datum]:
    """Of many prompts, so that they do not share rows: about 1,600 rows in all."""
    prompts = [tuple([3 + number % 40] * (10 + number % 7)) for number in range(80)]
    return [
        Datum(TurnId(f"t{number}"), prompt, (7, 8) * 4, (1.0, -1.0) * 4, (-1.0,) * 8)
        for number, prompt in enumerate(prompts)
    ]


def _gradient(learner: Learner) -> Tensor:
    return learner.state()["gradient"]


def test_a_learner_that_runs_out_of_memory_learns_the_same_from_less_at_once(tiny: Path) -> None:
    whole, short = (
        Learner(tiny, rank=4, seed=3, threads=1),
        ShortOfMemory(tiny, rank=4, seed=3, threads=1),
    )
    data = _data()
    stats = [learner.accumulate(data, Loss()) for learner in (whole, short)]
    assert short.refused > 0
    assert torch.allclose(_gradient(whole), _gradient(short), rtol=1e-3, atol=1e-5)
    assert stats[0].tokens == stats[1].tokens
    refused = short.refused
    short.apply(Adam(learning_rate=0.01), 10.0)
    short.accumulate(data, Loss())
    assert short.refused == refused, "it remembers how little fits"


def test_a_learner_that_runs_out_of_memory_draws_the_same_in_smaller_waves(tiny: Path) -> None:
    whole, short = (
        Learner(tiny, rank=4, seed=3, threads=1),
        ShortOfMemory(tiny, rank=4, seed=3, threads=1),
    )
    assert short.sample(_PROMPTS, _DRAWING) == whole.sample(_PROMPTS, _DRAWING)
    assert short.refused == 2
    pairs = [(datum.prompt, datum.tokens_T) for datum in _data()]
    for one, other in zip(short.score(pairs), whole.score(pairs), strict=True):
        assert one == pytest.approx(other, abs=1e-4)


def test_where_nothing_fits_the_trainer_says_so_in_words_and_the_gradient_is_as_before(
    tiny: Path,
) -> None:
    class Full(ShortOfMemory):
        rows = 0

    learner = Full(tiny, rank=4, seed=3, threads=1)
    before = _gradient(learner)
    data = [Datum(TurnId("t"), (5, 6), (7,), (1.0,), (-1.0,))]
    with pytest.raises(
        TrainerMemoryError,
        match=r"too little memory \(CUDA out of memory. Tried to allocate 2.00 GiB",
    ):
        learner.accumulate(data, Loss())
    assert torch.equal(before, _gradient(learner))


def test_an_error_that_is_no_lack_of_memory_is_not_taken_for_one(tiny: Path) -> None:
    assert not is_out_of_memory(RuntimeError("shapes differ"))
    hidden = RuntimeError("operation failed due to a previous error during capture")
    hidden.__context__ = torch.OutOfMemoryError(_SAID)
    assert is_out_of_memory(hidden)

    class Broken(Learner):
        def _logprobs(self, pairs: Pairs, *, is_base: bool = False) -> Tensor:
            raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        Broken(tiny, rank=4, seed=3, threads=1).score([((5, 6), (7,))])


def test_a_process_without_memory_for_the_model_answers_instead_of_dying(tmp_path: Path) -> None:
    def make(rank: int, seed: int) -> Learner:
        raise torch.OutOfMemoryError(_SAID)

    answer = Trainer(make, "model", "base").answer(
        TrainerCall("open", (RunPlan("run", None, 4, 3, tmp_path / "run"),))
    )
    assert isinstance(answer, TrainerMemoryError)
    assert "too little memory" in str(answer)


@pytest.mark.anyio
async def test_the_program_ends_a_process_without_memory_and_goes_on_from_its_last_step(
    tiny: Path, tmp_path: Path
) -> None:
    trainer = EmbeddedTrainer(
        tiny, tmp_path / "policies", convert=False, threads=1, device="cpu", nice=0
    )
    plan = RunPlan("run", None, 4, 3, tmp_path / "run")
    data = [Datum(TurnId("t"), (5, 6), (7,), (1.0,), (-1.0,))]
    try:
        with anyio.fail_after(120):
            await trainer.open(plan)
            await trainer.accumulate(data, Loss())
            await trainer.apply(Adam(learning_rate=0.01), 1.0)
            child = trainer._child
            assert child is not None

            async def full() -> FromTrainer:
                return TrainerMemoryError(_SAID)

            child.next_message = full  # type: ignore[method-assign]
            with pytest.raises(TrainerMemoryError, match="out of memory"):
                await trainer.accumulate(data, Loss())
            assert trainer.pid is None
            assert (await trainer.open(plan)).steps == 1
    finally:
        await trainer.aclose()
