"""Whose a skill is, and what the program may do with it by itself.

A file says who wrote its skill: nobody named is a person. When a person changes what a learned skill says, or for whom it is, the
skill is theirs from then on, whatever the file's `author` and `state` lines still say: the program never changes, withholds or
retires it by itself again. Their file is not touched for that; the store remembers it.
"""

from dataclasses import replace

from metaclaw.domain.skill import Authorship, Skill, SkillKind, SkillState

_EVOLVER = Authorship.EVOLVER  # to look an enum's member up takes longer than to compare it
_SKILL = SkillKind.SKILL
_TELLING = ("kind", "applies", "workspace", "expires", "overrides", "check", "enforce", "on_error", "on_break")


def meaning_of(skill: Skill) -> tuple[object, ...]:
    """What makes a skill another: what it says, for whom and where it applies, and how it is checked."""
    return skill.content_hash, *(skill.extra.get(key) for key in _TELLING)


def owned(read: Skill, known: Skill | None) -> Skill:
    """The skill that was read from a file, with its rightful author. `known` is the one of this name that was in force before."""
    if known is None or read.author is Authorship.PERSON:
        return read
    if known.author is Authorship.PERSON or meaning_of(known) != meaning_of(read):
        return replace(read, author=Authorship.PERSON, state=SkillState.LIVE)
    return read


def is_untouchable(skill: Skill) -> bool:
    """Whether only a person may change or retire this skill."""
    return skill.pinned or skill.author is Authorship.PERSON


def may_be_withheld(skill: Skill) -> bool:
    """Whether this skill's placing may be left to chance: a person's own words never are."""
    return skill.author is _EVOLVER and not skill.pinned and skill.kind is _SKILL
