"""A quick look whether a pattern can be found in a text at all: by letters that every match contains.

Most calls have nothing to do with most rules. To look for a few letters takes well under a microsecond and never long, so that
the pattern itself, which may take long, is tried only where it can be found.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

_REPEATS: Final = frozenset(("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"))
_LEAST_CHARS: Final = 2


class Screen(NamedTuple):
    """Letters of which at least one group is in every text that a pattern is found in."""

    groups: tuple[str, ...]
    ignores_case: bool

    def may_match(self, texts: Iterable[str]) -> bool:
        """Whether the pattern may be found in one of the texts; False is certain."""
        for text in texts:
            if self.ignores_case:
                if not text.isascii():
                    return True  # letters outside ASCII have several lower cases
                text = text.lower()
            for group in self.groups:  # any() with a generator takes longer than the search
                if group in text:
                    return True
        return False


@lru_cache(1024)
def screen_of(pattern: str) -> Screen | None:
    """The screen of a pattern; None where no letters are certain."""
    try:
        compiled = re.compile(pattern)
        parsed = re._parser.parse(pattern)  # type: ignore[attr-defined]
    except (re.error, OverflowError, RecursionError):
        return None
    if compiled.flags & (re.VERBOSE | re.LOCALE):
        return None
    ignores_case = bool(compiled.flags & re.IGNORECASE)
    groups = _certain(list(parsed))
    if groups is None or (ignores_case and not all(group.isascii() for group in groups)):
        return None
    return Screen(tuple(group.lower() for group in groups) if ignores_case else groups, ignores_case)


def _certain(items: Sequence[Any]) -> tuple[str, ...] | None:
    """The best group of letters of a sequence: the longest run, or one of each alternative."""
    found: list[tuple[str, ...]] = []
    run = ""
    for operation, argument in [*items, (None, None)]:
        name = str(operation)
        if name == "LITERAL":
            run += chr(argument)
            continue
        if len(run) >= _LEAST_CHARS:
            found.append((run,))
        run = ""
        inner = _inner(name, argument)
        if inner is not None:
            found.append(inner)
    return max(found, key=lambda groups: min(map(len, groups)), default=None)


def _inner(name: str, argument: Any) -> tuple[str, ...] | None:
    if name == "SUBPATTERN":
        _, added, removed, items = argument
        return None if added or removed else _certain(list(items))
    if name == "ATOMIC_GROUP":
        return _certain(list(argument))
    if name in _REPEATS:
        least, _, items = argument
        return _certain(list(items)) if least else None
    if name == "BRANCH":
        branches = [_certain(list(branch)) for branch in argument[1]]
        if all(branch is not None for branch in branches):
            return tuple(group for branch in branches for group in branch or ())
    return None
