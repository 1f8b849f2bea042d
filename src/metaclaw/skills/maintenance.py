"""Maintenance of a growing library: find skills that are stale, or learned by several users.

Skills that no task matches are retired (`stale_reason`), and a skill that several users learned is
promoted to a wider scope (`find_promotions`). Promotions are proposals for the gate; it refuses
near-duplicates."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.skills.gate.clashes import (
    contrary,
    is_same_situation,
    overlap,
    text_terms,
    width,
)
from metaclaw.skills.gate.gate import lint

STALE_AFTER = timedelta(days=90)
STALE_TASKS = 500
LEAST_USERS = 3
SAME_LESSON = 0.5
_WORD = re.compile(r"\w+")


def group_similar(skills: Sequence[Skill], at_least: float) -> list[list[Skill]]:
    """Groups of skills whose texts have at least this overlap, directly or through other skills;
    each sorted by name.
    """
    groups: list[list[Skill]] = []
    terms = {skill.name: text_terms(skill) for skill in skills}
    for skill in sorted(skills, key=lambda skill: skill.name):
        mine = terms[skill.name]
        alike = [
            group
            for group in groups
            if any(overlap(mine, terms[one.name]) >= at_least for one in group)
        ]
        joined = sorted([skill, *chain.from_iterable(alike)], key=lambda one: one.name)
        groups = [*(group for group in groups if group not in alike), joined]
    return [group for group in groups if len(group) > 1]


def stale_reason(skill: Skill, last_matched: datetime, tasks: int, now: datetime) -> str | None:
    """Why a skill is stale, or None. `tasks` is the number of tasks in its scope since it last
    matched one. A skill is stale only after enough time and enough tasks, so that a holiday makes
    none stale."""
    if skill.author is not Authorship.EVOLVER or skill.pinned:
        return None
    if now - last_matched < STALE_AFTER or tasks < STALE_TASKS:
        return None
    return f"no task has matched it for {(now - last_matched).days} days and {tasks} tasks"


@dataclass(frozen=True, slots=True)
class Promotion:
    """A lesson for a wider scope: a skill with the shared text, the private skills that say it, and
    the number of their users.
    """

    skill: Skill
    learned_in: tuple[SkillName, ...]
    users: int


def find_promotions(
    skills: Sequence[Skill], scope: str | None, least_users: int = LEAST_USERS
) -> list[Promotion]:
    """Lessons that enough users have in common, as skills for `scope`. `skills` are those of the
    users in that scope.

    At least `least_users` users each have a live skill that says nearly the same, and no user has a
    skill that contradicts it in the same situation. The shared text has only lines of which all
    those users wrote every word: a line with a name, a host or a number that fewer of them wrote is
    left out. The rest must still pass `gate.lint`."""
    private = [skill for skill in skills if width(skill.scope) == 0]
    groups = [
        group
        for group in group_similar(private, SAME_LESSON)
        if len({skill.scope for skill in group}) >= least_users
    ]
    promotions = []
    for group in groups:
        shared = shared_text(group, scope, least_users)
        if shared is not None and not _has_contrary(group, private):
            promotions.append(
                Promotion(
                    shared,
                    tuple(skill.name for skill in group),
                    len({skill.scope for skill in group}),
                )
            )
    return promotions


def shared_text(
    group: Sequence[Skill], scope: str | None, least_users: int = LEAST_USERS
) -> Skill | None:
    """The common text of a group as one skill, or None if that is not a complete skill."""
    common = _common_words(group, least_users)
    for skill in _most_typical_first(group):
        body = "\n".join(line for line in skill.body.splitlines() if _words(line) <= common).strip()
        name = "-".join(word for word in skill.name.split("-") if word in common)[:64].strip("-")
        if not body or not name or not _words(skill.trigger) <= common:
            continue
        shared = Skill(
            SkillName(name),
            skill.trigger,
            body,
            None,
            scope,
            SkillState.DRAFT,
            Authorship.EVOLVER,
        )
        if not lint(shared):
            return shared
    return None


def _has_contrary(group: Iterable[Skill], skills: Sequence[Skill]) -> bool:
    """Whether another skill for the same situation contradicts one of these."""
    return any(
        other.name != skill.name
        and is_same_situation(skill, other)
        and contrary(skill.body, other.body) is not None
        for skill in group
        for other in skills
    )


def _common_words(group: Iterable[Skill], least_users: int) -> set[str]:
    """Words that at least this many users wrote."""
    by_user: dict[str | None, set[str]] = {}
    for skill in group:
        by_user.setdefault(skill.scope, set()).update(
            _words(f"{skill.name} {skill.trigger}\n{skill.body}")
        )
    counts = Counter(chain.from_iterable(by_user.values()))
    return {word for word, users in counts.items() if users >= least_users}


def _words(text: str) -> set[str]:
    """Every word and number in lower case; index terms leave out some of them."""
    return set(_WORD.findall(text.casefold()))


def _most_typical_first(group: Sequence[Skill]) -> list[Skill]:
    terms = {skill.name: text_terms(skill) for skill in group}
    alike = {
        name: sum(overlap(own, other) for other in terms.values()) for name, own in terms.items()
    }
    return sorted(group, key=lambda skill: (-alike[skill.name], skill.name))
