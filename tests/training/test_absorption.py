"""Absorption of skills by weights: what is absorbed leaves the prompt, what they have not stays,
and all comes back.
"""

import math
import random

import pytest

from metaclaw.domain.ids import SkillName
from metaclaw.training.absorption import (
    Absorption,
    SkillPair,
    absorbed_by,
    judge_absorption,
)

DATES, NAMES, LOGS = map(SkillName, ("dates", "names", "logs"))


def pairs(count: int, with_skill: float, without: float, seed: int = 1) -> list[SkillPair]:
    rng = random.Random(seed)
    return [(float(rng.random() < with_skill), float(rng.random() < without)) for _ in range(count)]


def test_a_skill_that_is_not_missed_by_good_weights_is_absorbed() -> None:
    assert judge_absorption([(1.0, 1.0)] * 60) is Absorption.ABSORBED


def test_a_skill_that_is_missed_is_needed() -> None:
    assert judge_absorption(pairs(100, 0.9, 0.3)) is Absorption.NEEDED


def test_a_skill_that_is_not_missed_because_nothing_helps_is_not_absorbed() -> None:
    assert judge_absorption([(0.0, 0.0)] * 100) is Absorption.UNDECIDED
    assert judge_absorption([(0.0, 0.0)] * 200) is Absorption.NEEDED


@pytest.mark.parametrize("seen", [[], [(None, 1.0)] * 50, [(1.0, 1.0)] * 5])
def test_too_little_is_undecided(seen: list[SkillPair]) -> None:
    assert judge_absorption(seen) is Absorption.UNDECIDED


def test_a_skill_whose_loss_costs_the_margin_is_seldom_called_absorbed_and_an_absorbed_one_mostly_is() -> (
    None
):
    def share(with_skill: float, without: float) -> float:
        found = [
            judge_absorption(pairs(400, with_skill, without, seed), most=400) for seed in range(100)
        ]
        return found.count(Absorption.ABSORBED) / 100

    assert share(0.9, 0.8) <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 100)
    assert share(0.95, 0.95) >= 0.8


def test_a_version_inherits_what_its_parent_absorbed_less_what_is_needed_again() -> None:
    findings = {NAMES: Absorption.ABSORBED, DATES: Absorption.NEEDED, LOGS: Absorption.UNDECIDED}
    assert absorbed_by(frozenset({DATES}), findings) == {NAMES}
    assert absorbed_by(frozenset({DATES, LOGS}), {}) == {DATES, LOGS}
