"""Skills, rules and facts, their generations and audiences, and their similarity to a request in
meaning.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import date, datetime
from enum import StrEnum
from math import log10
from typing import ClassVar, Final, Literal, NamedTuple

from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.turn import Scope

MAX_BODY_CHARS = 16_000
SKILLS_NAMED: Final = "skills.named"
"""The event that a session's next request is to have skills in full, because a message needs them."""
_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")


class SkillState(StrEnum):
    """The state of a skill. Only live skills are placed, and only they belong to a generation."""

    DRAFT = "draft"
    LIVE = "live"
    RETIRED = "retired"

    @classmethod
    def _missing_(cls, value: object) -> "SkillState | None":
        """Skills that an earlier version had on trial are live."""
        return cls.LIVE if value == "canary" else None


class Authorship(StrEnum):
    """The author of a skill. The program changes and retires only what the evolver wrote."""

    PERSON = "person"
    INSTRUCTION = "instruction"
    EVOLVER = "evolver"


class SkillKind(StrEnum):
    """The word for a skill, rule or fact, in files and in the API."""

    SKILL = "skill"
    RULE = "rule"
    FACT = "fact"
    LESSON = "lesson"


ALWAYS: Final = "always"
"""Said in the place of a situation by a rule for every task."""
Enforce = Literal["off", "remind", "hold"]
OnError = Literal["pass", "hold"]
OnBreak = Literal["text", "call"]
CheckState = Literal["proposed", "confirmed"]


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill; rules and facts are kept and placed like one. `trigger` (the file's description)
    says when it applies, `body` is the text.

    `scope` is None for everyone, else `user:ID`, `workspace:ID`, `team:NAME`, or `owner` for
    requests without a user id. `author` is INSTRUCTION if the program recorded a person's own
    words, in the turn `source`. `other` are keys that other programs have in the front matter of
    its file: they are kept, and nothing reads them. `domain.front_matter` has the form of the
    other fields in files and in the store."""

    name: SkillName
    trigger: str
    body: str
    category: str | None = None
    scope: str | None = None
    state: SkillState = SkillState.LIVE
    author: Authorship = Authorship.PERSON
    pinned: bool = False
    _: KW_ONLY
    applies_always: bool = False
    """Whether it applies to every task in its scope, such as a rule about the language of
    answers.
    """
    workspace: str | None = None
    """The only workspace it is for; a directory includes the directories below it."""
    channel: str | None = None
    """The only channel it is for (see `Scope`)."""
    is_project_unknown: bool = False
    """Whether it was stated for a project that was not known then."""
    expires: date | None = None
    """The last day on which it is in force."""
    examples: tuple[str, ...] = ()
    """Requests it is for, as people word them."""
    overrides: tuple[str, ...] = ()
    """The names of the skills that it replaces."""
    signatures: tuple[str, ...] = ()
    """The failures that taught it (see `domain.episode`)."""
    remedy: tuple[str, ...] = ()
    """The words of a call that follows it, if it names such words."""
    source: TurnId | None = None
    check: str | None = None
    check_state: CheckState | None = None
    """A check that a model wrote is proposed until a turn has confirmed it."""
    check_note: str | None = None
    """Why a proposed check was not taken."""
    enforce: Enforce | None = None
    on_error: OnError | None = None
    on_break: OnBreak | None = None
    """What the client gets when a held rule is broken in every attempt: a `text`, which is the
    default, or the `call` with a warning.
    """
    asks_to_hold: bool = False
    """Whether its author is to be asked if calls that break it should be held."""
    other: Mapping[str, object] = field(default_factory=dict)

    kind: ClassVar[SkillKind] = SkillKind.SKILL
    is_skill: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not _SLUG.fullmatch(self.name):
            raise ValueError(
                f"skill name {self.name!r} is not a slug: lower-case letters, digits and hyphens,"
                " at most 64"
            )
        if not self.trigger.strip():
            raise ValueError(f"skill {self.name} has no description saying when to use it")
        if not self.body.strip():
            raise ValueError(f"skill {self.name} has an empty body")
        if len(self.body) > MAX_BODY_CHARS:
            raise ValueError(
                f"skill {self.name} has a body of {len(self.body)} characters; at most"
                f" {MAX_BODY_CHARS} are placed"
            )
        if self.pinned and self.state is not SkillState.LIVE:
            raise ValueError(
                f"skill {self.name} is pinned but {self.state}; only a live skill can be pinned"
            )

    @property
    def when(self) -> str:
        """When it applies: `always`, or the situation. A trigger that only repeats the text means
        always.
        """
        is_always = (
            self.applies_always
            or self.trigger.strip(" .").casefold() == ALWAYS
            or self.trigger.split() == self.body.split()
        )
        return ALWAYS if is_always else self.trigger

    @property
    def enforcement(self) -> Enforce:
        """What happens when it is broken: `off` (only counted), `remind` (the default) or
        `hold`.
        """
        return self.enforce or "remind"

    @property
    def error_handling(self) -> OnError:
        """What happens to a call when the check cannot be run: `hold` (the default of a rule that a
        person holds) or `pass`.
        """
        is_held = self.enforce == "hold" and self.author is not Authorship.EVOLVER
        return self.on_error or ("hold" if is_held else "pass")

    @property
    def is_check_proposed(self) -> bool:
        """Whether it has a check that no turn has confirmed yet."""
        return self.check is not None and self.check_state == "proposed"

    def is_expired(self, today: date) -> bool:
        return self.expires is not None and self.expires < today

    def is_for_workspace(self, workspace: str | None) -> bool:
        """Whether it may be placed in this workspace."""
        named = self.workspace
        if named is None or named == workspace:
            return True
        return workspace is not None and workspace.startswith((f"{named}/", f"{named}\\"))

    def is_for(self, scope: Scope) -> bool:
        """Whether it may be placed in this workspace and on this channel."""
        return self.channel in (None, scope.channel) and self.is_for_workspace(scope.workspace)

    @property
    def content_hash(self) -> str:
        """Hash of the text that is placed."""
        text = "\0".join(
            (self.name, self.trigger, self.body, self.category or "", self.scope or "")
        )
        text += "" if self.is_skill else f"\0{self.kind}"
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    @property
    def meaning(self) -> tuple[object, ...]:
        """Its text, where it applies, and how it is checked. If this changes, it counts as another
        skill.
        """
        return (
            self.content_hash,
            self.applies_always,
            self.workspace,
            self.channel,
            self.expires,
            self.overrides,
            self.check,
            self.enforce,
            self.on_error,
            self.on_break,
        )


class Rule(Skill):
    """A person's instruction, in their words: in force at once, without a trial."""

    __slots__ = ()
    kind = SkillKind.RULE
    is_skill = False

    @property
    def is_as_said(self) -> bool:
        """Whether it is the person's own sentence, which no model has put in short words."""
        is_said = self.source is not None and self.author is Authorship.INSTRUCTION
        return is_said and not self.applies_always and self.trigger.split() == self.body.split()


class Fact(Rule):
    """Something that a person wants remembered. It is kept like a rule, but cannot be broken."""

    __slots__ = ()
    kind = SkillKind.FACT


class Lesson(Skill):
    """One line that the evolver wrote about a tool call that failed repeatedly, and what worked
    instead. In force without a trial; it goes by itself if the failure goes on.
    """

    __slots__ = ()
    kind = SkillKind.LESSON
    is_skill = False


def library_hash(skills: Iterable[Skill]) -> str:
    """One hash for a set of skills, independent of order."""
    return combined_hash(skill.content_hash for skill in skills)


def combined_hash(content_hashes: Iterable[str]) -> str:
    """`library_hash` from known content hashes, so that one change does not hash all bodies
    again.
    """
    return hashlib.blake2b("".join(sorted(content_hashes)).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class LearnedFrom:
    """The evidence of a learned change: the newest generation of its turns, the turns, and the
    candidate, if any.
    """

    generation: int
    turns: tuple[TurnId, ...] = ()
    candidate: str | None = None


@dataclass(frozen=True, slots=True)
class GenerationChange:
    """The skills that one generation changed, as they were before it and as they are in it."""

    number: int
    published_at: datetime | None
    reason: str
    is_revert: bool
    before: dict[SkillName, Skill]
    after: dict[SkillName, Skill]


@dataclass(frozen=True, slots=True)
class RetiredSkill:
    """The last text of a skill, rule or fact that is no longer in force, and when and why it was
    retired.
    """

    skill: Skill
    retired_at: datetime | None
    reason: str


@dataclass(frozen=True, slots=True)
class SkillGeneration:
    """A numbered, content-addressed set of live skills. Generation 0 is the empty one."""

    number: int
    hash: str
    skills: tuple[Skill, ...]

    def __post_init__(self) -> None:
        names = [skill.name for skill in self.skills]
        if len(set(names)) != len(names):
            raise ValueError("two skills of one generation have the same name")


@dataclass(frozen=True, slots=True)
class ChangesSince:
    """The number and hash of the newest generation, the skills that were added or changed since an
    earlier one, and those removed, except those that were forgotten with a session."""

    number: int
    hash: str
    put: tuple[Skill, ...]
    gone: tuple[SkillName, ...]


_OWNER = "owner"
_SCOPE_KINDS = ("team:", "workspace:", "user:")
_BARE = "id:"


class Audience(NamedTuple):
    """The speakers that a rule or skill is for, on any channel. `scope` is empty for everyone, else `owner`,
    `user:ID`, `workspace:ID`, `team:NAME`, or `id:ID` for a scope that names a user or a workspace
    by its id alone. `workspace` is empty for every workspace; a directory includes the directories
    below it."""

    scope: str
    workspace: str


def audience_hashes(skills: Iterable[Skill]) -> dict[Audience, str]:
    """One hash for each audience, of the rules and skills for it. Facts and lessons do not count, nor
    does a rule or skill that no speaker gets."""
    members: defaultdict[Audience, list[str]] = defaultdict(list)
    for skill in skills:
        if not isinstance(skill, Fact | Lesson) and skill.scope != "":
            members[_audience_of(skill)].append(_placed_hash(skill))
    return {audience: combined_hash(digests) for audience, digests in members.items()}


def _audience_of(skill: Skill) -> Audience:
    scope = skill.scope or ""
    is_bare = scope not in ("", _OWNER) and not scope.startswith(_SCOPE_KINDS)
    return Audience(_BARE + scope if is_bare else scope, skill.workspace or "")


def _placed_hash(skill: Skill) -> str:
    """A hash of everything that decides which text of a rule or skill is placed and for which
    tasks. State, author and examples do not count."""
    overrides = json.dumps(skill.overrides or None)
    parts = (skill.content_hash, str(skill.applies_always), overrides, skill.channel)
    text = "\0".join(part for part in parts if part is not None)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


_WORDS = 0.1
_MOST_WORDS = 1.5
_BACKGROUND = 0.4
_BAR = 0.2
_BAR_FOR_RULES = 0.15
# In a larger library more skills are similar to a request by chance.
_SMALL_LIBRARY = 50
_BAR_RISES_BY = 0.03
_SCALE = 0.1


def bar_of_similarity(library: int, *, is_rule: bool) -> float:
    """The least sum of similarity and lexical score that counts as a match in a library of this
    size. It is lower for a person's own rules: a rule placed needlessly costs one line, a missing
    rule costs the person's trust."""
    return (_BAR_FOR_RULES if is_rule else _BAR) + _BAR_RISES_BY * log10(
        max(1.0, library / _SMALL_LIBRARY)
    )


class Nearness:
    """The similarity of one request to the skills nearest to it, and to ordinary requests.
    Immutable and hashable.

    Similarity alone ranks skills well but does not tell when no skill fits: any two texts are
    somewhat similar. So the request's similarity to ordinary requests that need no skill
    (`background`) is subtracted. `benchmarks/meaning` chose the constants."""

    __slots__ = ("_background", "_hash", "_similar")

    def __init__(self, similar: Iterable[tuple[SkillName, float]], background: float) -> None:
        self._similar = dict(similar)
        self._background = background
        self._hash = hash((frozenset(self._similar.items()), background))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Nearness) and (self._similar, self._background) == (
            other._similar,
            other._background,
        )

    def __hash__(self) -> int:
        return self._hash

    @property
    def names(self) -> Collection[SkillName]:
        """The skills that are near enough to be considered."""
        return self._similar

    def score(self, name: SkillName, words: float, bar: float) -> float:
        """A score from similarity and from `words`, the lexical score. Like the lexical score it is
        1.0 for a skill that just matches."""
        both = (
            self._similar.get(name, 0.0)
            + _WORDS * min(words, _MOST_WORDS)
            - _BACKGROUND * self._background
        )
        return max(0.0, 1.0 + (both - bar) / _SCALE)
