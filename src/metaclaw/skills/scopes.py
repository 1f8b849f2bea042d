"""Scopes: for whom a skill is (everyone, a team, a workspace, a user, the owner), whose it is, and which of several alike wins.

A skill's `scope` is None for everyone, else `team:NAME`, `workspace:ID`, `user:ID`, or `owner` for requests without a user id. An
id without a kind is a user's or a workspace's. Where skills say the same, the most specific one is placed: a user's own
before the workspace's, that before the team's, that before everyone's.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from metaclaw.domain.skill import Authorship, Skill, SkillKind, SkillState
from metaclaw.domain.turn import Scope
from metaclaw.skills.rule_fields import rule_text
from metaclaw.text import count_terms

Teams = Mapping[str, Collection[str]]
"""The configured teams: who belongs to each."""

OWNER = "owner"
EVERYONE, TEAM, WORKSPACE, PERSONAL = range(4)
_KINDS = {"team:": TEAM, "workspace:": WORKSPACE, "user:": PERSONAL}
# Triggers that share this much of their terms tell of the same situation; less is enough where one only says more than the other,
# since a word on either side ("to staging", "to production") makes them two.
_SAME_SITUATION = 0.8
_SAME_BUT_FINER = 0.6
_SKILL = SkillKind.SKILL

# Keys of the front matter that belong to what a skill means: a new key that changes what is placed, checked or held belongs here.
_MEANING_KEYS = ("kind", "applies", "workspace", "expires", "overrides", "check", "enforce", "on_error", "on_break")
MOST_LISTABLE = 512
"""A scope with more skills than this is never listed whole, so only their number is kept."""
Group = Mapping[str, Skill]
_EMPTY: Group = {}


def applying(scope: Scope | None, teams: Teams | None = None) -> dict[str, int]:
    """The scopes that include this speaker, each with how specific it is. None stands for no particular speaker."""
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
    """For whom something is that was learned from a turn of this scope: the person who spoke, in all of their projects."""
    return f"user:{scope.user}" if scope.user else OWNER


def fault_of(scope: str) -> str | None:
    """What is wrong with a scope as a person wrote it, or None."""
    kind, _, who = scope.partition(":")
    return f"names no {kind}: write `{kind}:…`" if f"{kind}:" in _KINDS and not who.strip() else None


def most_specific(found: Sequence[Skill], rank: Mapping[str, int]) -> tuple[Skill, ...]:
    """The found rules, facts and skills in their order, without those that a more specific one speaks in place of.

    `rank` says how specific each scope is (see `applying`). One stands in for another where both say the same: rules and facts by
    their text, skills by the situation in their triggers. It does so too where one of them names the other in its `overrides`;
    between equally specific ones only that counts. A held rule always stays: words of one speaker must not lift it.
    """
    ranks: dict[str, int] = {skill.name: _rank(skill, rank) for skill in found}
    is_level = len(set(ranks.values())) < 2
    if is_level and not any("overrides" in skill.extra for skill in found):
        return tuple(found)
    nearest_first = sorted(found, key=lambda one: -ranks[one.name])
    gone: set[str] = set()
    for skill in nearest_first:
        for name in overrides_of(skill):
            # The more specific one wins, whichever of the two names the other.
            if name in ranks and skill.name not in gone:
                gone.add(name if ranks[skill.name] >= ranks[name] else skill.name)
    if not is_level:
        _drop_repeated(nearest_first, ranks, gone)
    return tuple(skill for skill in found if skill.name not in gone or is_held(skill))


def is_held(skill: Skill) -> bool:
    """Whether the person wants calls that break this rule to be held."""
    return skill.extra.get("enforce") == "hold"


def _drop_repeated(nearest_first: Sequence[Skill], ranks: Mapping[str, int], gone: set[str]) -> None:
    """Add to `gone` what a more specific one of the same sort says already."""
    said: dict[tuple[bool, str], list[Skill]] = {}
    for skill in nearest_first:
        if skill.name in gone:
            continue
        is_skill, terms = skill.kind is _SKILL, _terms_said(skill)
        near = {one.name: one for term in terms for one in said.get((is_skill, term), ()) if ranks[one.name] > ranks[skill.name]}
        if any(_overlap(terms, _terms_said(one)) for one in near.values()):
            gone.add(skill.name)
            continue
        for term in terms:
            said.setdefault((is_skill, term), []).append(skill)


def _terms_said(skill: Skill) -> frozenset[str]:
    return _terms(skill.trigger if skill.kind is _SKILL else rule_text(skill))


@lru_cache(maxsize=4096)
def _terms(text: str) -> frozenset[str]:
    return frozenset(count_terms(text)) or frozenset(text.split())


def _overlap(first: frozenset[str], second: frozenset[str]) -> bool:
    shared = len(first & second)
    needed = _SAME_BUT_FINER if shared == min(len(first), len(second)) else _SAME_SITUATION
    return shared >= needed * len(first | second)


def overrides_of(skill: Skill) -> tuple[str, ...]:
    """The names of skills that this one says it stands in for."""
    named = skill.extra.get("overrides")
    if isinstance(named, str):
        return (named,)
    return tuple(name for name in named if isinstance(name, str)) if isinstance(named, Iterable) else ()


def _both_ways(kind: str, who: str) -> dict[str, int]:
    """An id with its kind and by itself; the latter not where it reads like a scope of another kind."""
    named = {kind + who: _KINDS[kind]}
    return named if who == OWNER or who.startswith(tuple(_KINDS)) else named | {who: _KINDS[kind]}


def _rank(skill: Skill, rank: Mapping[str, int]) -> int:
    return EVERYONE if skill.scope is None else rank.get(skill.scope, EVERYONE)


def meaning_of(skill: Skill) -> tuple[object, ...]:
    """What a skill means: its text, for whom and where it applies, and how it is checked. If this changes, it is another skill."""
    return skill.content_hash, *(skill.extra.get(key) for key in _MEANING_KEYS)


def owned(read: Skill, known: Skill | None) -> Skill:
    """The skill that was read from a file, with its author. `known` is the one of this name that was in force before.

    A learned skill that a person has changed is theirs from then on, whatever `author` and `state` in the file still say: the
    program never changes, withholds or retires it by itself again.
    """
    if known is None or read.author is Authorship.PERSON:
        return read
    if known.author is Authorship.PERSON or meaning_of(known) != meaning_of(read):
        return replace(read, author=Authorship.PERSON, state=SkillState.LIVE)
    return read


def is_untouchable(skill: Skill) -> bool:
    """Whether a person wrote or pinned this skill, so that only a person may change or retire it."""
    return skill.pinned or skill.author is Authorship.PERSON


def is_stated(skill: Skill) -> bool:
    """Whether it is what a person said: a rule or a fact. Only their own later words, or a command of theirs, change it."""
    return skill.kind is not _SKILL or skill.author is Authorship.INSTRUCTION


def may_be_withheld(skill: Skill) -> bool:
    """Whether this skill may be withheld at random to measure its effect: a person's own words never are."""
    return skill.author is Authorship.EVOLVER and not skill.pinned and skill.kind is _SKILL


