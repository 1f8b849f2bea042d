"""Clashes: find skills in force that a candidate repeats or contradicts.

A candidate is compared with skills of the same scope and of wider scopes. A more specific skill may
contradict a wider one, because only the most specific is placed: that is an override and not a
conflict.

The overlap of two texts is the share of their terms that both have (Jaccard). Two skills are
duplicates if they are for the same situation *and* ask the same. Steps that other skills have, too
("read the result once more"), and lines that name a mistake do not count. A skill is never a
duplicate of a rule."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import Scope
from metaclaw.skills.index import SkillIndex
from metaclaw.text import list_terms

DUPLICATE_OVERLAP = 0.6
SAME_SITUATION = 0.34
_MOST_COMPARED = 24
_LIST_MARK = re.compile(r"^\s*(?:\d{1,2}[.)]|[-*+•>#]+)\s*")
_MISTAKE = re.compile(r"anti-?pattern\b|(?:do not|don['’]t|never|avoid)\b", re.IGNORECASE)
PERSON, WORKSPACE, _TEAM, _EVERYONE = range(4)
_WIDTH = {"team": _TEAM, "workspace": WORKSPACE, "user": PERSON}


class IndexLibrary:
    """The skills that are compared with a candidate: those that share a telling word with it, by
    the retrieval index. `scopes` are the other scopes of the candidate's person."""

    def __init__(self, index: SkillIndex, scopes: frozenset[str] = frozenset()) -> None:
        self._index = index
        self._scopes = scopes

    def get(self, name: str) -> Skill | None:
        return self._index.get(name)

    def near(self, skill: Skill) -> Sequence[Skill]:
        """Skills for the same situation, found by the trigger, and with the same advice, found by
        the whole text.
        """
        scopes = self._scopes | ({skill.scope} if skill.scope else frozenset())
        texts = (f"{skill.name} {skill.trigger}", f"{skill.trigger}\n{skill.body}")
        hits = (hit for text in texts for hit in self._index.search(text, _MOST_COMPARED, scopes))
        return list({hit.skill.name: hit.skill for hit in hits}.values())


class ClashKind(StrEnum):
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    OVERRIDE = "override"


@dataclass(frozen=True, slots=True)
class Clash:
    """A skill that a candidate repeats, contradicts or overrides, and how."""

    kind: ClashKind
    other: Skill
    reason: str


def find_clashes(
    skill: Skill, library: IndexLibrary, replaces: Iterable[SkillName] = ()
) -> tuple[Clash, ...]:
    """Clashes of a candidate with skills of its own or a wider scope, except itself and those it
    replaces.
    """
    ignored = {skill.name, *replaces}
    near = library.near(skill)
    others = (
        other
        for other in near
        if other.name not in ignored
        and is_same_or_wider(other.scope, skill.scope)
        and other.is_for(Scope(workspace=skill.workspace, channel=skill.channel))
    )
    boilerplate = _boilerplate([skill, *near])
    clashes = (_clash(skill, other, boilerplate) for other in others)
    return tuple(sorted(filter(None, clashes), key=lambda clash: clash.other.name))


def is_same_or_wider(scope: str | None, than: str | None) -> bool:
    """Whether `scope` is the same as `than` or of a wider kind."""
    return scope == than or width(scope) > width(than)


def width(scope: str | None) -> int:
    """How wide a scope is: a user (or the owner) 0, a workspace 1, a team 2, everyone 3."""
    return _EVERYONE if scope is None else _WIDTH.get(scope.partition(":")[0], PERSON)


def overlap(one: Iterable[object], other: Iterable[object]) -> float:
    """The share of all terms that both have; 0 if there are none."""
    mine, theirs = set(one), set(other)
    return len(mine & theirs) / len(mine | theirs) if mine or theirs else 0.0


def text_terms(skill: Skill) -> frozenset[str]:
    return frozenset(list_terms(f"{skill.trigger}\n{skill.body}"))


def situation_terms(skill: Skill) -> frozenset[str]:
    """The terms of the situation it is for."""
    return frozenset(list_terms(f"{skill.name} {skill.trigger}"))


def is_same_situation(one: Skill, other: Skill) -> bool:
    """Whether two skills apply to the same kind of request."""
    return overlap(list_terms(one.trigger), list_terms(other.trigger)) >= SAME_SITUATION or (
        overlap(situation_terms(one), situation_terms(other)) >= SAME_SITUATION
    )


