"""Which skills are stale: those that no task has matched for a long time. Retired skills are kept in the store.

What a person wrote, said or pinned does not go stale. Whether a skill does harm is for its live evidence to say (`gate.trial`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill, SkillState


@dataclass(frozen=True, slots=True)
class RetireRules:
    """A skill is stale if it was unmatched for this long *and* over this many tasks in its scope: a holiday makes none stale."""

    stale_after: timedelta = timedelta(days=90)
    stale_opportunities: int = 500


@dataclass(frozen=True, slots=True)
class Life:
    """A skill in force and its use. `last_matched` is when it last matched a task, or came into force; `opportunities` is how many
    tasks in its scope there were since."""

    skill: Skill
    last_matched: datetime
    opportunities: int


@dataclass(frozen=True, slots=True)
class Retirement:
    """A skill to retire, and the reason in words."""

    skill: SkillName
    reason: str


def find_retirements(lives: Iterable[Life], now: datetime, rules: RetireRules | None = None) -> list[Retirement]:
    """The skills that are stale."""
    found = (_retirement(life, now, rules or RetireRules()) for life in lives)
    return [one for one in found if one is not None]


def _retirement(life: Life, now: datetime, rules: RetireRules) -> Retirement | None:
    skill = life.skill
    if skill.author is not Authorship.EVOLVER or skill.pinned or skill.state not in (SkillState.CANARY, SkillState.LIVE):
        return None
    if now - life.last_matched < rules.stale_after or life.opportunities < rules.stale_opportunities:
        return None
    days = (now - life.last_matched).days
    return Retirement(skill.name, f"no task has matched it for {days} days and {life.opportunities} tasks")
