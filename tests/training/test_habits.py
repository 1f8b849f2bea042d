"""Rules become habits: what was refused and what was accepted is a preference, and good answers are
taught behind prompts without the rule.
"""

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from metaclaw.domain.ids import SkillName
from metaclaw.domain.policy import PolicyState
from metaclaw.domain.skill import Rule, Skill
from metaclaw.domain.training import Rollout
from metaclaw.domain.turn import Scope
from metaclaw.training.advantages import ScoredGroup
from metaclaw.training.curriculum import TrainingPrompt, choose_prompts
from metaclaw.training.golden import GoldenScore
from metaclaw.training.held_calls import preference_of, teaches
from metaclaw.training.prompts import may_become_habit
from metaclaw.training.training_turns import TurnCount
from tests.support.cases import each
from tests.training.stage import Stage

pytestmark = pytest.mark.anyio
SAY_SO = Rule(
    SkillName("say-so"), "always", "Say zq-ok.", applies_always=True, check="pattern: ^zq-ok$"
)
"""A rule that the toy policy never follows by chance."""


async def test_what_was_refused_and_accepted_teaches_the_rule_without_its_text(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, policy={"steps": 60, "batch_most": 64}, skill=SAY_SO)
    stage.talk_held(40, "no way", "zq-ok")

    assert await stage.slow.once(TurnCount(8))

    (version,) = stage.policies.versions()
    assert version.state is PolicyState.SERVING, version.note
    assert version.report is not None
    (habit,) = version.report.habits
    assert (habit.rule, habit.before) == (SAY_SO.name, 100.0)
    assert habit.after < 50.0


async def test_without_the_refused_answers_there_is_nothing_to_learn_from(tmp_path: Path) -> None:
    stage = Stage(tmp_path, policy={"steps": 8}, skill=SAY_SO)
    stage.talk(20)

    await stage.slow.once(TurnCount(8))

    assert stage.policies.versions() == []


def test_a_preference_needs_a_refused_and_an_accepted_answer(tmp_path: Path) -> None:
    stage = Stage(tmp_path, skill=SAY_SO)
    (held,) = stage.talk_held(1, "no way", "zq-ok")
    (plain,) = stage.talk(1)

    recorded = [stage.reader.turn(turn) for turn in (held, plain)]
    texts = [[one.text for one in preference_of(turn.turn)] for turn in recorded if turn]
    assert texts == [["no way", "zq-ok"], []]


def group(*rewards: float | None) -> ScoredGroup:
    drawn = tuple(Rollout((1,), (-1.0,), "x", True) for _ in rewards)
    return ScoredGroup(SAY_SO.name, (1,), drawn, rewards, recorded=2)  # type: ignore[arg-type]


def test_recorded_answers_teach_until_the_drawn_ones_are_as_good() -> None:
    assert teaches(group(0.0, 0.0, 0.0, 1.0))
    assert teaches(group(1.0, 0.0, 0.0, 1.0))
    assert not teaches(group(1.0, 1.0, 0.0, 1.0))
    assert not teaches(group(0.0, 0.0, 1.0, 1.0))
    assert not teaches(group(0.0, 0.0, None, 1.0))
    assert group(0.5, 0.25, 0.0, 1.0).drawn.rewards_G == (0.5, 0.25)


def test_prompts_whose_rules_are_broken_often_come_first() -> None:
    pool = [TrainingPrompt(f"{key}{number}", key) for key in "abcd" for number in range(8)]

    first = choose_prompts(pool, (), 2, 1, {"c": 0.5, "d": 0.9})
    assert {prompt.key for prompt in first} == {"c", "d"}
    assert choose_prompts(pool, (), 6, 1, {}) == choose_prompts(pool, (), 6, 1)


async def test_a_rule_with_a_check_is_out_of_the_prompt_behind_which_a_habit_is_taught(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, {"hindsight": True}, skill=SAY_SO)
    stage.talk(8)
    stage.talk(8, speaker=Scope("another person"))
    by_person = {one.step.scope.user: one for one in stage.turns.held_out(16)}

    assert by_person["another person"].unruled is None
    unruled = by_person[None].unruled
    assert unruled is not None
    assert SAY_SO.body not in "".join(map(chr, unruled))
    assert "Hi." in "".join(map(chr, unruled))


@each(
    "rule",
    [
        replace(SAY_SO, check=None),
        replace(SAY_SO, applies_always=False),
        replace(SAY_SO, workspace="/home/me/shop"),
        replace(SAY_SO, channel="slack"),
        replace(SAY_SO, scope="team:shop"),
        replace(SAY_SO, expires=date(2030, 1, 1)),
        Skill(SAY_SO.name, "always", "Say zq-ok.", applies_always=True, check=SAY_SO.check),
    ],
    ids=[
        "without a check",
        "sometimes",
        "in a project",
        "on a channel",
        "a team's",
        "for a while",
        "a skill",
    ],
)
def test_what_does_not_always_hold_for_its_person_does_not_become_a_habit(rule: Skill) -> None:
    assert may_become_habit(SAY_SO)
    assert not may_become_habit(rule)


async def test_a_version_may_give_back_what_the_one_before_gained_beside_the_untrained_model(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    proof, compared = stage.slow.trial.proof, []

    async def compare(candidate: object, former: object, rules: object) -> object:
        compared.append(former)
        score = GoldenScore({"one": True}, None)
        return score, score, None

    proof.abilities.compare = compare  # type: ignore[assignment,method-assign]
    stage.talk(60)
    await stage.slow.once(TurnCount(8))
    stage.talk(60)
    await stage.slow.once(TurnCount(8))

    assert len(stage.policies.versions()) == 2
    assert set(compared) == {None}
