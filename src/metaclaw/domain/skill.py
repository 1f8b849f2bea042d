"""Skills, rules and facts, their generations and audiences, and their similarity to a request in
meaning.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from enum import StrEnum
from math import log10
from typing import NamedTuple

from metaclaw.domain.ids import SkillName, TurnId

MAX_BODY_CHARS = 16_000
_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")


class SkillState(StrEnum):
    """The state of a skill. Only canary and live skills are placed, and only they belong to a
    generation.
    """

    DRAFT = "draft"
    SHADOW = "shadow"
    CANARY = "canary"
    LIVE = "live"
    RETIRED = "retired"


class Authorship(StrEnum):
    """The author of a skill. The program changes, withholds and retires only what the evolver
    wrote.
    """

    PERSON = "person"
    INSTRUCTION = "instruction"
    EVOLVER = "evolver"


class SkillKind(StrEnum):
    """A rule is a person's instruction, a fact something they want remembered: both are in force at
    once, without a trial. A skill is a procedure; a skill that the evolver wrote must pass the
    gate."""

    SKILL = "skill"
    RULE = "rule"
    FACT = "fact"


_KINDS = {str(kind): kind for kind in SkillKind}
_SKILL = SkillKind.SKILL


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill, rule or fact. `trigger` (the file's description) says when it applies, `body` is the
    text.

    `scope` is None for everyone, else `user:ID`, `workspace:ID`, `team:NAME`, or `owner` for
    requests without a user id. `author` is INSTRUCTION if the program recorded a person's own
    words. `extra` is the rest of the front matter: `kind`, `applies`, `workspace`, `expires`,
    `examples`, `source`, `check`, `overrides`, and keys of other programs."""

    name: SkillName
    trigger: str
    body: str
    category: str | None = None
    scope: str | None = None
    extra: Mapping[str, object] = field(default_factory=dict)
    state: SkillState = SkillState.LIVE
    author: Authorship = Authorship.PERSON
    pinned: bool = False

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
    def kind(self) -> SkillKind:
        """Rule, fact or skill. A person's words that were saved before kinds existed are a rule."""
        named = self.extra.get("kind")
        if isinstance(named, str) and named in _KINDS:
            return _KINDS[named]
        return SkillKind.RULE if self.author is Authorship.INSTRUCTION else SkillKind.SKILL

    @property
    def is_skill(self) -> bool:
        """Whether it is a procedure, and neither a rule nor a fact."""
        return self.kind is _SKILL

    @property
    def examples(self) -> tuple[str, ...]:
        """Requests it is for, as people word them."""
        examples = self.extra.get("examples")
        return (
            tuple(text for text in examples if isinstance(text, str))
            if isinstance(examples, list | tuple)
            else ()
        )

    @property
    def expires(self) -> date | None:
        """The last day on which it is in force."""
        day = self.extra.get("expires")
        return date.fromisoformat(day) if isinstance(day, str) else None

    def is_expired(self, today: date) -> bool:
        day = self.extra.get("expires")
        return isinstance(day, str) and date.fromisoformat(day) < today

    @property
    def applies_always(self) -> bool:
        """Whether it applies to every task in its scope, such as a rule about the language of
        answers.
        """
        return self.extra.get("applies") == "always"

    def is_for_workspace(self, workspace: str | None) -> bool:
        """Whether it may be placed in this workspace. `workspace: ID` in the front matter limits a
        skill to that workspace; if that is a directory, also to the directories below it."""
        named = self.extra.get("workspace")
        if named is None or named == workspace:
            return True
        return (
            isinstance(named, str)
            and workspace is not None
            and workspace.startswith((f"{named}/", f"{named}\\"))
        )

    @property
    def content_hash(self) -> str:
        """Hash of the text that is placed."""
        text = "\0".join(
            (self.name, self.trigger, self.body, self.category or "", self.scope or "")
        )
        text += "" if self.kind is SkillKind.SKILL else f"\0{self.kind}"
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


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
    before: Mapping[SkillName, Skill]
    after: Mapping[SkillName, Skill]


@dataclass(frozen=True, slots=True)
class SkillChange:
    """A skill that came into force, or got another text, in the generation of this number."""

    number: int
    published_at: datetime
    skill: Skill


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
    """The speakers that a rule or skill is for. `scope` is empty for everyone, else `owner`,
    `user:ID`, `workspace:ID`, `team:NAME`, or `id:ID` for a scope that names a user or a workspace
    by its id alone. `workspace` is empty for every workspace; a directory includes the directories
    below it."""

    scope: str
    workspace: str


def audience_of(skill: Skill) -> Audience | None:
    """The audience of a rule or skill; None for a fact, and for a rule or skill that no speaker
    gets.
    """
    workspace = skill.extra.get("workspace")
    if skill.kind is SkillKind.FACT or skill.scope == "" or not isinstance(workspace, str | None):
        return None
    scope = skill.scope or ""
    is_bare = scope not in ("", _OWNER) and not scope.startswith(_SCOPE_KINDS)
    return Audience(_BARE + scope if is_bare else scope, workspace or "")


def placed_hash(skill: Skill) -> str:
    """A hash of everything that decides which text of a rule or skill is placed and for which
    tasks. State, author and examples do not count."""
    overrides = json.dumps(skill.extra.get("overrides"), default=str)
    text = "\0".join((skill.content_hash, str(skill.applies_always), overrides))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def audience_hashes(placed: Iterable[tuple[Audience | None, str]]) -> dict[Audience, str]:
    """One hash for each audience, from the `audience_of` and `placed_hash` of each rule and
    skill.
    """
    members: defaultdict[Audience, list[str]] = defaultdict(list)
    for audience, digest in placed:
        if audience is not None:
            members[audience].append(digest)
    return {audience: combined_hash(digests) for audience, digests in members.items()}


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
