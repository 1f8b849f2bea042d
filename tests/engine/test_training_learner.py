"""The learner: what it draws it learns from, what it was it can become again, and what it
refuses.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Adam, Datum, Drawing, Loss, LossKind
from metaclaw.engine.training.learner import Learner
from metaclaw.engine.training.lora import Adapter, Pair
from metaclaw.errors import TrainingError
from tests.engine.tiny import make_tiny_model

_PROMPTS = ([5, 6, 7, 8], [9, 10, 11], [12] * 20)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("learner") / "tiny")


def _learner(tiny: Path, *, rank: int = 4, seed: int = 3) -> Learner:
    return Learner(tiny, rank=rank, seed=seed, threads=1)


def _drawn(learner: Learner, seed: int = 0) -> list[Datum]:
    """Rollouts as data: even tokens are good, odd ones are bad."""
    groups = learner.sample(_PROMPTS, Drawing(count=6, max_tokens=9, seed=seed))
    return [
        Datum(
            TurnId(f"t{number}"),
            tuple(prompt),
            rollout.tokens_T,
            _worth(rollout.tokens_T),
            rollout.logprobs_T,
        )
        for number, (prompt, group) in enumerate(zip(_PROMPTS, groups, strict=True))
        for rollout in group
    ]


def _worth(tokens_T: tuple[int, ...]) -> tuple[float, ...]:
    return tuple(1.0 if token % 2 == 0 else -1.0 for token in tokens_T)


def _step(learner: Learner, seed: int, loss: Loss) -> None:
    data = _drawn(learner, seed)
    learner.accumulate(data[:9], loss)
    learner.accumulate(data[9:], loss)
    learner.apply(Adam(learning_rate=0.02), float(sum(len(datum.tokens_T) for datum in data)))


def _equal(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_what_is_drawn_has_the_log_probabilities_that_training_sees(tiny: Path) -> None:
    learner = _learner(tiny)
    _step(learner, 1, Loss())
    data = _drawn(learner)
    for datum, scores in zip(
        data, learner.score([(d.prompt, d.tokens_T) for d in data]), strict=True
    ):
        assert datum.logprobs_T == pytest.approx(scores, abs=1e-4)
    stats = learner.accumulate(data, Loss())
    assert stats.ratio_mean == pytest.approx(1.0, abs=1e-4)


def test_tokens_that_are_rewarded_become_likelier(tiny: Path) -> None:
    learner = _learner(tiny)
    shares = []
    for seed in range(9):
        values = [value for datum in _drawn(learner, seed) for value in datum.advantages_T]
        shares.append(values.count(1.0) / len(values))
        _step(learner, seed, Loss())
    assert sum(shares[-3:]) / 3 > sum(shares[:2]) / 2 + 0.2


def test_a_learner_that_goes_on_from_its_state_is_the_one_that_was_never_interrupted(
    tiny: Path,
) -> None:
    whole, cut = _learner(tiny), _learner(tiny)
    for learner in (whole, cut):
        _step(learner, 1, Loss())
    data = _drawn(whole)
    for learner in (whole, cut):
        learner.accumulate(data[:9], Loss())
    resumed = _learner(tiny, seed=99)
    resumed.restore(cut.state())
    for learner in (whole, resumed):
        learner.accumulate(data[9:], Loss())
        learner.apply(Adam(), 50.0)
        _step(learner, 2, Loss(LossKind.CROSS_ENTROPY))
    assert _equal(whole.state(), resumed.state())
    assert _drawn(whole, 7) == _drawn(resumed, 7)
    assert int(whole.state()["steps"]) == 3


def test_pieces_add_up_to_the_whole(tiny: Path) -> None:
    one, two = _learner(tiny), _learner(tiny)
    data = _drawn(one)
    one.accumulate(data, Loss())
    for start in range(0, len(data), 5):
        two.accumulate(data[start : start + 5], Loss())
    assert torch.allclose(one.state()["gradient"], two.state()["gradient"], atol=1e-5)


def test_the_distance_is_measured_to_the_untrained_weights(tiny: Path) -> None:
    learner = _learner(tiny)
    data = _drawn(learner)
    assert learner.accumulate(data, Loss()).kl is None
    assert learner.accumulate(data, Loss(), measures_kl=True).kl == pytest.approx(0.0, abs=1e-6)
    for seed in range(3):
        _step(learner, seed, Loss())
    far = learner.accumulate(data, Loss(), measures_kl=True).kl
    assert far is not None
    assert far > 1e-4
    learner.adopt(None)
    assert learner.accumulate(data, Loss(), measures_kl=True).kl == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("rank", [2, 4, 9])
def test_an_adapter_of_any_rank_draws_and_the_own_one_comes_back_unchanged(
    rank: int, tiny: Path
) -> None:
    learner, other = _learner(tiny), _learner(tiny, rank=rank, seed=8)
    _step(other, 4, Loss())
    _step(learner, 5, Loss())
    learner.accumulate(_drawn(learner), Loss())
    before, mine = learner.state(), _drawn(learner, 6)
    with learner.using(other.adapter()):
        assert _drawn(learner, 6) == _drawn(other, 6)
    assert _equal(learner.state(), before)
    assert _drawn(learner, 6) == mine


def test_an_adapter_with_more_ranks_cannot_be_taught(tiny: Path) -> None:
    learner, wide = _learner(tiny), _learner(tiny, rank=9)
    with pytest.raises(TrainingError, match="rank is 9"):
        learner.adopt(wide.adapter())


def test_an_adapter_with_fewer_ranks_goes_on_being_taught(tiny: Path) -> None:
    learner, thin = _learner(tiny), _learner(tiny, rank=2)
    _step(thin, 4, Loss())
    learner.adopt(thin.adapter())
    pairs = [(datum.prompt, datum.tokens_T) for datum in _drawn(thin)]
    for mine, theirs in zip(learner.score(pairs), thin.score(pairs), strict=True):
        assert mine == pytest.approx(theirs, abs=1e-4)
    _step(learner, 5, Loss())


def _datum(**changes: object) -> Datum:
    return replace(Datum(TurnId("turn-7"), (3, 4), (5, 6), (1.0, 1.0), (-1.0, -1.0)), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("datum", "word"),
    [
        (_datum(prompt=(3,) * 127), "turn-7"),
        (_datum(tokens_T=(5, 64)), "turn-7.*vocabulary"),
        (_datum(prompt=(-1, 3)), "turn-7.*vocabulary"),
        (_datum(logprobs_T=None), "turn-7.*log-probabilities"),
        (_datum(logprobs_T=(-1.0, float("nan"))), "turn-7.*finite"),
        (_datum(logprobs_T=(-2000.0, -1.0), advantages_T=(-1.0, 1.0)), "not finite"),
    ],
)
def test_a_datum_that_cannot_be_learned_from_is_refused_by_its_turn_and_changes_nothing(
    tiny: Path, datum: Datum, word: str
) -> None:
    learner = _learner(tiny)
    learner.accumulate([_datum()], Loss())
    before = learner.state()
    with pytest.raises(TrainingError, match=word):
        learner.accumulate([_datum(), datum], Loss())
    assert _equal(learner.state(), before)


def test_the_longest_sequence_that_fits_is_learned_from_as_it_is(tiny: Path) -> None:
    learner = _learner(tiny)
    assert learner.accumulate([_datum(prompt=(3,) * 126)], Loss()).tokens == 2
    assert len(learner.score([([3] * 126, [4, 5])])[0]) == 2
    with pytest.raises(TrainingError, match="pair 1"):
        learner.score([([3], [4]), ([3] * 127, [4, 5])])


def test_nothing_to_learn_from_is_no_piece(tiny: Path) -> None:
    with pytest.raises(TrainingError, match="nothing"):
        _learner(tiny).accumulate([], Loss())


def test_scoring_nothing_gives_nothing_and_keeps_the_order(tiny: Path) -> None:
    learner = _learner(tiny)
    scores = learner.score([([3, 4], []), ([5], [6, 7]), ([3, 4], [8])])
    assert [len(row) for row in scores] == [0, 2, 1]
    assert scores[1] == pytest.approx(learner.score([([5], [6, 7])])[0], abs=1e-5)
    assert learner.score([]) == []
    assert learner.score([([3], [])]) == [()]


@pytest.mark.parametrize(
    ("name", "tensor", "word"),
    [
        ("adapter", torch.zeros(3), "adapter"),
        ("moment_1", None, "consist"),
        ("steps", None, "consist"),
    ],
)
def test_a_state_of_another_learner_is_refused_and_changes_nothing(
    tiny: Path, name: str, tensor: Tensor | None, word: str
) -> None:
    learner = _learner(tiny)
    before = learner.state()
    state = {key: value for key, value in before.items() if key != name} | (
        {} if tensor is None else {name: tensor}
    )
    with pytest.raises(TrainingError, match=word):
        learner.restore(state)
    assert _equal(learner.state(), before)


def test_a_step_without_a_finite_gradient_is_refused_and_changes_nothing(tiny: Path) -> None:
    learner = _learner(tiny)
    state = learner.state()
    state["gradient"][0] = 3e38
    state["gradient"][1] = 3e38
    learner.restore(state)
    with pytest.raises(TrainingError, match="not finite"):
        learner.apply(Adam(), 1e-9)
    assert _equal(learner.state(), state)


def test_the_same_seed_gives_the_same_fresh_adapter_and_another_one_another(tiny: Path) -> None:
    one, two, three = (_learner(tiny, seed=seed).adapter() for seed in (3, 3, 4))
    module = "model.layers.1.mlp.down_proj"
    assert torch.equal(one.pairs[module].a, two.pairs[module].a)
    assert not torch.equal(one.pairs[module].a, three.pairs[module].a)
    assert all(not pair.b.any() for pair in one.pairs.values())
    assert one.scale == 2.0


def test_an_adapter_for_another_model_is_refused(tiny: Path) -> None:
    learner = _learner(tiny)
    with pytest.raises(TrainingError, match="differ"):
        learner.adopt(
            Adapter(
                4, 8.0, {"model.layers.0.mlp.up_proj": Pair(torch.zeros(4, 32), torch.zeros(48, 4))}
            )
        )
