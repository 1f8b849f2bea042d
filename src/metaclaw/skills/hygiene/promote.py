"""Widening a skill's scope: a lesson that several users learned by themselves may become everybody's; nobody's own words may.

Evidence is independent: at least `LEAST_USERS` distinct users each have a live skill of their own that says nearly the same, and no
user has one that says the contrary in the same situation. The text that goes further is made only of lines whose every word those
users share: a word (a name, a host, a number) that fewer of them wrote stays with whom it belongs to, and the line with it. What is
left must still be a whole skill (`gate.lint`), and it is a proposal like any other: it goes through the gate.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.skills.gate.contrary import contrary
from metaclaw.skills.gate.duplicates import is_same_situation, overlap, situation_terms, text_terms, width
from metaclaw.skills.gate.lint import lint
from metaclaw.skills.hygiene.similar import find_similar, group_similar

LEAST_USERS = 3
SAME_LESSON = 0.5
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Promotion:
    """A lesson that may go to a wider scope: its shared text, and the private skills it was learned in."""

    skill: Skill
    learned_in: tuple[SkillName, ...]
    users: int


def find_promotions(skills: Sequence[Skill], scope: str | None, least_users: int = LEAST_USERS) -> list[Promotion]:
    """Lessons that enough users have in common, as skills for `scope`. `skills` are those of the users who are in that scope."""
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
    """What the skills of a group have in common, as one skill, or None where that is no whole skill."""
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
        """Whether anybody's skill for the same situation says the contrary of one of these."""
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
    counts: dict[str, int] = {}
    for words in by_user.values():
        for word in words:
            counts[word] = counts.get(word, 0) + 1
    return {word for word, users in counts.items() if users >= least_users}


def _words(text: str) -> set[str]:
    """Every word and number, as written but for its case: stricter than the terms of retrieval, which leave out some."""
    return set(_WORD.findall(text.casefold()))


def _most_typical_first(group: Sequence[Skill]) -> list[Skill]:
    terms = {skill.name: text_terms(skill) for skill in group}
    alike = {name: sum(overlap(own, other) for other in terms.values()) for name, own in terms.items()}
    return sorted(group, key=lambda skill: (-alike[skill.name], skill.name))
