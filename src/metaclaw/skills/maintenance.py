"""Maintenance of a library that grows: which skills are near-duplicates, stale, or learned by enough users to be shared.

Near-duplicates of one scope are merged, skills that no task matches are retired (`stale_reason`), and a lesson that several
users learned by themselves is promoted to a wider scope (`find_promotions`). Each result is a proposal: it goes through the gate.
"""

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
from metaclaw.skills.fields import is_stated
from metaclaw.skills.gate.clashes import contrary, is_same_situation, overlap, situation_terms, text_terms, width
from metaclaw.skills.gate.gate import lint

STALE_AFTER = timedelta(days=90)
STALE_TASKS = 500
_NEAREST = 4
_MOST_PARENTS = 4
LEAST_USERS = 3
SAME_LESSON = 0.5
_WORD = re.compile(r"\w+")


class SimilarPair(NamedTuple):
    """Two skills of the same scope that say nearly the same."""

    one: Skill
    other: Skill
    overlap: float


def find_similar(skills: Sequence[Skill], at_least: float = 0.7, *, across_scopes: bool = False) -> list[SimilarPair]:
    """Pairs with at least this overlap, the most alike first; ties by name. Within a scope, unless told otherwise.

    Not every two skills are compared. Two texts with an overlap (Jaccard) of t or more share one of the rarest terms of each: of n
    terms, one of the n - t·n + 1 rarest. Only skills that share such a term are compared; of many that do (a library written from
    one template), each with its `_NEAREST` neighbours in the order of their rarest terms, so that the work stays linear.
    """
    terms = [text_terms(skill) for skill in skills]
    counts = Counter(chain.from_iterable(terms))
    rarest = [sorted(own, key=lambda term: (counts[term], term)) for own in terms]
    together: dict[tuple[str | None, str], list[int]] = {}
    for number, own in enumerate(rarest):
        scope = None if across_scopes else skills[number].scope
        for term in own[: len(own) - ceil(at_least * len(own)) + 1]:
            together.setdefault((scope, term), []).append(number)
    likely: set[tuple[int, int]] = set()
    for numbers in together.values():
        near = sorted(numbers, key=rarest.__getitem__) if len(numbers) > _NEAREST else numbers
        for at, one in enumerate(near):
            likely.update((min(one, other), max(one, other)) for other in near[at + 1 : at + 1 + _NEAREST])
    pairs = (SimilarPair(skills[one], skills[other], overlap(terms[one], terms[other])) for one, other in likely)
    alike = (pair for pair in pairs if pair.overlap >= at_least)
    return sorted(alike, key=lambda pair: (-pair.overlap, pair.one.name, pair.other.name))


def group_similar(pairs: Iterable[SimilarPair]) -> list[tuple[Skill, ...]]:
    """Groups of skills that are similar, directly or through another; each by name."""
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
    """Why a skill is stale, or None. `tasks` are those in its scope since it last matched one: both time and tasks count, so that a
    holiday makes none stale."""
    if skill.author is not Authorship.EVOLVER or skill.pinned or skill.state not in (SkillState.CANARY, SkillState.LIVE):
        return None
    if now - last_matched < STALE_AFTER or tasks < STALE_TASKS:
        return None
    return f"no task has matched it for {(now - last_matched).days} days and {tasks} tasks"


def find_merges(skills: Sequence[Skill], at_least: float = 0.7) -> list[tuple[Skill, ...]]:
    """Groups of near-duplicates of one scope that the program may merge: nothing a person wrote, said or pinned."""
    own = [skill for skill in skills if skill.author is Authorship.EVOLVER and not skill.pinned and not is_stated(skill)]
    return [group[:_MOST_PARENTS] for group in group_similar(find_similar(own, at_least))]


@dataclass(frozen=True, slots=True)
class Promotion:
    """A lesson that may go to a wider scope: its shared text, and the private skills it was learned in."""

    skill: Skill
    learned_in: tuple[SkillName, ...]
    users: int


