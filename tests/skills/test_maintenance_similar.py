"""Near-duplicates are found in a large library, without comparing all pairs."""

import random
import time
from dataclasses import replace

import pytest

from benchmarks.retrieval_library import make_library
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill
from metaclaw.skills.gate.clashes import overlap, text_terms
from metaclaw.skills.maintenance import find_similar, group_similar

WORDS = [
    f"{a}{b}{c}"
    for a in ("ba", "do", "ki", "lu")
    for b in ("mer", "tol", "san", "vik", "rop")
    for c in ("a", "en", "ist", "om")
]


def made(rng: random.Random, number: int) -> Skill:
    return Skill(
        SkillName(f"s{number}"),
        f"When {' '.join(rng.sample(WORDS, 4))}",
        " ".join(rng.sample(WORDS, 25)),
    )


def test_planted_near_duplicates_are_found_and_their_overlap_is_true() -> None:
    library = [skill for skill, _ in make_library(1_500)]
    copies = [
        replace(one, name=SkillName(f"copy-{at}"), body=f"{one.body}\nMind the weather.")
        for at, one in enumerate(library[:60])
    ]
    pairs = find_similar([*library, *copies])
    found = {frozenset((pair.one.name, pair.other.name)) for pair in pairs}
    planted = [frozenset((one.name, copy.name)) for one, copy in zip(library, copies, strict=False)]
    assert sum(pair in found for pair in planted) >= 58
    for pair in pairs[:50]:
        assert pair.overlap == overlap(text_terms(pair.one), text_terms(pair.other)) >= 0.7


def test_different_skills_are_no_pair() -> None:
    rng = random.Random(1)
    skills = [made(rng, number) for number in range(200)]
    exact = {
        (one.name, other.name)
        for at, one in enumerate(skills)
        for other in skills[at + 1 :]
        if overlap(text_terms(one), text_terms(other)) >= 0.7
    }
    assert {(pair.one.name, pair.other.name) for pair in find_similar(skills)} <= exact


def test_the_same_text_in_two_scopes_is_a_pair_only_across_scopes() -> None:
    one = made(random.Random(2), 1)
    mine, yours = replace(one, scope="user:a"), replace(one, name=SkillName("s2"), scope="user:b")
    assert find_similar([mine, yours]) == []
    (pair,) = find_similar([mine, yours], across_scopes=True)
    assert pair.overlap == 1.0


def test_the_work_grows_with_the_library_and_not_with_its_square() -> None:
    """All from one template, the worst case: five times the skills take far less than 25 times as
    long.
    """

    def cost_s(size: int) -> float:
        skills = [skill for skill, _ in make_library(size)]
        began = time.process_time()
        find_similar(skills)
        return time.process_time() - began

    cost_s(200)
    assert cost_s(4_000) < 12 * cost_s(800)


def test_pairs_that_hang_together_are_one_group() -> None:
    one = made(random.Random(3), 1)
    chain = [replace(one, name=SkillName(f"s{number}")) for number in range(5)]
    lone = [made(random.Random(9), 10), made(random.Random(10), 11)]
    (group,) = group_similar(find_similar([*chain, *lone]))
    assert [skill.name for skill in group] == ["s0", "s1", "s2", "s3", "s4"]


@pytest.mark.parametrize("text", ["the and of", "a"])
def test_a_text_without_terms_is_like_no_other(text: str) -> None:
    empty = [Skill(SkillName(f"s{number}"), text, text) for number in range(3)]
    assert find_similar(empty) == []
