"""Prompts are chosen by need: what goes badly comes more often, and every prompt has its turn
before any comes again.
"""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Datum
from metaclaw.training.curriculum import (
    TrainingPrompt,
    choose_prompts,
    cut_pieces,
    is_held_out,
    key_averages,
    shuffled,
)
from metaclaw.training.records import GroupRecord, StepRecord

EASY, HARD = (
    [TrainingPrompt(f"{key}-{number}", key) for number in range(20)] for key in ("easy", "hard")
)


def record(prompts: list[TrainingPrompt], worth: dict[str, float | None]) -> StepRecord:
    groups = [GroupRecord(one.turn, one.key, worth[one.key], worth[one.key]) for one in prompts]
    return StepRecord(groups, 0.5, True, [], 10.0)


def walk(
    pool: list[TrainingPrompt],
    steps: int,
    count: int,
    worth: dict[str, float | None],
    seed: int = 1,
) -> list[StepRecord]:
    records: list[StepRecord] = []
    for _ in range(steps):
        records.append(record(choose_prompts(pool, records, count, seed), worth))
    return records


def turns(records: list[StepRecord]) -> Counter[str]:
    return Counter(group.turn for one in records for group in one.groups)


def test_a_key_that_goes_well_comes_less_often_but_still_comes() -> None:
    records = walk(EASY + HARD, 40, 8, {"easy": 1.0, "hard": 0.0})
    keys = Counter(group.key for one in records[20:] for group in one.groups)
    assert keys["hard"] > 3 * keys["easy"]
    assert all(any(group.key == "easy" for group in one.groups) for one in records)
    assert key_averages(records)["easy"] > 0.9


@given(st.integers(1, 30), st.integers(1, 12), st.integers(0, 5))
def test_every_prompt_of_a_key_has_its_turn_before_any_comes_again(
    size: int, count: int, seed: int
) -> None:
    counts = turns(walk(HARD[:size], 10, count, {"hard": 0.2}, seed))
    drawn = [counts[prompt.turn] for prompt in HARD[:size]]
    assert max(drawn) - min(drawn) <= 1


@given(st.integers(0, 9), st.integers(1, 50))
def test_the_same_records_give_the_same_choice_and_no_prompt_twice(seed: int, count: int) -> None:
    records = walk(EASY + HARD, 3, 5, {"easy": 0.7, "hard": 0.1}, seed)
    chosen = choose_prompts(EASY + HARD, records, count, seed)
    assert chosen == choose_prompts(EASY + HARD, records, count, seed)
    assert len(set(chosen)) == len(chosen) == min(count, 40)


def test_a_prompt_whose_answers_cannot_be_scored_is_not_drawn_again() -> None:
    counts = turns(walk(EASY + HARD, 30, 4, {"easy": None, "hard": 0.5}))
    assert max(counts[prompt.turn] for prompt in EASY) == 1
    assert len(choose_prompts(EASY, walk(EASY, 30, 4, {"easy": None}), 4, 1)) == 4


def datum(turn: str, prompt: int, drawn: int) -> Datum:
    return Datum(TurnId(turn), (1,) * prompt, (2,) * drawn, (0.5,) * drawn, (-1.0,) * drawn)


def cost(piece: list[Datum]) -> int:
    prompts = {one.turn: len(one.prompt) for one in piece}
    return sum(prompts.values()) + sum(len(one.tokens_T) for one in piece)


def test_a_groups_prompt_is_paid_once_in_a_piece_and_again_where_the_group_is_cut() -> None:
    group = [datum("a", 50, 10) for _ in range(8)]
    pieces = cut_pieces(group, 100, seed=1)
    assert [len(piece) for piece in pieces] == [5, 3]
    assert [cost(piece) for piece in pieces] == [100, 80]


def test_small_groups_share_a_piece_and_all_data_are_in_one() -> None:
    data = [datum(f"t{at}", 5, 5) for at in range(20)]
    pieces = cut_pieces(data, 40, seed=3)
    assert [len(piece) for piece in pieces] == [4] * 5
    assert Counter(one.turn for piece in pieces for one in piece) == Counter(
        one.turn for one in data
    )


def test_a_rollout_larger_than_a_piece_is_a_piece_and_never_cut() -> None:
    data = [datum("a", 5, 500), datum("b", 5, 5), datum("c", 5, 400)]
    pieces = cut_pieces(data, 100, seed=0)
    assert sorted(len(one.tokens_T) for piece in pieces for one in piece) == [5, 400, 500]
    assert all(len(piece) == 1 for piece in pieces)


def test_the_order_depends_on_the_seed_alone() -> None:
    data = [datum(f"t{at}", 5, 5) for at in range(30)]
    assert cut_pieces(data, 20, seed=1) == cut_pieces(data, 20, seed=1)
    assert cut_pieces(data, 20, seed=1) != cut_pieces(data, 20, seed=2)
    assert sorted(shuffled(range(50), 7)) == list(range(50))


def test_a_turn_is_held_out_by_its_name_alone_and_about_as_many_as_wished() -> None:
    turns = [TurnId(f"t_{at:05}") for at in range(5_000)]
    held = {turn for turn in turns if is_held_out(turn, 0.2)}
    assert len(held) / len(turns) == pytest.approx(0.2, abs=0.02)
    assert held == {turn for turn in reversed(turns) if is_held_out(turn, 0.2)}
    assert held <= {turn for turn in turns if is_held_out(turn, 0.3)}
    assert not any(is_held_out(turn, 0.0) for turn in turns)
    assert all(is_held_out(turn, 1.0) for turn in turns)