def _clash(skill: Skill, other: Skill, boilerplate: frozenset[str]) -> Clash | None:
    against = _contradiction(skill, other)
    if against is not None:
        if skill.scope == other.scope:
            return Clash(ClashKind.CONFLICT, other, f"contradicts {other.name}: {against}")
        return Clash(
            ClashKind.OVERRIDE, other, f"overrides {other.name} in {skill.scope}: {against}"
        )
    is_same = (
        skill.kind is other.kind
        and is_same_situation(skill, other)
        and asks_the_same(skill, other, boilerplate)
    )
    return Clash(ClashKind.DUPLICATE, other, f"asks what {other.name} asks") if is_same else None


def asks_the_same(one: Skill, other: Skill, boilerplate: frozenset[str] = frozenset()) -> bool:
    """Whether the steps of two skills, without boilerplate, say the same."""
    mine, theirs = (
        [term for step in _steps(skill) if step not in boilerplate for term in list_terms(step)]
        for skill in (one, other)
    )
    return (
        overlap(mine, theirs) >= DUPLICATE_OVERLAP
        if mine and theirs
        else overlap(text_terms(one), text_terms(other)) == 1.0
    )


def _steps(skill: Skill) -> list[str]:
    """The lines of a body without their numbers and without the line that names the mistake."""
    lines = (_LIST_MARK.sub("", line).strip().casefold() for line in skill.body.splitlines())
    return [line for line in lines if line and not _MISTAKE.match(line)]


def _boilerplate(skills: Iterable[Skill]) -> frozenset[str]:
    """Steps that several skills for different situations have word for word."""
    by_step: dict[str, list[Skill]] = {}
    for skill in skills:
        for step in set(_steps(skill)):
            by_step.setdefault(step, []).append(skill)
    return frozenset(
        step
        for step, having in by_step.items()
        if len(having) > 1 and any(not is_same_situation(having[0], other) for other in having[1:])
    )


def _contradiction(skill: Skill, other: Skill) -> str | None:
    if not is_same_situation(skill, other):
        return None
    return contrary(skill.body, other.body, least_terms=2 if other.is_skill else 1)


_CLAUSE = re.compile(
    r"[.;!?:]+(?=\s|$)|\n+|,?\s+\b(?:but|and then|because|so that)\b\s+|,\s+(?=(?:not|never|do"
    r" not|don't)\b)",
    re.IGNORECASE,
)
_NOT = re.compile(
    r"\b(?:never|do not|don['’]t|avoid|must not|mustn['’]t|should not|shouldn['’]t|refrain"
    r" from|not|no longer|stop)\b",
    re.IGNORECASE,
)
_INSTEAD = re.compile(r"\b(?:instead of|rather than|not)\b(?P<dropped>[^,.;!?\n]*)", re.IGNORECASE)
_POLAR = frozenset(
    (
        "always",
        "never",
        "avoid",
        "not",
        "must",
        "should",
        "prefer",
        "use",
        "only",
        "every",
        "don",
        "stop",
        "refrain",
    )
)
_SHARED = 0.75

# Each line is a group of values that exclude one another, `value = pattern; value = pattern`; a
# value alone is its own pattern.
_EXCLUSIVE_VALUES = r"""
tabs = tabs?; spaces = (?:\w+ )?spaces?
json; yaml = ya?ml; toml; xml; csv
single quotes = single[- ]quot\w+; double quotes = double[- ]quot\w+
camelCase = camel ?case; snake_case = snake[_ ]?case; kebab-case = kebab[- ]?case; PascalCase = pascal ?case
npm; yarn; pnpm; bun
pip; poetry; uv; conda
pytest; unittest
merge = merge commits?|merging; rebase = rebas\w+; squash = squash\w*
metric = metric|kilomet\w+|celsius; imperial = imperial|miles|fahrenheit
utc; local time = local time(?:zone)?
12-hour = 12[- ]hour|am/pm; 24-hour = 24[- ]hour
markdown; html; plain text = plain[- ]text; pdf; latex
day first = dd[./-]mm\S*; month first = (?<!yyyy[./-])mm[./-]dd\S*; year first = yyyy-mm\S*|iso[- ]?8601
British spelling = british|uk english; American spelling = american|us english
formal = formal(?:ly)?; informal = informal(?:ly)?|casual(?:ly)?
english; german; french; spanish; italian; portuguese; chinese; japanese
"""
_EXCLUSIVE = tuple(
    tuple(
        (value, re.compile(rf"\b(?:{pattern or value})\b", re.IGNORECASE))
        for value, _, pattern in (entry.partition(" = ") for entry in line.split("; "))
    )
    for line in _EXCLUSIVE_VALUES.strip().splitlines()
)
_LIMIT = re.compile(
    r"\b(\d+)[-"
    r" ]?(characters?|chars?|columns?|spaces?|words?|lines?|sentences?|bullets?|paragraphs?|seconds?|minutes?|times)\b",
    re.IGNORECASE,
)


