"""Rollouts: exact log-probabilities, random numbers of their own, and the same answers whoever is
drawn beside them.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.scoring import fuse_tensors, read_tensors, score, with_cache
from metaclaw.domain.training import Drawing, Rollout
from metaclaw.engine.attention import Span
from metaclaw.engine.checkpoint import Shape, read_shape
from metaclaw.engine.served_model import ServedModel
from metaclaw.engine.stack import Adapt, Attend, Stack
from metaclaw.engine.training.rollout import Rollouts
from metaclaw.engine.vocabulary import Vocabulary
from metaclaw.errors import EngineError, TrainingError
from tests.engine.tiny import END, VOCABULARY, make_tiny_model

_TOLERANCE = 1e-4


def _tokens(seed: int, count: int) -> list[int]:
    return torch.randint(
        3, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed)
    ).tolist()


_BEGINNING = _tokens(1, 30)
_PROMPTS = [
    [*_BEGINNING, *_tokens(2, 5)],
    _tokens(3, 70),
    [*_BEGINNING, *_tokens(4, 20)],
    [5],
    [*_BEGINNING, *_tokens(2, 5)],
    [*_BEGINNING[:10], 3],
]
"""Some begin alike, two are the same, one is a single token."""


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)  # for products this small a second thread only waits


@pytest.fixture(scope="module")
def folder_of_tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def shape(folder_of_tiny: Path) -> Shape:
    return replace(read_shape(folder_of_tiny), positions=1024)


@pytest.fixture(scope="module")
def tensors(folder_of_tiny: Path) -> dict[str, Tensor]:
    return read_tensors(folder_of_tiny, torch.float32)


@pytest.fixture(params=[False, True], ids=["leaving", "static"])
def is_static(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def _words(tokens: Sequence[int]) -> str:
    return " ".join(map(str, tokens))


def _make(
    shape: Shape, tensors: dict[str, Tensor], is_static: bool, dtype: torch.dtype = torch.float32
) -> Rollouts:
    return _draw_from(Stack(shape, fuse_tensors(shape, tensors, dtype=dtype)), is_static)


def _draw_from(stack: Stack, is_static: bool) -> Rollouts:
    return Rollouts(stack, _words, static=is_static)


def _assert_teacher_agrees(
    model: ServedModel, prompts: Sequence[Sequence[int]], drawn: list[list[Rollout]]
) -> None:
    for prompt, group in zip(prompts, drawn, strict=True):
        for rollout in group:
            assert rollout.logprobs_T == pytest.approx(
                score(model, prompt, rollout.tokens_T), abs=_TOLERANCE
            )


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_logprobs_are_the_teacher_forced_ones_at_temperature_1(
    shape: Shape, tensors: dict[str, Tensor], is_static: bool, temperature: float
) -> None:
    drawn = _make(shape, tensors, is_static).sample(_PROMPTS, Drawing(3, 9, temperature, seed=5))
    assert [len(group) for group in drawn] == [3] * len(_PROMPTS)
    _assert_teacher_agrees(ServedModel(shape, tensors, 1), _PROMPTS, drawn)


def test_logprobs_stay_exact_while_many_rollouts_leave_at_different_times(
    shape: Shape, tensors: dict[str, Tensor], is_static: bool
) -> None:
    hasty = replace(shape, end_ids=frozenset(range(2, VOCABULARY, 9)))
    drawn = _make(hasty, tensors, is_static).sample(_PROMPTS, Drawing(12, 40, seed=2))
    lengths = {len(rollout.tokens_T) for group in drawn for rollout in group}
    assert len(lengths) > 10
    assert max(lengths) > 20
    _assert_teacher_agrees(ServedModel(hasty, tensors, 1), _PROMPTS, drawn)


def test_a_long_prompt_is_read_in_chunks_and_says_the_same(
    shape: Shape, tensors: dict[str, Tensor], is_static: bool
) -> None:
    long = _tokens(8, 600)
    prompts = [long, [*long[:400], *_tokens(9, 300)], [7]]
    _assert_teacher_agrees(
        ServedModel(shape, tensors, 1),
        prompts,
        _make(shape, tensors, is_static).sample(prompts, Drawing(2, 80)),
    )


def test_short_prompts_that_begin_alike_are_read_together_and_say_the_same(
    shape: Shape, tensors: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    begins = _tokens(3, 60)
    prompts = [
        [*begins[: 60 - number % 3], *_tokens(100 + number, 5 + number % 4)] for number in range(40)
    ]
    rollouts = _make(shape, tensors, is_static=False)
    _assert_teacher_agrees(
        ServedModel(shape, tensors, 1), prompts, rollouts.sample(prompts, Drawing(2, 8))
    )
    passes: list[int] = []

    def run(
        stack: Stack,
        rows: Tensor,
        rotations: Tensor,
        attend: Attend,
        adapt: Adapt | None = None,
    ) -> Tensor:
        passes.append(len(rows))
        return plain(stack, rows, rotations, attend, adapt)

    plain = Stack.run
    monkeypatch.setattr(Stack, "run", run)
    rollouts.sample(prompts, Drawing(1, 1))
    assert 1 <= len(passes) <= 3, (
        "some 350 tokens in passes of 256, and not one pass for each prompt"
    )


def test_both_ways_of_decoding_draw_the_same_tokens(
    shape: Shape, tensors: dict[str, Tensor]
) -> None:
    leaving, static = (
        _make(shape, tensors, way).sample(_PROMPTS, Drawing(4, 30, seed=11))
        for way in (False, True)
    )
    assert _ids(leaving) == _ids(static)


def test_the_same_call_gives_the_same_rollouts_bit_for_bit(
    shape: Shape, tensors: dict[str, Tensor], is_static: bool
) -> None:
    rollouts = _make(shape, tensors, is_static)
    first = rollouts.sample(_PROMPTS, Drawing(3, 12, 0.8, seed=1))
    rollouts.sample(_PROMPTS[:2], Drawing(5, 20, seed=9))
    assert rollouts.sample(_PROMPTS, Drawing(3, 12, 0.8, seed=1)) == first
    assert _make(shape, tensors, is_static).sample(_PROMPTS, Drawing(3, 12, 0.8, seed=1)) == first


def test_company_changes_nothing_beyond_rounding(
    shape: Shape, tensors: dict[str, Tensor], is_static: bool
) -> None:
    rollouts = _make(shape, tensors, is_static)
    drawing = Drawing(4, 16, seed=4)
    among = rollouts.sample(_PROMPTS, drawing)[1]
    for others in (
        [_tokens(20, 3), _PROMPTS[1]],
        [_PROMPTS[2], _PROMPTS[1], _PROMPTS[0], _tokens(21, 200)],
    ):
        alone = rollouts.sample(others, drawing)[1]
        assert _ids([alone]) == _ids([among])
        for one, other in zip(alone, among, strict=True):
            assert one.logprobs_T == pytest.approx(other.logprobs_T, abs=_TOLERANCE)


def test_a_rollouts_numbers_come_from_the_seed_its_prompts_index_and_its_own(
    shape: Shape, tensors: dict[str, Tensor], is_static: bool
) -> None:
    rollouts = _make(shape, tensors, is_static)
    same = rollouts.sample([_PROMPTS[0]] * 3, Drawing(3, 12, seed=1))
    assert len({rollout.tokens_T for group in same for rollout in group}) == 9
    assert _ids(rollouts.sample([_PROMPTS[0]], Drawing(2, 12, seed=1))) == _ids([same[0][:2]])
    assert _ids(rollouts.sample([_PROMPTS[0]], Drawing(3, 12, seed=2))) != _ids(same[:1])


def test_greedy_takes_the_likeliest_token_every_time(
    shape: Shape, tensors: dict[str, Tensor], is_static: bool
) -> None:
    model = ServedModel(shape, tensors, 1)
    drawn = _make(shape, tensors, is_static).sample(_PROMPTS, Drawing(2, 8, 0.0))
    for prompt, (one, other) in zip(_PROMPTS, drawn, strict=True):
        assert one == other
        tokens = [*prompt, *one.tokens_T[:-1]]
        logits = with_cache(model, 1, len(tokens)).run(
            [Span(0, 0, tokens)],
            range(len(prompt) - 1, len(tokens)),
        )
        assert one.tokens_T == tuple(logits.argmax(-1).tolist())


def test_a_rollout_ends_with_its_first_end_token_or_where_its_room_ends(
    shape: Shape, tensors: dict[str, Tensor], is_static: bool
) -> None:
    ends = frozenset({END, 7, 11})
    drawn = _make(replace(shape, end_ids=ends), tensors, is_static).sample(
        _PROMPTS, Drawing(16, 20, seed=6)
    )
    rollouts = [rollout for group in drawn for rollout in group]
    assert {rollout.is_whole for rollout in rollouts} == {True, False}
    for rollout in rollouts:
        *body, last = rollout.tokens_T
        assert not ends & set(body)
        assert rollout.is_whole == (last in ends)
        assert rollout.is_whole or len(rollout.tokens_T) == 20
        assert rollout.text == _words(body if rollout.is_whole else rollout.tokens_T)


def test_a_single_token_is_a_rollout(
    shape: Shape, tensors: dict[str, Tensor], is_static: bool
) -> None:
    (group,) = _make(shape, tensors, is_static).sample([[5, 6]], Drawing(4, 1, seed=3))
    assert [len(rollout.tokens_T) for rollout in group] == [1] * 4


def test_a_group_larger_than_any_wave_is_drawn_in_several(
    shape: Shape, tensors: dict[str, Tensor], is_static: bool
) -> None:
    rollouts = _make(shape, tensors, is_static)
    prompts = [_PROMPTS[0], _PROMPTS[5]]
    large = rollouts.sample(prompts, Drawing(1100, 3, seed=8))
    assert [len(group) for group in large] == [1100, 1100]
    small = rollouts.sample(prompts, Drawing(3, 3, seed=8))
    assert [_ids([group[:3]]) for group in large] == [_ids([group]) for group in small]
    _assert_teacher_agrees(ServedModel(shape, tensors, 1), prompts, [group[-2:] for group in large])


def test_many_prompts_come_back_in_their_order(
    shape: Shape, tensors: dict[str, Tensor], is_static: bool
) -> None:
    prompts = [_tokens(seed, 1 + seed * 7 % 40) for seed in range(270)]
    drawn = _make(shape, tensors, is_static).sample(prompts, Drawing(1, 2, seed=3))
    _assert_teacher_agrees(ServedModel(shape, tensors, 1), prompts[::5], drawn[::5])


def test_no_prompts_give_no_rollouts(
    shape: Shape, tensors: dict[str, Tensor], is_static: bool
) -> None:
    assert _make(shape, tensors, is_static).sample([], Drawing(2, 2)) == []


def test_new_weights_are_drawn_from_at_once(
    shape: Shape, tensors: dict[str, Tensor], is_static: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    others = {
        name: tensor + 0.1 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in tensors.items()
    }
    held = {name: weight.clone() for name, weight in fuse_tensors(shape, tensors).items()}
    rollouts = _draw_from(Stack(shape, held), is_static)

    def change(weights: dict[str, Tensor]) -> None:
        for name, weight in fuse_tensors(shape, weights).items():
            if name[0].isdigit():
                held[name].copy_(weight)
        rollouts.refresh()

    before = rollouts.sample(_PROMPTS, Drawing(2, 8))
    others |= {name: tensor for name, tensor in tensors.items() if ".layers." not in name}
    change(others)
    after = rollouts.sample(_PROMPTS, Drawing(2, 8))
    assert after == _make(shape, others, is_static).sample(_PROMPTS, Drawing(2, 8))
    assert _ids(after) != _ids(before)
    change(tensors)
    assert rollouts.sample(_PROMPTS, Drawing(2, 8)) == before


def test_weights_may_come_in_another_precision(
    shape: Shape, tensors: dict[str, Tensor], is_static: bool
) -> None:
    doubled = {name: tensor.double() for name, tensor in tensors.items()}
    assert _make(shape, doubled, is_static).sample(_PROMPTS, Drawing(2, 4)) == _make(
        shape, tensors, is_static
    ).sample(_PROMPTS, Drawing(2, 4))


def test_weights_that_would_be_run_wrong_are_refused(
    shape: Shape, tensors: dict[str, Tensor], is_static: bool
) -> None:
    with pytest.raises(EngineError, match="lack the tensor"):
        _make(shape, {}, is_static)
    for stranger in (replace(shape, has_biases=True), replace(shape, has_head_norms=True)):
        with pytest.raises(EngineError, match="lack the tensor"):
            _make(stranger, tensors, is_static)


def test_weights_that_give_no_distribution_are_an_error_and_not_a_rollout(
    shape: Shape, tensors: dict[str, Tensor], is_static: bool
) -> None:
    poisoned = tensors | {"model.norm.weight": torch.full((shape.width,), float("nan"))}
    with pytest.raises(TrainingError, match="distribution"):
        _make(shape, poisoned, is_static).sample([[5]], Drawing(2, 4))


@pytest.mark.parametrize(
    ("prompt", "word"),
    [
        ([], "prompt 1: 0 tokens"),
        ([5] * 1020, "1020 tokens"),
        ([VOCABULARY], "vocabulary"),
        ([-1], "vocabulary"),
    ],
)
def test_a_prompt_that_cannot_be_drawn_from_is_named(
    shape: Shape, tensors: dict[str, Tensor], is_static: bool, prompt: list[int], word: str
) -> None:
    with pytest.raises(TrainingError, match=word):
        _make(shape, tensors, is_static).sample([[5], prompt], Drawing(1, 5))


@pytest.mark.filterwarnings(
    "ignore:mkldnn_matmul failed"
)  # a processor without bfloat16 says so, once
def test_half_precision_keeps_logprobs_close(
    shape: Shape, tensors: dict[str, Tensor], is_static: bool
) -> None:
    drawn = _make(shape, tensors, is_static, torch.bfloat16).sample(
        _PROMPTS, Drawing(4, 12, seed=3)
    )
    model = ServedModel(shape, tensors, 1)
    distances = [
        abs(one - other)
        for prompt, group in zip(_PROMPTS, drawn, strict=True)
        for rollout in group
        for one, other in zip(
            rollout.logprobs_T, score(model, prompt, rollout.tokens_T), strict=True
        )
    ]
    assert sum(distances) / len(distances) < 0.05


@pytest.mark.nightly
def test_the_real_model_says_what_it_would_say_to_a_teacher(
    folder: Path, llama: ServedModel, vocabulary: Vocabulary
) -> None:
    prompts = [
        vocabulary.encode(text) for text in ("The capital of France is", "The capital of Norway is")
    ]
    held = fuse_tensors(llama.shape, read_tensors(folder, torch.float32))
    rollouts = Rollouts(Stack(llama.shape, held), vocabulary.decode)
    drawn = rollouts.sample(prompts, Drawing(3, 6, seed=1))
    _assert_teacher_agrees(llama, prompts, drawn)
    greedy = rollouts.sample(prompts, Drawing(1, 2, 0.0))
    assert "Paris" in greedy[0][0].text
    assert "Oslo" in greedy[1][0].text


def _ids(drawn: list[list[Rollout]]) -> list[list[tuple[int, ...]]]:
    return [[rollout.tokens_T for rollout in group] for group in drawn]
