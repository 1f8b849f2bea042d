"""How sequences are laid out for one pass: nothing is lost, nothing repeated but what must be, and
every row knows its past.
"""

from collections import Counter
from itertools import product

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from metaclaw.engine.training.packing import Stem, pack, portions, stems
from tests.engine.rows import seen_rows

_CPU = torch.device("cpu")
_prompts = st.lists(st.integers(0, 5), min_size=1, max_size=4)
_sequences = st.lists(
    st.tuples(_prompts, st.lists(st.integers(0, 9), max_size=5)), min_size=1, max_size=8
)


@settings(deadline=None)
@given(_sequences)
def test_every_drawn_token_is_predicted_by_a_row_that_sees_exactly_what_came_before_it(
    sequences: list[tuple[list[int], list[int]]],
) -> None:
    packed = pack(sequences, _CPU)
    expected = [
        (prompt + drawn[:place], token)
        for prompt, drawn in sequences
        for place, token in enumerate(drawn)
    ]
    ids = packed.ids.tolist()
    pasts = [[ids[row] for row in seen] for seen in seen_rows(packed)]
    found = [
        (pasts[row], token)
        for row, token in zip(packed.rows_D.tolist(), packed.targets_D.tolist(), strict=True)
    ]
    assert found == expected
    assert packed.positions.tolist() == [len(past) - 1 for past in pasts]


@settings(deadline=None)
@given(_sequences)
def test_a_prompt_runs_once_and_equal_rollouts_too(
    sequences: list[tuple[list[int], list[int]]],
) -> None:
    packed = pack(sequences, _CPU)
    prompts = {tuple(prompt) for prompt, _ in sequences}
    tails = {(tuple(prompt), tuple(drawn[:-1])) for prompt, drawn in sequences}
    assert len(packed.ids) <= sum(map(len, prompts)) + sum(len(tail) for _, tail in tails)
    assert sum(level.nodes.rows for level in packed.levels) == len(packed.ids)


def test_what_prompts_and_rollouts_begin_with_runs_once_where_that_saves_enough() -> None:
    common, stem = list(range(40)), [7] * 10
    sequences = [
        ([*common, prompt], [*stem, last, 1])
        for prompt in (50, 51, 52)
        for last in (60, 61, 62, 62)
    ]
    packed = pack(sequences, _CPU)
    assert [level.nodes.rows for level in packed.levels] == [40, 3, 30, 9]
    lonely = pack([([1, *common[2:]], [3, 4]), ([2, *common[2:]], [3, 4])], _CPU)
    assert [level.nodes.rows for level in lonely.levels] == [78, 2]
    little = pack([([1] + [prompt] * 50, [3, 4]) for prompt in (5, 6)], _CPU)
    assert [level.nodes.rows for level in little.levels] == [102, 2]


def _saved(found: list[Stem]) -> int:
    return sum(stem.saved for stem in found)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 1), max_size=5).map(tuple), unique=True, max_size=5))
@example([(0, 0, 1), (0, 0, 0, 0, 0), (0, 1), (0, 0, 0, 0)])
@example([(0,), (0, 0, 0, 0), (0, 0, 0, 1), (0, 1)])
def test_stems_save_the_most_that_sets_with_a_common_beginning_can(
    paths: list[tuple[int, ...]],
) -> None:
    found = stems(paths)
    assert sorted(number for stem in found for number in stem.members) == list(range(len(paths)))
    for stem in found:
        assert len({paths[number][: stem.length] for number in stem.members}) == 1
        assert all(len(paths[number]) >= stem.length for number in stem.members)
    assert _saved(found) == _most(paths)


def _most(paths: list[tuple[int, ...]]) -> int:
    """By trying every beginning for every path."""
    best = 0
    for lengths in product(*(range(len(path) + 1) for path in paths)):
        stems_of = Counter(path[:length] for path, length in zip(paths, lengths, strict=True))
        best = max(best, sum((count - 1) * len(stem) for stem, count in stems_of.items()))
    return best


def test_prompts_that_each_begin_with_the_one_before_are_packed_however_many_there_are() -> None:
    conversation = [(7,) * length for length in range(1, 400)]
    found = stems(conversation)
    assert sorted(number for stem in found for number in stem.members) == list(range(399))
    assert _saved(found) > 399 * 399 / 4


@settings(deadline=None)
@given(_sequences, st.integers(1, 30))
def test_portions_hold_every_sequence_once_and_keep_to_the_limit(
    sequences: list[tuple[list[int], list[int]]], limit: int
) -> None:
    found = portions(sequences, limit)
    assert sorted(number for portion in found for number in portion) == list(range(len(sequences)))
    for portion in found:
        chosen = [sequences[number] for number in portion]
        rows = sum(len(prompt) for prompt in {tuple(prompt) for prompt, _ in chosen}) + sum(
            len(drawn) for _, drawn in chosen
        )
        assert rows <= limit or len(portion) == 1


def test_rollouts_of_a_prompt_stay_together_where_they_fit() -> None:
    sequences = [([1] * 10, [5] * 5)] * 2 + [([2] * 10, [5] * 5)] * 2 + [([3] * 10, [5] * 30)] * 2
    assert portions(sequences, 40) == [[0, 1, 2, 3], [4], [5]]
    assert portions(sequences, 25) == [[0, 1], [2, 3], [4], [5]]
    assert portions(sequences, 1000) == [[0, 1, 2, 3, 4, 5]]
