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
from math import ceil
from typing import NamedTuple

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.skills.gate.clashes import (
    contrary,
    is_same_situation,
    overlap,
    situation_terms,
    text_terms,
    width,
)
from metaclaw.skills.gate.gate import lint

STALE_AFTER = timedelta(days=90)
STALE_TASKS = 500
_NEAREST = 4
LEAST_USERS = 3
SAME_LESSON = 0.5
_WORD = re.compile(r"\w+")


class SimilarPair(NamedTuple):
    """Two skills of the same scope that say nearly the same."""

    one: Skill
    other: Skill
    overlap: float


def find_similar(skills: Sequence[Skill], at_least: float) -> list[SimilarPair]:
    """Pairs with at least this overlap, the most alike first, ties by name.

    Two texts with an overlap (Jaccard) of t or more share one of the n - t·n + 1 rarest of the n
    terms of each, so only skills that share such a term are compared. If many share it (a library
    written from one template), each is compared with its `_NEAREST` neighbours in the order of
    their rarest terms, so that the work stays linear."""
    terms = [text_terms(skill) for skill in skills]
    counts = Counter(chain.from_iterable(terms))
    rarest = [sorted(own, key=lambda term: (counts[term], term)) for own in terms]
    together: dict[str, list[int]] = {}
    for number, own in enumerate(rarest):
        for term in own[: len(own) - ceil(at_least * len(own)) + 1]:
            together.setdefault(term, []).append(number)
    likely: set[tuple[int, int]] = set()
    for numbers in together.values():
        near = sorted(numbers, key=rarest.__getitem__) if len(numbers) > _NEAREST else numbers
        for at, one in enumerate(near):
            likely.update(
                (min(one, other), max(one, other)) for other in near[at + 1 : at + 1 + _NEAREST]
            )
    pairs = (
        SimilarPair(skills[one], skills[other], overlap(terms[one], terms[other]))
        for one, other in likely
    )
    alike = (pair for pair in pairs if pair.overlap >= at_least)
    return sorted(alike, key=lambda pair: (-pair.overlap, pair.one.name, pair.other.name))


def group_similar(pairs: Iterable[SimilarPair]) -> list[tuple[Skill, ...]]:
    """Groups of skills that are similar, directly or through other skills; each sorted by name."""
    leader: dict[str, str] = {}
    skills: dict[str, Skill] = {}
    for pair in pairs:
        for skill in (pair.one, pair.other):
            skills.setdefault(skill.name, skill)
        leader[_lead(leader, pair.one.name)] = _lead(leader, pair.other.name)
    groups: dict[str, list[Skill]] = {}
    for name in sorted(skills):
        groups.setdefault(_lead(leader, name), []).append(skills[name])
    return [tuple(group) for group in groups.values()]


def _lead(leader: dict[str, str], name: str) -> str:
    while (above := leader.setdefault(name, name)) != name:
        leader[name] = leader[above]
        name = above
    return name


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
        for group in group_similar(find_similar(private, SAME_LESSON))
        if len({skill.scope for skill in group}) >= least_users
    ]
    situations = _Situations(private) if groups else None
    promotions = []
    for group in groups:
        shared = shared_text(group, scope, least_users)
        if shared is not None and situations is not None and not situations.hold_contrary(group):
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


class _Situations:
    """An index of skills by the words of their situation, to find those that may contradict a
    group.
    """

    def __init__(self, skills: Sequence[Skill]) -> None:
        self._skills = skills
        self._having: dict[str, list[int]] = {}
        for number, skill in enumerate(skills):
            for term in situation_terms(skill):
                self._having.setdefault(term, []).append(number)

    def hold_contrary(self, group: Sequence[Skill]) -> bool:
        """Whether another skill for the same situation contradicts one of these."""
        return any(
            other.name != skill.name
            and is_same_situation(skill, other)
            and contrary(skill.body, other.body) is not None
            for skill in group
            for other in self._near(skill)
        )

    def _near(self, skill: Skill) -> list[Skill]:
        """Skills that share one of the rarest two thirds of its words; skills for the same
        situation share at least a third.
        """
        rarest = sorted(
            situation_terms(skill), key=lambda term: (len(self._having.get(term, ())), term)
        )
        numbers = dict.fromkeys(
            number
            for term in rarest[: 1 + 2 * len(rarest) // 3]
            for number in self._having.get(term, ())
        )
        return [self._skills[number] for number in numbers]


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
