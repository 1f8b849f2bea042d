"""Absorption of skills by weights: what is absorbed leaves the prompt, what they have not stays,
and all comes back.
"""

import math
import random
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.policy import PolicyState, PolicyVersion, Weights
from metaclaw.domain.skill import Rule, Skill
from metaclaw.training.absorption import (
    Absorption,
    AbsorptionTest,
    SkillPair,
    absorbed_by,
    judge_absorption,
)
from metaclaw.training.habits import HabitTest
from metaclaw.training.prompts import PromptPair
from metaclaw.training.status import LoopStatus
from metaclaw.training.training_turns import Clocks

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


class Alike:
    """Rules that ask for the same form. Weights keep it while any of them stands in the prompt: the
    numbers of those that do are its tokens."""

    def __init__(self) -> None:
        self.rules = [
            Rule(SkillName(f"short-{number}"), "always", "Be short.", check="pattern: x")
            for number in range(3)
        ]

    def prompts_with(
        self, skill: Skill, turns: Sequence[TurnId], others: Collection[SkillName] = ()
    ) -> list[PromptPair]:
        left = [
            number
            for number, rule in enumerate(self.rules)
            if rule.name not in {skill.name, *others}
        ]
        return [PromptPair(turn, cast(Any, None), (0, 1, 2), tuple(left)) for turn in turns]

    async def one_of_each(
        self, prompts: Sequence[Sequence[int]], *settings: object
    ) -> Sequence[Sequence[int]]:
        return prompts

    async def draw(
        self, prompts: Sequence[Sequence[int]], *settings: object
    ) -> list[list[Sequence[int]]]:
        return [[prompt] for prompt in prompts]

    async def score(self, step: object, answers: Sequence[Sequence[int]]) -> list[float]:
        return [float(bool(told)) for told in answers]

    def breaks(self, rule: Skill, step: object, answers: Sequence[Sequence[int]]) -> list[bool]:
        return [not told for told in answers]


TURNS = [TurnId(f"t{number}") for number in range(60)]


@pytest.mark.anyio
async def test_of_rules_that_are_kept_because_of_each_other_one_stays_in_the_prompt() -> None:
    alike = Alike()
    absorbed: list[frozenset[SkillName]] = []

    async def done(*given: object) -> None:
        pass

    async def local(version: PolicyVersion) -> Weights:
        return version.weights

    stub = cast(Any, SimpleNamespace)
    version = PolicyVersion(
        1, 0, PolicyState.SERVING, Weights("toy", "nowhere"), "toy", 0, datetime.now(UTC)
    )
    await AbsorptionTest(
        turns=stub(clocks=lambda: Clocks(1, 1), kept=lambda most: 60, held_out=lambda most: TURNS),
        policies=stub(
            version=lambda number: version, absorb=lambda number, names: absorbed.append(names)
        ),
        versions=stub(is_same=lambda name, generation: True, restore=done, local=local),
        windows=stub(window="a window"),
        judging=stub(require_for_gate=done),
        sampler=stub(one_of_each=alike.one_of_each, max_tokens=8),
        rewards=cast(Any, alike),
        prompts=cast(Any, alike),
        skills=lambda: alike.rules,
        status=LoopStatus(),
    ).once()

    assert [len(names) for names in absorbed] == [2]


@pytest.mark.anyio
async def test_a_habit_is_counted_with_every_rule_out_of_the_prompt() -> None:
    alike = cast(Any, Alike())
    test = HabitTest(sampler=alike, rewards=alike, prompts=alike, rules=lambda: alike.rules)
    found = await test.compare(Weights("toy", "nowhere"), None, cast(Any, TURNS))
    assert [habit.after for habit in found] == [100.0] * 3
