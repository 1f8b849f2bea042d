"""Word lists, from `words.json`: stop words, common words, product names, and verbs of command."""

import json
from importlib.resources import files

_LISTS: dict[str, list[str]] = json.loads((files("metaclaw.text") / "words.json").read_text(encoding="utf-8"))


def _words(name: str) -> tuple[str, ...]:
    return tuple(" ".join(_LISTS[name]).split())


STOP_WORDS = frozenset(_words("stop"))
"""Words that are no search terms."""
VERY_COMMON_WORDS, COMMON_WORDS = _words("very_common"), _words("common")
# Written with a capital inside, yet one word: splitting them would make JavaScript a kind of Java.
BRANDS = frozenset(_words("brands"))
FUNCTION_WORDS = frozenset(_words("function"))
"""Words that do not count when two sentences are compared. Fewer verbs than STOP_WORDS: these may be what an instruction orders."""
GENERIC_WORDS = frozenset(_words("generic"))
"""Words that fit every task, so that sharing them shows nothing."""
VERBS = frozenset(_words("verbs"))
"""Verbs that begin a command in English, and forms of command in French, German, Spanish, Portuguese, Italian and Dutch."""
