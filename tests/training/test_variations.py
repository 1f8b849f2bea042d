"""Requests that are made from recorded ones: other numbers and names in the same sentences."""

import random
import re

from metaclaw.training.variations import VariationKind, vary

NAMES = (
    "Anna",
    "Boris",
    "Carla",
    "Dora",
    "Emil",
    "Frida",
    "Georg",
    "Hanna",
    "Igor",
    "Jana",
    "Karl",
    "Lena",
)
TASKS = [
    f"Write {hour}:{hour * 5 - 5:02d} pm for {name} in the roster."
    for hour, name in enumerate(NAMES, 1)
]


def varied(tasks: list[str], count: int = 200) -> list[str]:
    kind, chance = VariationKind.of(tasks), random.Random(7)
    return [
        one
        for number in range(count)
        if (one := vary(tasks[number % len(tasks)], kind, chance)) is not None
    ]


def test_numbers_stay_within_what_stands_in_their_place_and_keep_their_zeros() -> None:
    times = [
        found
        for one in varied(TASKS)
        if (found := re.fullmatch(r"Write (\d+):(\d\d) pm for (\w+) in the roster\.", one))
    ]
    assert len(times) == len(varied(TASKS)) >= 190
    assert {int(one[1]) for one in times} <= set(range(1, 13))
    assert {int(one[2]) for one in times} <= set(range(56))
    assert len({one[0] for one in times}) > 150


def test_words_that_many_requests_have_stay_and_others_keep_their_shape() -> None:
    names = {one.split(" for ")[1].split(" in ")[0] for one in varied(TASKS)}
    assert len(names) > 20
    assert all(name[0].isupper() for name in names)


def test_where_sentences_are_not_of_one_kind_only_numbers_change() -> None:
    tasks = [
        " ".join(
            f"word{letter}{at}".translate(str.maketrans("0123456789", "klmnopqrst"))
            for at in range(8)
        )
        for letter in "abcdefghijkl"
    ]
    assert varied(tasks) == []
    assert {
        re.sub(r"\d+", "#", one)
        for one in varied([f"{task} {number}" for number, task in enumerate(tasks)])
    } <= {f"{task} #" for task in tasks}


def test_a_few_requests_are_too_few_to_tell_which_words_are_rare() -> None:
    assert varied(["Hello there", "Good morning"]) == []
