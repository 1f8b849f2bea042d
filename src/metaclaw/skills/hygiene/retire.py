"""Which skills have had their day: those nothing asks for any more, and those that do harm. Retired skills are kept, never deleted.

What a person wrote or pinned is theirs and is never touched. A standing instruction does not go stale: it stands until it is taken
back; harm alone retires it. Whether a canary harms is for its own test to say (`gate.canary`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.skills.hygiene.uplift import Uplift


@dataclass(frozen=True, slots=True)
class RetireRules:
    """When a skill is stale: unmatched for this long *and* over this many tasks in its scope, so that a holiday makes none stale.
    When it is harmful: placed this often, withheld this often, and P(uplift > 0) below the bar."""

    stale_after: timedelta = timedelta(days=90)
    stale_opportunities: int = 500
    harmful_placed: int = 20
    harmful_withheld: int = 3
    harmful_below: float = 0.1


@dataclass(frozen=True, slots=True)
class Life:
    """A skill in force and what is known of its use.

    `last_matched` is when it was last found for a task, or when it came into force; `opportunities` is how many tasks in its scope
    there were since.
    """

    skill: Skill
    last_matched: datetime
    opportunities: int
    uplift: Uplift | None


class Why(StrEnum):
    """Why a skill is retired."""

    STALE = "stale"
    HARMFUL = "harmful"


@dataclass(frozen=True, slots=True)
class Retirement:
    """A skill to retire, and the reason in words."""

    skill: SkillName
    why: Why
    reason: str


def find_retirements(lives: Iterable[Life], now: datetime, rules: RetireRules | None = None) -> list[Retirement]:
    """The skills whose time is over."""
    found = (retirement(life, now, rules or RetireRules()) for life in lives)
    return [one for one in found if one is not None]


def retirement(life: Life, now: datetime, rules: RetireRules) -> Retirement | None:
    """Whether this one's is."""
    skill = life.skill
    if skill.author is Authorship.PERSON or skill.pinned or skill.state not in (SkillState.CANARY, SkillState.LIVE):
        return None
    if skill.state is SkillState.LIVE and life.uplift is not None and is_harmful(life.uplift, rules):
        return Retirement(skill.name, Why.HARMFUL, _harm_in_words(life.uplift))
    is_stale = now - life.last_matched >= rules.stale_after and life.opportunities >= rules.stale_opportunities
    if is_stale and skill.author is not Authorship.INSTRUCTION:
        days = (now - life.last_matched).days
        return Retirement(skill.name, Why.STALE, f"no task has matched it for {days} days and {life.opportunities} tasks")
    return None


def is_harmful(uplift: Uplift, rules: RetireRules) -> bool:
    """Whether it has been seen enough, and most probably does not help."""
    is_seen = uplift.placed >= rules.harmful_placed and uplift.withheld >= rules.harmful_withheld
    return is_seen and uplift.is_positive < rules.harmful_below


def retired(skill: Skill) -> Skill:
    """The skill as it is archived."""
    return replace(skill, state=SkillState.RETIRED)


def _harm_in_words(uplift: Uplift) -> str:
    known = "unknown" if uplift.estimate is None else f"{uplift.estimate:+.0%}"
    seen = f"{uplift.placed} placed and {uplift.withheld} withheld turns"
    return f"uplift {known}, P(uplift > 0) = {uplift.is_positive:.3f} after {seen}"
