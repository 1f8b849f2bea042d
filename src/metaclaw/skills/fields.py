"""The meaning of the fields of a skill, rule or fact: text, time, enforcement, scope and author.

A `scope` is None for everyone, else `team:NAME`, `workspace:ID`, `user:ID`, or `owner` for requests
without a user id; an id without a kind is a user's or a workspace's. Of skills that say the same,
only the most specific is placed: the user's before the workspace's, then the team's, then
everyone's."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from metaclaw.domain.skill import Authorship, Skill, SkillKind, SkillState
from metaclaw.domain.turn import Scope
from metaclaw.text import count_terms

ALWAYS: Final = "always"
ENFORCE: Final = ("off", "remind", "hold")
ON_ERROR: Final = ("pass", "hold")
ON_BREAK: Final = ("text", "call")
PROPOSED, CONFIRMED = CHECK_STATES = ("proposed", "confirmed")
"""A check that a model wrote is proposed until a turn has confirmed it. A check without a state was
written by a person.
"""
# Old versions stored a rule as a skill with a template: an introduction, the person's words as a
# quotation, steps.
_TEMPLATES: Final = (
    "The person's own words, to be followed as they stand:",
    "A task of this kind went wrong before. What the person said about it:",
)
_QUOTATION: Final = re.compile(r"(?m)^> ?(.*)$")


def choice_fault(field: str, value: object, allowed: Sequence[str]) -> str | None:
    """What is wrong with a value that must be one of `allowed`, or None. A missing value is
    allowed.
    """
    if value is None or value in allowed:
        return None
    words = [f"`{choice}`" for choice in allowed]
    return f"{field} is {value!r}: write {', '.join(words[:-1])} or {words[-1]}"


def rule_text(rule: Skill) -> str:
    """The person's words, without the template of old versions."""
    if not is_template(rule):
        return rule.body
    return "\n".join(_QUOTATION.findall(rule.body)).strip() or rule.body


def rule_when(rule: Skill) -> str:
    """When the rule applies: `always`, or the situation. A trigger that only repeats the rule means
    always.
    """
    is_always = (
        rule.applies_always
        or rule.trigger.strip(" .").casefold() == ALWAYS
        or rule.trigger.split() == rule.body.split()
    )
    return ALWAYS if is_always else rule.trigger


def is_template(rule: Skill) -> bool:
    """Whether the rule has the template of an old version, whose trigger is only a list of
    words.
    """
    return rule.body.startswith(_TEMPLATES)


def enforce_of(skill: Skill) -> str:
    """What happens when it is broken: `off` (only counted), `remind` (the default) or `hold`."""
    value = skill.extra.get("enforce")
    return value if isinstance(value, str) and value in ENFORCE else "remind"


def on_error_of(skill: Skill) -> str:
    """What happens to a call when its check cannot be run: `hold` (the default of a rule that a
    person holds) or `pass`.
    """
    value = skill.extra.get("on_error")
    if isinstance(value, str) and value in ON_ERROR:
        return value
    return (
        "hold" if enforce_of(skill) == "hold" and skill.author is not Authorship.EVOLVER else "pass"
    )


def on_break_of(skill: Skill) -> str:
    """What the client gets when a held rule is broken in every attempt: a `text` (the default), or
    the `call` with a warning.
    """
    return "call" if skill.extra.get("on_break") == "call" else "text"


def check_state_of(skill: Skill) -> str | None:
    """Whether its check is `proposed` or `confirmed`; None if it has no check."""
    if skill.extra.get("check") is None:
        return None
    return PROPOSED if skill.extra.get("check_state") == PROPOSED else CONFIRMED


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
_SKILL = SkillKind.SKILL

# Keys of the front matter that change what is placed, checked or held.
_MEANING_KEYS = (
    "kind",
    "applies",
    "workspace",
    "expires",
    "overrides",
    "check",
    "enforce",
    "on_error",
    "on_break",
)


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
    if is_level and not any("overrides" in skill.extra for skill in skills):
        return tuple(skills)
    nearest_first = sorted(skills, key=lambda skill: -ranks[skill.name])
    gone: set[str] = set()
    for skill in nearest_first:
        for name in overrides_of(skill):
            # The more specific of the two stays, no matter which names the other.
            if name in ranks and skill.name not in gone:
                gone.add(name if ranks[skill.name] >= ranks[name] else skill.name)
    if not is_level:
        _drop_repeated(nearest_first, ranks, gone)
    return tuple(skill for skill in skills if skill.name not in gone or is_held(skill))


def is_held(skill: Skill) -> bool:
    """Whether the person wants calls that break this rule to be held."""
    return skill.extra.get("enforce") == "hold"


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
        is_skill, terms = skill.kind is _SKILL, _terms_said(skill)
        sharing = (other for term in terms for other in said.get((is_skill, term), ()))
        near = {other.name: other for other in sharing if ranks[other.name] > ranks[skill.name]}
        if any(_overlap(terms, _terms_said(other)) for other in near.values()):
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
    """The names of the skills that this one replaces."""
    named = skill.extra.get("overrides")
    if isinstance(named, str):
        return (named,)
    return (
        tuple(name for name in named if isinstance(name, str))
        if isinstance(named, Iterable)
        else ()
    )


def _both_ways(kind: str, who: str) -> dict[str, int]:
    """The scopes of an id: with its kind, and without if that cannot be mistaken for another
    scope.
    """
    named = {kind + who: _KINDS[kind]}
    return named if who == OWNER or who.startswith(tuple(_KINDS)) else named | {who: _KINDS[kind]}


def rank_of(skill: Skill, rank: Mapping[str, int]) -> int:
    return EVERYONE if skill.scope is None else rank.get(skill.scope, EVERYONE)


def meaning_of(skill: Skill) -> tuple[object, ...]:
    """A skill's text, where it applies, and how it is checked. If this changes, it counts as
    another skill.
    """
    return skill.content_hash, *(skill.extra.get(key) for key in _MEANING_KEYS)


def owned(read: Skill, known: Skill | None) -> Skill:
    """A skill read from a file, with its author. If a person has changed the `known` learned skill
    of this name, they are its author from then on, even if the file says otherwise: the program
    never changes, withholds or retires it again."""
    if known is None or read.author is Authorship.PERSON:
        return read
    if known.author is Authorship.PERSON or meaning_of(known) != meaning_of(read):
        return replace(read, author=Authorship.PERSON, state=SkillState.LIVE)
    return read


def is_untouchable(skill: Skill) -> bool:
    """Whether a person wrote or pinned this skill, so that only a person may change or retire
    it.
    """
    return skill.pinned or skill.author is Authorship.PERSON


def is_stated(skill: Skill) -> bool:
    """Whether it is a rule or a fact, which only a person's message or command may change."""
    return skill.kind is not _SKILL or skill.author is Authorship.INSTRUCTION


def may_be_withheld(skill: Skill) -> bool:
    """Whether this skill may be withheld at random to measure its uplift; rules and facts may
    not.
    """
    return skill.author is Authorship.EVOLVER and not skill.pinned and skill.kind is _SKILL
