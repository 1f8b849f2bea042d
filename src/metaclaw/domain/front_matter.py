"""The stored form of a skill, rule or fact: a few fields of their own, and the rest of its front
matter as one mapping, as in its file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final, NamedTuple, get_args

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import (
    ALWAYS,
    Authorship,
    CheckState,
    Enforce,
    Fact,
    Lesson,
    OnBreak,
    OnError,
    Rule,
    Skill,
    SkillState,
)
from metaclaw.domain.turn import channel_name

UNKNOWN_PROJECT: Final = "unknown"
_TYPES: Mapping[str, type[Skill]] = {kind.kind.value: kind for kind in (Skill, Rule, Fact, Lesson)}
CHOICES: Mapping[str, tuple[str, ...]] = {
    "enforce": get_args(Enforce),
    "on_error": get_args(OnError),
    "on_break": get_args(OnBreak),
    "check_state": get_args(CheckState),
}
"""The fields that must have one of a few values."""


@dataclass(frozen=True, slots=True)
class SkillRecord:
    """A skill, rule or fact as it is stored. `extra` is the rest of its front matter."""

    name: SkillName
    trigger: str
    body: str
    category: str | None = None
    scope: str | None = None
    extra: Mapping[str, object] = field(default_factory=dict)
    state: SkillState = SkillState.LIVE
    author: Authorship = Authorship.PERSON
    pinned: bool = False

    def read(self) -> Skill:
        """The skill, rule or fact. A person's words are at least a rule. Raises ValueError."""
        other, typed = dict(self.extra), dict[str, Any]()
        kind = _TYPES.get(str(other.get("kind")), Skill)
        if kind is Skill and self.author is Authorship.INSTRUCTION:
            kind = Rule
        if not kind.is_skill:
            other.pop("kind", None)
        for attribute, key in _KEYS.items():
            said = other.get(key.name)
            if said is not None and (value := key.read(said)):
                typed[attribute] = value
                del other[key.name]
        return kind(
            self.name,
            self.trigger,
            self.body,
            self.category,
            self.scope,
            self.state,
            self.author,
            self.pinned,
            other=other,
            **typed,
        )


def record_of(skill: Skill) -> SkillRecord:
    """The stored form of a skill, rule or fact."""
    return SkillRecord(
        skill.name,
        skill.trigger,
        skill.body,
        skill.category,
        skill.scope,
        front_matter(skill),
        skill.state,
        skill.author,
        skill.pinned,
    )


def front_matter(skill: Skill) -> dict[str, object]:
    """The keys of the front matter that have no field in `SkillRecord`."""
    values = ((key, getattr(skill, attribute)) for attribute, key in _KEYS.items())
    typed = {key.name: key.write(value) for key, value in values if value}
    if not skill.is_skill:
        typed = {"kind": skill.kind.value} | typed
    return {**typed, **skill.other, **typed}  # ours come first, and nothing replaces them


class _Key(NamedTuple):
    """The key of a field. `read` returns its value, or a false one for what is not its value: that
    stays among the keys of other programs. A false value is not written.
    """

    name: str
    read: Callable[[Any], object]
    write: Callable[[Any], object] = lambda value: value


def _word(name: str, word: str) -> _Key:
    """A field that is true if its key has this value."""
    return _Key(name, lambda value: value == word, lambda value: word)


def _choice(name: str) -> _Key:
    return _Key(name, lambda value: value if value in CHOICES[name] else None)


def _texts(value: object) -> tuple[str, ...]:
    listed = value if isinstance(value, list | tuple) else [value]
    return tuple(text for text in listed if isinstance(text, str))


def _day(value: object) -> date | None:
    try:
        return date.fromisoformat(str(value))
    except ValueError:
        return None


_KEYS: Mapping[str, _Key] = {
    "applies_always": _word("applies", ALWAYS),
    "workspace": _Key("workspace", str),
    "channel": _Key("channel", lambda value: channel_name(str(value))),
    "is_project_unknown": _word("project", UNKNOWN_PROJECT),
    "expires": _Key("expires", _day, date.isoformat),
    "examples": _Key("examples", _texts, list),
    "overrides": _Key("overrides", _texts, list),
    "signatures": _Key("signatures", _texts, list),
    "remedy": _Key("remedy", _texts, list),
    "source": _Key("source", str),
    "asks_to_hold": _Key("ask_hold", bool),
    "check": _Key("check", str),
    "check_state": _choice("check_state"),
    "check_note": _Key("check_note", str),
    "enforce": _choice("enforce"),
    "on_error": _choice("on_error"),
    "on_break": _choice("on_break"),
}
