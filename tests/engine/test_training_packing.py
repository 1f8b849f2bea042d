"""How sequences are laid out for one pass: nothing is lost, nothing repeated but what must be, and every row knows its past."""

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.engine.training.packing import Packed, pack, portions

_CPU = torch.device("cpu")
_prompts = st.lists(st.integers(0, 5), min_size=1, max_size=4)
_sequences = st.lists(st.tuples(_prompts, st.lists(st.integers(0, 9), max_size=5)), min_size=1, max_size=8)


def _pasts(packed: Packed) -> list[list[int]]:
    """For each row the tokens it may see, itself included, read off the spans alone."""
    ids = packed.ids.tolist()
    seen = [ids[begin : row + 1] for begin, end in pairwise(packed.prompts.bounds) for row in range(begin, end)]
    border = packed.prompts.rows
    prompt_of = [
        ids[begin:end]
        for (begin, end), (first, last) in zip(pairwise(packed.asked.bounds), pairwise(packed.joined.bounds), strict=True)
        for _ in range(first, last)
    ]
    own = [ids[border + begin : border + row + 1] for begin, end in pairwise(packed.tails.bounds) for row in range(begin, end)]
    return seen + [before + after for before, after in zip(prompt_of, own, strict=True)]


@given(_sequences)
def test_every_drawn_token_is_predicted_by_a_row_that_sees_exactly_what_came_before_it(
    sequences: list[tuple[list[int], list[int]]],
) -> None:
    packed = pack(sequences, _CPU)
    expected = [(prompt + drawn[:place], token) for prompt, drawn in sequences for place, token in enumerate(drawn)]
    pasts = _pasts(packed)
    found = [(pasts[row], token) for row, token in zip(packed.rows_D.tolist(), packed.targets_D.tolist(), strict=True)]
    assert found == expected
    assert packed.positions.tolist() == [len(past) - 1 for past in pasts]


@given(_sequences)
def test_a_prompt_is_laid_out_once_and_a_tail_without_its_last_token(sequences: list[tuple[list[int], list[int]]]) -> None:
    packed = pack(sequences, _CPU)
    assert packed.prompts.rows == sum(len(prompt) for prompt in {tuple(prompt) for prompt, _ in sequences})
    assert packed.tails.rows == sum(max(0, len(drawn) - 1) for _, drawn in sequences) == packed.joined.rows
    assert len(packed.ids) == packed.prompts.rows + packed.tails.rows
    assert all(length > 0 for span in (packed.tails, packed.joined) for length in _lengths(span.bounds))


def _lengths(bounds: tuple[int, ...]) -> list[int]:
    return [end - begin for begin, end in pairwise(bounds)]


@given(_sequences, st.integers(1, 30))
def test_portions_hold_every_sequence_once_and_keep_to_the_limit(sequences: list[tuple[list[int], list[int]]], limit: int) -> None:
    found = portions(sequences, limit)
    assert sorted(number for portion in found for number in portion) == list(range(len(sequences)))
    for portion in found:
        chosen = [sequences[number] for number in portion]
        rows = sum(len(prompt) for prompt in {tuple(prompt) for prompt, _ in chosen}) + sum(len(drawn) for _, drawn in chosen)
        assert rows <= limit or len(portion) == 1


def test_rollouts_of_a_prompt_stay_together_where_they_fit() -> None:
    sequences = [([1] * 10, [5] * 5)] * 2 + [([2] * 10, [5] * 5)] * 2 + [([3] * 10, [5] * 30)] * 2
    assert portions(sequences, 40) == [[0, 1, 2, 3], [4], [5]]
    assert portions(sequences, 25) == [[0, 1], [2, 3], [4], [5]]
    assert portions(sequences, 1000) == [[0, 1, 2, 3, 4, 5]]