class _Clause(NamedTuple):
    does: bool
    terms: frozenset[str]


def contrary(one: str, other: str, least_terms: int = 2) -> str | None:
    """How two texts about the same situation contradict each other, in words; None if they do not.

    A text is read as clauses, each with a polarity (do it, do not do it) and its terms. Two texts
    are contrary if

    - one says to do what the other says not to do: opposite polarity, and nearly all terms of the
      smaller clause are in the other;
    - they choose different values that exclude one another (tabs or spaces, JSON or YAML);
    - they set different limits in the same unit (80 columns, 120 columns).

    Clauses of fewer than `least_terms` terms are not compared, because in a long text one word
    proves too little."""
    return (
        _opposed(one, other, least_terms)
        or _different_choice(one, other)
        or _different_limit(one, other)
    )


def _opposed(one: str, other: str, least_terms: int) -> str | None:
    theirs = [clause for clause in _clauses(other) if len(clause.terms) >= least_terms]
    for mine in (clause for clause in _clauses(one) if len(clause.terms) >= least_terms):
        for clause in theirs:
            if mine.does != clause.does and _about_the_same(mine.terms, clause.terms):
                does, does_not = (
                    " ".join(sorted(part.terms))
                    for part in ((mine, clause) if mine.does else (clause, mine))
                )
                return f"one says to do, the other not to do: {does} / {does_not}"
    return None


def _clauses(text: str) -> Iterator[_Clause]:
    for part in _CLAUSE.split(text):
        if not part:
            continue
        dropped = _INSTEAD.search(part)
        if dropped and not _NOT.match(
            part.strip()
        ):  # "use A instead of B" says both to do A and not to do B
            yield from _clause(False, dropped["dropped"])
            part = part[: dropped.start()]
        yield from _clause(_NOT.search(part) is None, part)


def _clause(does: bool, text: str) -> Iterator[_Clause]:
    terms = frozenset(list_terms(text)) - _POLAR
    if terms:
        yield _Clause(does, terms)


def _about_the_same(one: frozenset[str], other: frozenset[str]) -> bool:
    """Whether nearly all terms of the smaller set, and half of those of the larger, are shared."""
    shared = len(one & other)
    return shared >= _SHARED * min(len(one), len(other)) and 2 * shared >= max(len(one), len(other))


def _different_choice(one: str, other: str) -> str | None:
    mine, theirs = _positive(one), _positive(other)
    for group in _EXCLUSIVE:
        chosen, known = (
            {value for value, pattern in group if pattern.search(text)} for text in (mine, theirs)
        )
        if len(chosen) == len(known) == 1 and chosen != known:
            return f"one chooses {chosen.pop()}, the other {known.pop()}"
    return None


def _different_limit(one: str, other: str) -> str | None:
    mine, theirs = _limits(one), _limits(other)
    for unit in sorted(mine.keys() & theirs.keys()):
        if len(mine[unit]) == len(theirs[unit]) == 1 and mine[unit] != theirs[unit]:
            return f"one says {mine[unit].pop()} {unit}, the other {theirs[unit].pop()}"
    return None


def _limits(text: str) -> dict[str, set[int]]:
    limits: dict[str, set[int]] = {}
    for number, unit in _LIMIT.findall(_positive(text)):
        limits.setdefault(list_terms(unit)[0] if list_terms(unit) else unit.lower(), set()).add(
            int(number)
        )
    return limits


def _positive(text: str) -> str:
    """A text without the clauses that say what not to do."""
    clauses = (
        clause
        for clause in _CLAUSE.split(text)
        if not _NOT.match(clause.strip()) and "never" not in clause.lower()
    )
    return " . ".join(filter(None, (_INSTEAD.sub(" ", clause) for clause in clauses)))
