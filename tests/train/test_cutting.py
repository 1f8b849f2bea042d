"""Choosing and cutting: repeatable, complete, within the cost a piece may have."""

from collections import Counter

import pytest

from metaclaw.domain.batch import Datum
from metaclaw.domain.ids import TurnId
from metaclaw.train.selection import cut_pieces, is_held_out, shuffled


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
    assert Counter(one.turn for piece in pieces for one in piece) == Counter(one.turn for one in data)


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
