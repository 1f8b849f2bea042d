"""For whom a skill is: everyone, a team, a workspace, one user, or the owner; and which of several that say the same wins.

A skill's `scope` is None for everyone, else `team:NAME`, `workspace:ID`, `user:ID`, or `owner` for whoever speaks without a user
id. An id by itself, without a kind, is a user's or a workspace's. Where skills say the same, the most specific one is placed: a
user's own before the workspace's, that before the team's, that before everyone's.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import Scope
from metaclaw.skills.terms import count_terms

Teams = Mapping[str, Collection[str]]
"""The configured teams: who belongs to each."""

OWNER = "owner"
EVERYONE, TEAM, WORKSPACE, PERSONAL = range(4)
_KINDS = {"team:": TEAM, "workspace:": WORKSPACE, "user:": PERSONAL}
# Triggers that share this much of their terms tell of the same situation; less is enough where one only says more than the other,
# since a word on either side ("to staging", "to production") makes them two.
_SAME_SITUATION = 0.8
_SAME_BUT_FINER = 0.6


def applying(scope: Scope | None, teams: Teams | None = None) -> dict[str, int]:
    """What a skill's scope may say to be placed for this speaker, each with how specific it is. None is nobody in particular."""
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


def scope_of_lesson(scope: Scope) -> str:
    """For whom a skill is that was learned from a turn of this scope: no wider than the one who spoke."""
    if scope.user:
        return f"user:{scope.user}"
    return f"workspace:{scope.workspace}" if scope.workspace else OWNER


def fault_of(scope: str) -> str | None:
    """What is wrong with a scope as a person wrote it, or None."""
    kind, _, who = scope.partition(":")
    return f"names no {kind}: write `{kind}:…`" if f"{kind}:" in _KINDS and not who.strip() else None


def most_specific(found: Sequence[Skill], rank: Mapping[str, int]) -> tuple[Skill, ...]:
    """The found skills in their order, without those that a more specific one speaks in place of.

    `rank` says how specific each scope is (see `applying`). One skill stands in for another where their triggers tell of the same
    situation, or where one of them names the other in its `overrides`; between equally specific ones only the latter counts.
    """
    if all(skill.scope is None and "overrides" not in skill.extra for skill in found):
        return tuple(found)
    kept: list[Skill] = []
    for skill in sorted(found, key=lambda one: -_rank(one, rank)):
        if not any(_speaks_for(other, skill, _rank(other, rank) - _rank(skill, rank)) for other in kept):
            kept = [one for one in kept if not _speaks_for(skill, one, _rank(skill, rank) - _rank(one, rank))]
            kept.append(skill)
    names = {skill.name for skill in kept}
    return tuple(skill for skill in found if skill.name in names)


def overrides_of(skill: Skill) -> tuple[str, ...]:
    """The names of skills that this one says it stands in for."""
    named = skill.extra.get("overrides")
    if isinstance(named, str):
        return (named,)
    return tuple(name for name in named if isinstance(name, str)) if isinstance(named, Iterable) else ()


def say_the_same(one: str, other: str) -> bool:
    """Whether two triggers tell of the same situation."""
    first, second = set(count_terms(one)), set(count_terms(other))
    if not first or not second:
        return one.split() == other.split()
    shared = len(first & second)
    needed = _SAME_BUT_FINER if shared == min(len(first), len(second)) else _SAME_SITUATION
    return shared >= needed * len(first | second)


def _both_ways(kind: str, who: str) -> dict[str, int]:
    """An id with its kind and by itself; the latter not where it reads like a scope that is somebody else's."""
    named = {kind + who: _KINDS[kind]}
    return named if who == OWNER or who.startswith(tuple(_KINDS)) else named | {who: _KINDS[kind]}


def _rank(skill: Skill, rank: Mapping[str, int]) -> int:
    return EVERYONE if skill.scope is None else rank.get(skill.scope, EVERYONE)


def _speaks_for(one: Skill, other: Skill, more_specific: int) -> bool:
    if more_specific < 0:
        return False
    if other.name in overrides_of(one):
        return True
    return more_specific > 0 and (one.name in overrides_of(other) or say_the_same(one.trigger, other.trigger))
