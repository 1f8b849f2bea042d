"""Retirement: the stale and the harmful go, what a person wrote stays, and nothing is ever deleted."""

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.domain.verdict import Outcome
from metaclaw.skills.gate import LiveTrial
from metaclaw.skills.hygiene import Life, RetireRules, Uplift, Why, find_retirements, measure_uplift, retired, share_to_place
from metaclaw.skills.hygiene.retire import is_harmful

NOW = datetime(2026, 6, 1, tzinfo=UTC)
LEARNED = Skill(SkillName("learned"), "When reading CSV exports", "Use a decimal comma.", author=Authorship.EVOLVER)
HARMFUL = Uplift(-0.4, None, 0.01, 40, 10, 0)
HARMLESS = Uplift(0.1, None, 0.8, 40, 10, 0)


def reasons(skill: Skill, days: int = 1, opportunities: int = 1, uplift: Uplift | None = HARMLESS) -> list[Why]:
    life = Life(skill, NOW - timedelta(days=days), opportunities, uplift)
    return [one.why for one in find_retirements([life], NOW)]


def test_a_skill_is_stale_only_after_both_time_and_opportunities() -> None:
    assert reasons(LEARNED, days=100, opportunities=600) == [Why.STALE]
    assert reasons(LEARNED, days=100, opportunities=20) == []
    assert reasons(LEARNED, days=10, opportunities=6_000) == []


def test_a_harmful_skill_is_retired_with_its_numbers() -> None:
    (found,) = find_retirements([Life(LEARNED, NOW, 0, HARMFUL)], NOW)
    assert found.why is Why.HARMFUL
    assert found.skill == "learned"
    assert "-40%" in found.reason


@pytest.mark.parametrize(
    "uplift",
    [None, HARMLESS, replace(HARMFUL, placed=10), replace(HARMFUL, withheld=1), replace(HARMFUL, is_positive=0.2)],
    ids=["unknown", "harmless", "placed too seldom", "withheld too seldom", "too unsure"],
)
def test_a_skill_that_is_not_known_to_harm_stays(uplift: Uplift | None) -> None:
    assert reasons(LEARNED, uplift=uplift) == []


def test_what_a_person_wrote_or_pinned_is_never_touched() -> None:
    for own in (replace(LEARNED, author=Authorship.PERSON), replace(LEARNED, pinned=True)):
        assert reasons(own, days=900, opportunities=90_000, uplift=HARMFUL) == []


def test_an_instruction_stands_until_it_harms() -> None:
    instruction = replace(LEARNED, author=Authorship.INSTRUCTION)
    assert reasons(instruction, days=900, opportunities=90_000) == []
    assert reasons(instruction, uplift=HARMFUL) == [Why.HARMFUL]


def test_a_canary_is_not_judged_for_harm_here_but_may_go_stale() -> None:
    canary = replace(LEARNED, state=SkillState.CANARY)
    assert reasons(canary, uplift=HARMFUL) == []
    assert reasons(canary, days=100, opportunities=600) == [Why.STALE]


def test_what_is_retired_already_is_not_retired_again_and_keeps_its_text() -> None:
    gone = retired(LEARNED)
    assert gone.state is SkillState.RETIRED
    assert gone.content_hash == LEARNED.content_hash
    assert reasons(gone, days=900, opportunities=90_000, uplift=HARMFUL) == []


def exposures_until_retired(rng: random.Random, withheld: float, placed: float, most: int) -> int | None:
    """A live skill, usually withheld on one turn in ten, as the program would place it; looked at after every turn."""
    trials: list[LiveTrial] = []
    uplift: Uplift | None = None
    while uplift is None or uplift.placed < most:
        share = share_to_place(uplift, 0.9)
        is_placed = rng.random() < share
        passed = rng.random() < (placed if is_placed else withheld)
        trials.append(LiveTrial(is_placed, share, Outcome.PASS if passed else Outcome.FAIL))
        uplift = measure_uplift(trials)
        if is_harmful(uplift, RetireRules()):
            return uplift.placed
    return None


def test_a_harmful_skill_is_retired_within_sixty_exposures_in_nineteen_runs_of_twenty() -> None:
    rng = random.Random(1)
    assert sum(exposures_until_retired(rng, 0.8, 0.4, 60) is not None for _ in range(200)) >= 190


def test_a_helpful_skill_is_hardly_ever_retired() -> None:
    rng = random.Random(2)
    assert sum(exposures_until_retired(rng, 0.6, 0.8, 80) is not None for _ in range(100)) <= 4
