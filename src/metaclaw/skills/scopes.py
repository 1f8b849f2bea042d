"""Whom a skill, rule or fact is for, which of several is placed, and who may change it.

A `scope` is None for everyone, else `team:NAME`, `workspace:ID`, `user:ID`, or `owner` for requests
without a user id; an id without a kind is a user's or a workspace's. Of skills that say the same,
only the most specific is placed: the user's before the workspace's, then the team's, then
everyone's."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.domain.turn import Scope
from metaclaw.text import count_terms


def choice_fault(field: str, value: object, allowed: Sequence[str]) -> str | None:
    """What is wrong with a value that must be one of `allowed`, or None. A missing value is
    allowed.
    """
    if value is None or value in allowed:
        return None
    words = [f"`{choice}`" for choice in allowed]
    return f"{field} is {value!r}: write {', '.join(words[:-1])} or {words[-1]}"


Teams = Mapping[str, Collection[str]]
"""The configured teams with their users."""

OWNER = "owner"
EVERYONE, TEAM, WORKSPACE, PERSONAL = range(4)
_KINDS = {"team:": TEAM, "workspace:": WORKSPACE, "user:": PERSONAL}
# Triggers that share this much of their terms are for the same situation. Less is enough if one
# trigger has all terms of the other; if each has a term of its own ("to staging", "to production"),
# they are different situations.
_SAME_SITUATION = 0.8
_SAME_BUT_FINER = 0.6


def applying(scope: Scope | None, teams: Teams | None = None) -> dict[str, int]:
    """The scopes that include this speaker, each with its rank: how specific it is."""
    if scope is None:
        return {}
    user, workspace = scope.user, scope.workspace
    named = _both_ways("workspace:", workspace) if workspace else {}
    if not user:
        return named | {OWNER: PERSONAL}
    named |= {f"team:{name}": TEAM for name, users in (teams or {}).items() if user in users}
    return named | _both_ways("user:", user)


def applies(wanted: str | None, scope: Scope | None, teams: Teams | None = None) -> bool:
    """Whether a skill of this scope may be placed for this speaker."""
    return wanted is None or wanted in applying(scope, teams)


@dataclass(frozen=True, slots=True)
class Reach:
    """What of the library a person sees, and what of it is theirs to change."""

    user: str
    teams: Teams

    def sees(self, skill: Skill) -> bool:
        """Whether it is theirs, their teams' or everyone's."""
        return applies(skill.scope, Scope(self.user), self.teams)

    def owns(self, skill: Skill) -> bool:
        return applying(Scope(self.user)).get(skill.scope or "") == PERSONAL


def scope_of_lesson(scope: Scope) -> str:
    """The scope of a lesson from a turn: the speaker, in all projects."""
    return f"user:{scope.user}" if scope.user else OWNER


def fault_of(scope: str) -> str | None:
    """What is wrong with a scope as a person wrote it, or None."""
    kind, _, who = scope.partition(":")
    return (
        f"names no {kind}: write `{kind}:…`" if f"{kind}:" in _KINDS and not who.strip() else None
    )


def most_specific(skills: Sequence[Skill], rank: Mapping[str, int]) -> tuple[Skill, ...]:
    """The rules, facts and skills in their order, without those that a more specific one replaces:
    both say the same (rules and facts by text, skills by trigger), or one names the other in
    `overrides`. Of equally specific ones, only `overrides` counts. `rank` says how specific each
    scope is. A held rule always stays, because one speaker must not be able to lift it."""
    ranks: dict[str, int] = {skill.name: rank_of(skill, rank) for skill in skills}
    is_level = len(set(ranks.values())) < 2
    if is_level and not any(skill.overrides for skill in skills):
        return tuple(skills)
    nearest_first = sorted(skills, key=lambda skill: -ranks[skill.name])
    gone: set[str] = set()
    for skill in nearest_first:
        for name in skill.overrides:
            # The more specific of the two stays, no matter which names the other.
            if name in ranks and skill.name not in gone:
                gone.add(name if ranks[skill.name] >= ranks[name] else skill.name)
    if not is_level:
        _drop_repeated(nearest_first, ranks, gone)
    return tuple(skill for skill in skills if skill.name not in gone or skill.enforce == "hold")


def _drop_repeated(
    nearest_first: Sequence[Skill], ranks: Mapping[str, int], gone: set[str]
) -> None:
    """Add to `gone` the skills that repeat a more specific skill, and the rules that repeat a more
    specific rule.
    """
    said: dict[tuple[bool, str], list[Skill]] = {}
    for skill in nearest_first:
        if skill.name in gone:
            continue
        is_skill, terms = skill.is_skill, _terms_said(skill)
        sharing = (other for term in terms for other in said.get((is_skill, term), ()))
        near = {other.name: other for other in sharing if ranks[other.name] > ranks[skill.name]}
        if any(_overlap(terms, _terms_said(other)) for other in near.values()):
            gone.add(skill.name)
            continue
        for term in terms:
            said.setdefault((is_skill, term), []).append(skill)


def _terms_said(skill: Skill) -> frozenset[str]:
    return _terms(skill.trigger if skill.is_skill else skill.body)


@lru_cache(maxsize=4096)
def _terms(text: str) -> frozenset[str]:
    return frozenset(count_terms(text)) or frozenset(text.split())


def _overlap(first: frozenset[str], second: frozenset[str]) -> bool:
    shared = len(first & second)
    needed = _SAME_BUT_FINER if shared == min(len(first), len(second)) else _SAME_SITUATION
    return shared >= needed * len(first | second)


def _both_ways(kind: str, who: str) -> dict[str, int]:
    """The scopes of an id: with its kind, and without if that cannot be mistaken for another
    scope.
    """
    named = {kind + who: _KINDS[kind]}
    return named if who == OWNER or who.startswith(tuple(_KINDS)) else named | {who: _KINDS[kind]}


def rank_of(skill: Skill, rank: Mapping[str, int]) -> int:
    return EVERYONE if skill.scope is None else rank.get(skill.scope, EVERYONE)


def owned(read: Skill, known: Skill | None) -> Skill:
    """A skill read from a file, with its author. If a person has changed the `known` learned skill
    of this name, they are its author from then on, even if the file says otherwise: the program
    never changes or retires it again."""
    if known is None or read.author is Authorship.PERSON:
        return read
    if known.author is Authorship.PERSON or known.meaning != read.meaning:
        return replace(read, author=Authorship.PERSON, state=SkillState.LIVE)
    return read


def is_untouchable(skill: Skill) -> bool:
    """Whether a person wrote or pinned this skill, so that only a person may change or retire
    it.
    """
    return skill.pinned or skill.author is Authorship.PERSON