def find_promotions(skills: Sequence[Skill], scope: str | None, least_users: int = LEAST_USERS) -> list[Promotion]:
    """Lessons that enough users have in common, as skills for `scope`. `skills` are those of the users who are in that scope.

    At least `least_users` distinct users each have a live skill of their own that says nearly the same, and no user has one
    that contradicts it in the same situation. The shared text is made only of lines whose every word those users share: a name,
    a host or a number that fewer of them wrote is left out with its line. The rest must still pass `gate.lint`.
    """
    private = [skill for skill in skills if width(skill.scope) == 0]
    lessons = [skill for skill in private if skill.state is SkillState.LIVE]  # what is still a canary has proven nothing
    groups = [
        group
        for group in group_similar(find_similar(lessons, SAME_LESSON, across_scopes=True))
        if len({skill.scope for skill in group}) >= least_users
    ]
    situations = _Situations(private) if groups else None
    promotions = []
    for group in groups:
        shared = shared_text(group, scope, least_users)
        if shared is not None and situations is not None and not situations.hold_contrary(group):
            promotions.append(Promotion(shared, tuple(skill.name for skill in group), len({skill.scope for skill in group})))
    return promotions


def shared_text(group: Sequence[Skill], scope: str | None, least_users: int = LEAST_USERS) -> Skill | None:
    """The common text of a group as one skill, or None where that is no whole skill."""
    common = _common_words(group, least_users)
    for skill in _most_typical_first(group):
        body = "\n".join(line for line in skill.body.splitlines() if _words(line) <= common).strip()
        name = "-".join(word for word in skill.name.split("-") if word in common)[:64].strip("-")
        if not body or not name or not _words(skill.trigger) <= common:
            continue
        shared = Skill(SkillName(name), skill.trigger, body, None, scope, {}, SkillState.DRAFT, Authorship.EVOLVER)
        if not lint(shared):
            return shared
    return None


class _Situations:
    """Skills by the words of their situation, to find those that may contradict a group without looking at all of them."""

    def __init__(self, skills: Sequence[Skill]) -> None:
        self._skills = skills
        self._having: dict[str, list[int]] = {}
        for number, skill in enumerate(skills):
            for term in situation_terms(skill):
                self._having.setdefault(term, []).append(number)

    def hold_contrary(self, group: Sequence[Skill]) -> bool:
        """Whether another skill for the same situation contradicts one of these."""
        return any(
            other.name != skill.name and is_same_situation(skill, other) and contrary(skill.body, other.body) is not None
            for skill in group
            for other in self._near(skill)
        )

    def _near(self, skill: Skill) -> list[Skill]:
        """Skills that share one of its rarest words: two for the same situation share a third of all, the rare ones among them."""
        rarest = sorted(situation_terms(skill), key=lambda term: (len(self._having.get(term, ())), term))
        looked = dict.fromkeys(number for term in rarest[: 1 + 2 * len(rarest) // 3] for number in self._having.get(term, ()))
        return [self._skills[number] for number in looked]


def _common_words(group: Iterable[Skill], least_users: int) -> set[str]:
    """Words that at least this many users wrote."""
    by_user: dict[str | None, set[str]] = {}
    for skill in group:
        by_user.setdefault(skill.scope, set()).update(_words(f"{skill.name} {skill.trigger}\n{skill.body}"))
    counts = Counter(chain.from_iterable(by_user.values()))
    return {word for word, users in counts.items() if users >= least_users}


def _words(text: str) -> set[str]:
    """Every word and number in lower case; stricter than index terms, which leave out some."""
    return set(_WORD.findall(text.casefold()))


def _most_typical_first(group: Sequence[Skill]) -> list[Skill]:
    terms = {skill.name: text_terms(skill) for skill in group}
    alike = {name: sum(overlap(own, other) for other in terms.values()) for name, own in terms.items()}
    return sorted(group, key=lambda skill: (-alike[skill.name], skill.name))
