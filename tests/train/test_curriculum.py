"""Prompts are chosen by need: what goes badly comes more often, and every prompt has its turn before any comes again."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from metaclaw.train.curriculum import Prompt, choose_prompts, key_averages
from metaclaw.train.records import GroupRecord, StepRecord

EASY, HARD = ([Prompt(f"{key}-{number}", key) for number in range(20)] for key in ("easy", "hard"))


def record(prompts: list[Prompt], worth: dict[str, float | None]) -> StepRecord:
    groups = [GroupRecord(one.turn, one.key, worth[one.key], worth[one.key]) for one in prompts]
    return StepRecord(groups, 0.5, True, [], 10.0)


def walk(pool: list[Prompt], steps: int, count: int, worth: dict[str, float | None], seed: int = 1) -> list[StepRecord]:
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
def test_every_prompt_of_a_key_has_its_turn_before_any_comes_again(size: int, count: int, seed: int) -> None:
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
