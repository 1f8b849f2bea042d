"""Retirement: what no task has matched for long goes; what a person wrote, said or pinned stays."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.skills.maintenance import Life, find_retirements

NOW = datetime(2026, 6, 1, tzinfo=UTC)
LEARNED = Skill(SkillName("learned"), "When reading CSV exports", "Use a decimal comma.", author=Authorship.EVOLVER)


def retired(skill: Skill, days: int = 900, opportunities: int = 90_000) -> list[str]:
    return [str(one.skill) for one in find_retirements([Life(skill, NOW - timedelta(days=days), opportunities)], NOW)]


def test_a_skill_is_stale_only_after_both_time_and_opportunities() -> None:
    assert retired(LEARNED, days=100, opportunities=600) == ["learned"]
    assert retired(LEARNED, days=100, opportunities=20) == []
    assert retired(LEARNED, days=10, opportunities=6_000) == []


@pytest.mark.parametrize(
    "fields",
    [{"author": Authorship.PERSON}, {"pinned": True}, {"author": Authorship.INSTRUCTION}, {"state": SkillState.RETIRED}],
    ids=["written", "pinned", "said", "retired"],
)
def test_what_a_person_wrote_said_or_pinned_does_not_go_stale(fields: dict[str, object]) -> None:
    assert retired(replace(LEARNED, **fields)) == []  # type: ignore[arg-type]


def test_a_skill_on_trial_may_go_stale() -> None:
    assert retired(replace(LEARNED, state=SkillState.CANARY)) == ["learned"]
