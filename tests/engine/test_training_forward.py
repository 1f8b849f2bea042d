"""The trainable forward pass against transformers: log-probabilities, and every gradient of every
LoRA matrix.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Datum, Loss, LossKind
from metaclaw.engine.training.learner import Learner
from metaclaw.engine.training.lora import Adapter, Pair
from tests.engine.tiny import VOCABULARY, make_tiny_model

_TOLERANCE = 1e-4


def _randomised(adapter: Adapter, size: float) -> Adapter:
    generator = torch.Generator().manual_seed(5)
    pairs = {
        module: Pair(pair.a, torch.randn(pair.b.shape, generator=generator) * size)
        for module, pair in adapter.pairs.items()
    }
    return Adapter(adapter.rank, adapter.alpha, pairs)


def _tokens(seed: int, count: int, vocabulary: int) -> tuple[int, ...]:
    return tuple(
        torch.randint(
            3, vocabulary, (count,), generator=torch.Generator().manual_seed(seed)
        ).tolist()
    )


def _data(vocabulary: int) -> list[Datum]:
    """Three prompts that begin alike, rollouts of unlike lengths, and advantages that differ from
    token to token.
    """
    data = []
    for group, (prompt_length, lengths) in enumerate(((9, (5, 1, 12)), (20, (3, 3)), (4, (1,)))):
        prompt = _tokens(0, 9, vocabulary)[:prompt_length] + _tokens(
            group, max(0, prompt_length - 9), vocabulary
        )
        for number, length in enumerate(lengths):
            drawn = _tokens(100 * group + number + 10, length, vocabulary)
            advantages = torch.randn(
                length, generator=torch.Generator().manual_seed(number)
            ).tolist()
            data.append(Datum(TurnId(f"t{group}"), prompt, drawn, tuple(advantages), None))
    return data


class _Transformers:
    """A transformers model with the adapter in its weights, differentiable by the adapter's
    matrices, a sequence at a time.
    """

    def __init__(self, folder: Path, adapter: Adapter) -> None:
        transformers = pytest.importorskip("transformers")
        transformers.utils.logging.disable_progress_bar()
        self._model: Any = (
            transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
            .eval()
            .requires_grad_(False)
        )
        self.leaves = {
            module: Pair(pair.a.clone().requires_grad_(), pair.b.clone().requires_grad_())
            for module, pair in adapter.pairs.items()
        }
        self._weights = {
            f"{module}.weight": self._model.get_parameter(f"{module}.weight")
            + adapter.scale * pair.b @ pair.a
            for module, pair in self.leaves.items()
        }

    def logprobs(self, prompt: tuple[int, ...], drawn: tuple[int, ...]) -> Tensor:
        ids = torch.tensor([prompt + drawn])
        logits = torch.func.functional_call(self._model, self._weights, (ids,)).logits[
            0, len(prompt) - 1 : -1
        ]
        found: Tensor = logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None]).squeeze(1)
        return found


def _gradients(learner: Learner, adapter: Adapter) -> dict[str, Pair]:
    """The accumulated gradient by module, through the only door there is: the state, read as an
    adapter's values are.
    """
    state = learner.state()
    learner.restore({**state, "adapter": state["gradient"]})
    gradients = learner.adapter()
    learner.restore(state)
    assert gradients.pairs.keys() == adapter.pairs.keys()
    return dict(gradients.pairs)


def _assert_same_as_transformers(folder: Path, vocabulary: int) -> None:
    learner = Learner(folder, rank=4, seed=0)
    adapter = _randomised(learner.adapter(), 0.02)
    learner.adopt(adapter)
    data = _data(vocabulary)
    reference = _Transformers(folder, adapter)
    expected = [reference.logprobs(datum.prompt, datum.tokens_T) for datum in data]
    for datum, mine, theirs in zip(
        data,
        learner.score([(datum.prompt, datum.tokens_T) for datum in data]),
        expected,
        strict=True,
    ):
        assert mine == pytest.approx(theirs.tolist(), abs=_TOLERANCE), datum.turn
    losses = [
        -(torch.tensor(datum.advantages_T) * found).sum()
        for datum, found in zip(data, expected, strict=True)
    ]
    total = torch.stack(losses).sum()
    total.backward()  # type: ignore[no-untyped-call]
    stats = learner.accumulate(data, Loss(LossKind.CROSS_ENTROPY))
    assert stats.loss == pytest.approx(float(total.detach()) / stats.tokens, abs=_TOLERANCE)
    for module, pair in _gradients(learner, adapter).items():
        for mine_side, leaf in zip(pair, reference.leaves[module], strict=True):
            assert leaf.grad is not None
            assert torch.allclose(
                mine_side, leaf.grad, rtol=1e-3, atol=1e-4 * float(leaf.grad.abs().max())
            ), module


def test_a_small_model_gives_the_numbers_and_gradients_of_transformers(tmp_path: Path) -> None:
    _assert_same_as_transformers(make_tiny_model(tmp_path / "tiny"), VOCABULARY)


@pytest.mark.nightly
def test_the_real_model_gives_the_numbers_and_gradients_of_transformers(folder: Path) -> None:
    _assert_same_as_transformers(folder, 49_152)


def test_running_each_layer_twice_changes_no_gradient(tmp_path: Path) -> None:
    from metaclaw.engine.training.packing import pack

    learner = Learner(make_tiny_model(tmp_path / "tiny"), rank=2, seed=1)
    learner.adopt(_randomised(learner.adapter(), 0.02))
    model, gradients = learner._model, []
    packed = pack(
        [(datum.prompt, datum.tokens_T) for datum in _data(VOCABULARY)], torch.device("cpu")
    )
    for recomputes in (False, True):
        model.parameters.gradient.zero_()
        model.hidden(packed, recomputes=recomputes).square().sum().backward()  # type: ignore[no-untyped-call]
        gradients.append(model.parameters.gradient.clone())
    assert torch.equal(gradients[0], gradients[1])
    assert float(gradients[0].abs().max()) > 0


@pytest.mark.filterwarnings(
    "ignore:mkldnn_matmul failed"
)  # a processor without bfloat16 says so, once
@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ),
    ],
)
def test_half_precision_stays_near_single_precision(tmp_path: Path, device: str) -> None:
    folder = make_tiny_model(tmp_path / "tiny")
    scores, gradients = [], []
    for place, dtype in (("cpu", "float32"), (device, "bfloat16")):
        learner = Learner(folder, rank=4, seed=0, device=place, dtype=dtype)
        adapter = _randomised(learner.adapter(), 0.02)
        learner.adopt(adapter)
        data = _data(VOCABULARY)
        scores.append(
            [
                value
                for row in learner.score([(d.prompt, d.tokens_T) for d in data])
                for value in row
            ]
        )
        learner.accumulate(data, Loss(LossKind.CROSS_ENTROPY))
        gradients.append(learner.state()["gradient"])
    apart = [abs(one - two) for one, two in zip(*scores, strict=True)]
    assert sum(apart) / len(apart) < 0.05
    assert torch.cosine_similarity(gradients[0], gradients[1], dim=0) > 0.99
