"""Members of the Llama family with biases or norms of single heads: drawn from, scored and taught as
transformers would, in PEFT's format.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Adam, Datum, Drawing, Loss, LossKind, Rollout
from metaclaw.engine.stack import Stack
from metaclaw.engine.training.learner import Learner
from metaclaw.engine.training.lora import Adapter, Pair, read_adapter, write_adapter
from metaclaw.engine.training.rollout import Rollouts
from metaclaw.errors import EngineError, TrainingError

_WORDS = 48
_END = 2
_PROMPTS = [[5, 6, 7, 8], [9, 3, 4], [5, 6, 7, 8, 11, 12, 13]]
_SIZES = {
    "vocab_size": _WORDS,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def _transformers() -> Any:
    # Slow to import, and every worker of the suite reads this file.
    return pytest.importorskip("transformers")


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=["qwen2", "qwen3", "mistral"])
def stranger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = _SIZES | {
        "eos_token_id": _END,
        "bos_token_id": 1,
        "pad_token_id": 0,
        "max_position_embeddings": 64,
    }
    settings |= {"num_key_value_heads": 2, "head_dim": 8}
    torch.manual_seed(1)
    model = _transformers().AutoModelForCausalLM.from_config(
        _transformers().AutoConfig.for_model(request.param, **settings)
    )
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    folder = tmp_path_factory.mktemp("stranger") / str(request.param)
    model.save_pretrained(folder)
    _write_words(folder)
    return folder


def _write_words(folder: Path) -> None:
    Tokenizer(WordLevel({f"w{number}": number for number in range(_WORDS)}, unk_token="w0")).save(
        str(folder / "tokenizer.json")
    )
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    )


@pytest.fixture
def learner(stranger: Path) -> Learner:
    return Learner(stranger, rank=4, seed=3)


def _changed(learner: Learner, size: float = 0.3) -> Adapter:
    generator = torch.Generator().manual_seed(5)
    adapter = learner.adapter()
    pairs = {
        name: Pair(a, size * torch.randn(b.shape, generator=generator))
        for name, (a, b) in adapter.pairs.items()
    }
    return replace(adapter, pairs=pairs)


def _data(drawn: list[list[Rollout]]) -> list[Datum]:
    return [
        Datum(
            TurnId(f"t{number}"),
            tuple(prompt),
            rollout.tokens_T,
            (advantage,) * len(rollout.tokens_T),
            rollout.logprobs_T,
        )
        for number, (prompt, group) in enumerate(zip(_PROMPTS, drawn, strict=True))
        for advantage, rollout in zip((1.0, -0.5, -0.5), group, strict=True)
    ]


def test_logprobs_are_those_of_scoring_and_of_plain_transformers(
    stranger: Path, learner: Learner
) -> None:
    learner.adopt(_changed(learner))
    drawn = learner.sample(_PROMPTS, Drawing(4, 10, seed=2))
    pairs = [
        (prompt, rollout.tokens_T)
        for prompt, group in zip(_PROMPTS, drawn, strict=True)
        for rollout in group
    ]
    found = [rollout.logprobs_T for group in drawn for rollout in group]
    for one, other in zip(found, learner.score(pairs), strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    learner.adopt(None)
    plain = _transformers().AutoModelForCausalLM.from_pretrained(stranger).eval()
    for (prompt, tokens), scores in zip(pairs, learner.score(pairs), strict=True):
        with torch.no_grad():
            logits = plain(torch.tensor([[*prompt, *tokens[:-1]]])).logits[0, len(prompt) - 1 :]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
        assert scores == pytest.approx(expected.tolist(), abs=1e-4)


def test_rollouts_end_with_an_end_token_and_repeat_with_their_seed(learner: Learner) -> None:
    drawn = learner.sample(_PROMPTS, Drawing(24, 30, seed=1))
    rollouts = [rollout for group in drawn for rollout in group]
    assert {rollout.is_whole for rollout in rollouts} == {True, False}
    for rollout in rollouts:
        assert _END not in rollout.tokens_T[:-1]
        assert rollout.is_whole == (rollout.tokens_T[-1] == _END)
        body = rollout.tokens_T[:-1] if rollout.is_whole else rollout.tokens_T
        assert rollout.text == " ".join(f"w{token}" for token in body)
    assert learner.sample(_PROMPTS, Drawing(24, 30, seed=1)) == drawn
    assert learner.sample(_PROMPTS, Drawing(24, 30, seed=2)) != drawn
    for one, other in learner.sample(_PROMPTS, Drawing(2, 5, 0.0)):
        assert one.tokens_T == other.tokens_T
        # On some processors rows of one batch differ in their last digit.
        assert one.logprobs_T == pytest.approx(other.logprobs_T, abs=1e-5)


def test_both_decoders_draw_the_same_from_weights_that_change_in_place(learner: Learner) -> None:
    static = Rollouts(Stack(learner.shape, learner._model.fused()), lambda tokens: "", static=True)
    for size in (0.1, 0.3):
        learner.adopt(_changed(learner, size))
        static.refresh()
        one, other = (some.sample(_PROMPTS, Drawing(4, 10, seed=2)) for some in (learner, static))
        for mine, theirs in zip(one, other, strict=True):
            assert [drawn.tokens_T for drawn in mine] == [drawn.tokens_T for drawn in theirs]
            for here, there in zip(mine, theirs, strict=True):
                assert here.logprobs_T == pytest.approx(there.logprobs_T, abs=1e-4)


def test_rewarded_rollouts_become_likelier_and_the_others_less_so(learner: Learner) -> None:
    drawn = learner.sample(_PROMPTS, Drawing(3, 6, seed=4))
    data = _data(drawn)
    before = learner.score([(datum.prompt, datum.tokens_T) for datum in data])
    stats = learner.accumulate(data, Loss(), measures_kl=True)
    assert stats.tokens == sum(len(datum.tokens_T) for datum in data)
    assert stats.ratio_mean == pytest.approx(1.0, abs=1e-4)
    assert stats.kl == pytest.approx(0.0, abs=1e-6)
    assert learner.apply(Adam(learning_rate=5e-3), stats.tokens).step == 1
    after = learner.score([(datum.prompt, datum.tokens_T) for datum in data])
    gain = sum(
        datum.advantages_T[0] * (sum(new) - sum(old))
        for datum, old, new in zip(data, before, after, strict=True)
    )
    assert gain > 0


def test_the_gradient_is_the_slope_of_the_loss(learner: Learner) -> None:
    learner.adopt(_changed(learner, 0.1))
    data = [
        replace(datum, logprobs_T=None)
        for datum in _data(learner.sample(_PROMPTS, Drawing(3, 6, seed=4)))
    ]
    loss = Loss(LossKind.CROSS_ENTROPY)
    learner.accumulate(data, loss)
    state = learner.state()
    direction = torch.randn(state["adapter"].shape, generator=torch.Generator().manual_seed(0))
    found = []
    for step in (1e-3, -1e-3):
        learner.restore(state | {"adapter": state["adapter"] + step * direction})
        stats = learner.accumulate(data, loss)
        assert stats.loss is not None
        found.append(stats.loss * stats.tokens)
    slope = float(state["gradient"] @ direction)
    assert (found[0] - found[1]) / 2e-3 == pytest.approx(slope, rel=0.02, abs=0.02)


def test_the_distance_to_the_untrained_model_is_seen(learner: Learner) -> None:
    data = _data(learner.sample(_PROMPTS, Drawing(3, 6, seed=4)))
    learner.adopt(_changed(learner))
    assert learner.accumulate(data, Loss()).kl is None
    kl = learner.accumulate(data, Loss(), measures_kl=True).kl
    assert kl is not None
    assert kl > 1e-3


def test_going_on_from_a_state_equals_never_having_stopped(stranger: Path) -> None:
    def teach(learner: Learner, data: list[Datum]) -> None:
        learner.accumulate(data, Loss())
        learner.apply(Adam(learning_rate=1e-2), 30)

    one, other = (Learner(stranger, rank=4, seed=3) for _ in range(2))
    data = _data(one.sample(_PROMPTS, Drawing(3, 6, seed=4)))
    teach(one, data)
    one.accumulate(data[:3], Loss())
    other.restore(one.state())
    teach(one, data)
    teach(other, data)
    assert all(torch.equal(value, other.state()[name]) for name, value in one.state().items())
    with pytest.raises(TrainingError, match="not finite"):
        other.restore(
            one.state() | {"gradient": torch.full_like(one.state()["gradient"], float("inf"))}
        )
    with pytest.raises(TrainingError, match="nothing"):
        other.restore({})


def test_an_adapter_travels_in_pefts_format(
    stranger: Path, learner: Learner, tmp_path: Path
) -> None:
    changed = _changed(learner)
    write_adapter(tmp_path / "adapter", changed, str(stranger))
    learner.adopt(read_adapter(tmp_path / "adapter"))
    ours = learner.score([(_PROMPTS[0], [9, 8, 7])])[0]
    peft = pytest.importorskip("peft")
    plain = _transformers().AutoModelForCausalLM.from_pretrained(stranger)
    theirs = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter").eval()
    with torch.no_grad():
        logits = theirs(torch.tensor([[*_PROMPTS[0], 9, 8]])).logits[0, 3:]
    expected = logits.log_softmax(-1).gather(1, torch.tensor([[9], [8], [7]])).squeeze(1)
    assert ours == pytest.approx(expected.tolist(), abs=1e-4)


def _tokens_beyond(learner: Learner) -> object:
    return learner.sample([[5], [_WORDS]], Drawing(1, 2))


def _too_long(learner: Learner) -> object:
    return learner.score([([5] * 60, [6] * 5)])


def _nothing(learner: Learner) -> object:
    return learner.accumulate([], Loss())


def _without_logprobs(learner: Learner) -> object:
    return learner.accumulate([Datum(TurnId("t9"), (5,), (6,), (1.0,), None)], Loss())


def _another_models(learner: Learner) -> None:
    learner.adopt(Adapter(4, 8.0, {"elsewhere": Pair(torch.zeros(4, 3), torch.zeros(3, 4))}))


@pytest.mark.parametrize(
    ("do", "word"),
    [
        (_tokens_beyond, "prompt 1 holds a token outside"),
        (_too_long, "pair 0: 65 tokens"),
        (_nothing, "nothing to learn"),
        (_without_logprobs, "turn t9 has no log-probabilities"),
        (_another_models, "differ in"),
    ],
)
def test_what_cannot_be_done_is_refused_and_changes_nothing(
    learner: Learner, do: Callable[[Learner], object], word: str
) -> None:
    before = learner.state()
    with pytest.raises(TrainingError, match=word):
        do(learner)
    assert all(torch.equal(value, before[name]) for name, value in learner.state().items())


def test_a_loss_that_is_not_finite_accumulates_nothing(learner: Learner) -> None:
    good = _data(learner.sample(_PROMPTS, Drawing(3, 6, seed=4)))
    learner.accumulate(good, Loss())
    before = learner.state()
    bad = replace(good[-1], logprobs_T=(-1e30,) * len(good[-1].tokens_T))
    with pytest.raises(TrainingError, match="not finite"):
        learner.accumulate([*good[:-1], bad], Loss())
    assert all(torch.equal(value, before[name]) for name, value in learner.state().items())


def test_a_model_of_another_family_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt_neox"}))
    with pytest.raises(EngineError, match="gpt_neox"):
        Learner(tmp_path, rank=4, seed=0)


def test_a_pair_with_nothing_drawn_scores_nothing(learner: Learner) -> None:
    scores = learner.score([(_PROMPTS[0], []), (_PROMPTS[0], [7]), (_PROMPTS[1], [])])
    assert [len(score) for score in scores] == [0, 1, 0]
