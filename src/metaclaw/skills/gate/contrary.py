"""Whether two texts tell a reader contrary things: always and never the same, or two values of which only one can be chosen.

A text is read as clauses, each with a polarity (do it, do not do it) and the terms it is about. Two texts are contrary where

- one says to do what the other says not to do: opposite polarity, and the smaller clause's terms nearly all among the other's;
- they choose different values where only one can hold (tabs or spaces, JSON or YAML), and neither mentions the other's as a choice;
- they set different limits in the same unit (80 columns, 120 columns).

This reads words, not meaning: it is meant for texts already known to be about the same situation (`duplicates`).
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from metaclaw.text import list_terms

_CLAUSE = re.compile(
    r"[.;!?:]+(?=\s|$)|\n+|,?\s+\b(?:but|and then|because|so that)\b\s+|,\s+(?=(?:not|never|do not|don't)\b)", re.IGNORECASE
)
_NOT = re.compile(
    r"\b(?:never|do not|don['’]t|avoid|must not|mustn['’]t|should not|shouldn['’]t|refrain from|not|no longer|stop)\b",
    re.IGNORECASE,
)
_INSTEAD = re.compile(r"\b(?:instead of|rather than|not)\b(?P<dropped>[^,.;!?\n]*)", re.IGNORECASE)
_POLAR = frozenset(
    ("always", "never", "avoid", "not", "must", "should", "prefer", "use", "only", "every", "don", "stop", "refrain")
)
_SHARED = 0.75

_EXCLUSIVE = tuple(
    tuple((value, re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE)) for value, pattern in group)
    for group in (
        (("tabs", r"tabs?"), ("spaces", r"(?:\w+ )?spaces?")),
        (("json", "json"), ("yaml", "ya?ml"), ("toml", "toml"), ("xml", "xml"), ("csv", "csv")),
        (("single quotes", r"single[- ]quot\w+"), ("double quotes", r"double[- ]quot\w+")),
        (
            ("camelCase", r"camel ?case"),
            ("snake_case", r"snake[_ ]?case"),
            ("kebab-case", r"kebab[- ]?case"),
            ("PascalCase", r"pascal ?case"),
        ),
        (("npm", "npm"), ("yarn", "yarn"), ("pnpm", "pnpm"), ("bun", "bun")),
        (("pip", "pip"), ("poetry", "poetry"), ("uv", "uv"), ("conda", "conda")),
        (("pytest", "pytest"), ("unittest", "unittest")),
        (("merge", r"merge commits?|merging"), ("rebase", r"rebas\w+"), ("squash", r"squash\w*")),
        (("metric", r"metric|kilomet\w+|celsius"), ("imperial", r"imperial|miles|fahrenheit")),
        (("utc", "utc"), ("local time", r"local time(?:zone)?")),
        (("12-hour", r"12[- ]hour|am/pm"), ("24-hour", r"24[- ]hour")),
        (("markdown", "markdown"), ("html", "html"), ("plain text", r"plain[- ]text"), ("pdf", "pdf"), ("latex", "latex")),
        (
            ("day first", r"dd[./-]mm\S*"),
            ("month first", r"(?<!yyyy[./-])mm[./-]dd\S*"),
            ("year first", r"yyyy-mm\S*|iso[- ]?8601"),
        ),
        (("British spelling", r"british|uk english"), ("American spelling", r"american|us english")),
        (("formal", r"formal(?:ly)?"), ("informal", r"informal(?:ly)?|casual(?:ly)?")),
        tuple(
            (tongue, tongue)
            for tongue in ("english", "german", "french", "spanish", "italian", "portuguese", "chinese", "japanese")
        ),
    )
)
_LIMIT = re.compile(
    r"\b(\d+)[- ]?(characters?|chars?|columns?|spaces?|words?|lines?|sentences?|bullets?|paragraphs?|seconds?|minutes?|times)\b",
    re.IGNORECASE,
)


class _Clause(NamedTuple):
    does: bool
    terms: frozenset[str]


def contrary(one: str, other: str, least_terms: int = 2) -> str | None:
    """In words, how two texts about the same situation contradict each other, or None where they do not.

    Clauses of fewer terms are not compared: in a long text one word is too little to go by, in a single instruction it may be all.
    """
    return _opposed(one, other, least_terms) or _different_choice(one, other) or _different_limit(one, other)


def without_choices(one: str, other: str) -> tuple[str, str]:
    """What two texts are about, apart from the values they both choose: "YAML" in only one of them is its subject."""
    for group in (*(_pattern(group) for group in _EXCLUSIVE), _LIMIT):
        if group.search(one) and group.search(other):
            one, other = group.sub(" ", one), group.sub(" ", other)
    return one, other


def _opposed(one: str, other: str, least_terms: int) -> str | None:
    theirs = [clause for clause in _clauses(other) if len(clause.terms) >= least_terms]
    for mine in (clause for clause in _clauses(one) if len(clause.terms) >= least_terms):
        for clause in theirs:
            if mine.does != clause.does and _about_the_same(mine.terms, clause.terms):
                does, does_not = (" ".join(sorted(part.terms)) for part in ((mine, clause) if mine.does else (clause, mine)))
                return f"one says to do, the other not to do: {does} / {does_not}"
    return None


def _clauses(text: str) -> Iterator[_Clause]:
    for part in _CLAUSE.split(text):
        if not part:
            continue
        dropped = _INSTEAD.search(part)
        if dropped and not _NOT.match(part.strip()):  # "use A instead of B" says both to do A and not to do B
            yield from _clause(False, dropped["dropped"])
            part = part[: dropped.start()]
        yield from _clause(_NOT.search(part) is None, part)


def _clause(does: bool, text: str) -> Iterator[_Clause]:
    terms = frozenset(list_terms(text)) - _POLAR
    if terms:
        yield _Clause(does, terms)


def _about_the_same(one: frozenset[str], other: frozenset[str]) -> bool:
    """Nearly all terms of the smaller one, and half of the larger one's, are shared."""
    shared = len(one & other)
    return shared >= _SHARED * min(len(one), len(other)) and 2 * shared >= max(len(one), len(other))


@cache
def _pattern(group: tuple[tuple[str, re.Pattern[str]], ...]) -> re.Pattern[str]:
    """Any value of a group."""
    return re.compile("|".join(pattern.pattern for _, pattern in group), re.IGNORECASE)


def _different_choice(one: str, other: str) -> str | None:
    mine, theirs = _positive(one), _positive(other)
    for group in _EXCLUSIVE:
        chosen, known = ({value for value, pattern in group if pattern.search(text)} for text in (mine, theirs))
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
        limits.setdefault(list_terms(unit)[0] if list_terms(unit) else unit.lower(), set()).add(int(number))
    return limits


def _positive(text: str) -> str:
    """What a text says to do: without the clauses that say what not to do."""
    kept = (_INSTEAD.sub(" ", part) for part in _CLAUSE.split(text) if not _NOT.match(part.strip()) and "never" not in part.lower())
    return " . ".join(part for part in kept if part)