class Members:
    """Rules, facts and skills by scope (None: everyone's), each group by name. Never changes; what is not touched is shared."""

    __slots__ = ("_counts", "_groups")

    def __init__(self) -> None:
        self._groups: dict[tuple[str | None, bool], dict[str, Skill]] = {}
        self._counts: Counter[str | None] = Counter()

    def standing(self, scope: str | None) -> Group:
        """The rules and facts of a scope, and its skills that apply to every task."""
        return self._groups.get((scope, False), _EMPTY)

    def skills(self, scope: str | None) -> Group | None:
        """The other skills of a scope, or None where they are too many to be listed."""
        found = self._groups.get((scope, True), _EMPTY)
        return found if len(found) == self._counts[scope] else None

    def changed(self, changes: Iterable[tuple[Skill, bool]]) -> "Members":
        """The next state: each skill put in (True) or taken out, in this order."""
        members = Members()
        groups, counts = self._groups.copy(), self._counts.copy()
        members._groups, members._counts = groups, counts
        own: set[tuple[str | None, bool]] = set()
        for skill, is_added in changes:
            key = skill.scope, _is_listable(skill)
            if key[1]:
                counts[skill.scope] += 1 if is_added else -1
            if key not in own:
                own.add(key)
                groups[key] = dict(groups.get(key, _EMPTY))
            if is_added and not (key[1] and counts[skill.scope] > MOST_LISTABLE):
                groups[key][skill.name] = skill
            elif not is_added:
                groups[key].pop(skill.name, None)
        return members


def _is_listable(skill: Skill) -> bool:
    return skill.kind is _SKILL and not skill.applies_always
