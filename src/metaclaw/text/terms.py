"""Terms of a text: words of any script, identifiers split into words, stemmed, without stop words.

`parseHTTPRequest`, "parsing HTTP requests" and `parse-http-request` have the same terms. Scripts
without spaces (Chinese, Japanese, Korean) give overlapping pairs of characters.

`count_terms` and `list_terms` are for search. `sentence_terms` is for comparing what two sentences
say: it keeps addresses and other compounds whole, and cuts stems short so that more forms of a word
are equal."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from importlib.resources import files
from typing import Final

from metaclaw.text.excerpts import without_hidden_characters

WORD_LISTS: dict[str, list[str]] = json.loads(
    (files("metaclaw.text") / "words.json").read_text(encoding="utf-8")
)
"""The contents of `words.json`: words, and in the lists named `modal` alternatives of a pattern."""


def _words(name: str) -> tuple[str, ...]:
    return tuple(" ".join(WORD_LISTS[name]).split())


STOP_WORDS = frozenset(_words("stop"))
"""Words that are no search terms."""
VERY_COMMON_WORDS, COMMON_WORDS = _words("very_common"), _words("common")
# Words with a capital inside that are not split: JavaScript is not about Java.
BRANDS = frozenset(_words("brands"))
FUNCTION_WORDS = frozenset(_words("function"))
"""Words that do not count when two sentences are compared. STOP_WORDS has more verbs, but an
instruction may order these.
"""
GENERIC_WORDS = frozenset(_words("generic"))
"""Words that fit every task: two texts that share them need not be about the same thing."""
VERBS = frozenset(_words("verbs"))
"""Verbs that begin a command in English, and forms of command in French, German, Spanish,
Portuguese, Italian and Dutch.
"""

CLIENT_TAGS: Final = (
    "system-reminder|environment_context|environment_details|user_instructions|permissions"
    " instructions|skills_instructions"
    "|house_rules|relevant-memories|user-persona|scene-navigation|memory-tools-guide|conversation_context|channel_metadata"
    "|system_context|command-name|command-message|local-command-caveat|task-notification|subagent_notification|user_info"
    "|project_layout|git_status|turn_aborted"
)
"""Tags around what a client adds to a person's message, as alternatives of a pattern."""
CLIENT_OUTPUT_TAGS: Final = (
    "local-command-stdout|local-command-stderr|bash-stdout|bash-stderr"
    "|ide_opened_file|ide_selection|attached_files"
)
"""Tags around files and output of programs that a client adds to a person's message."""

MAX_WORD_CHARS = 40
_CJK = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f"
_WORD = re.compile(rf"[{_CJK}]+|[^\W_{_CJK}]+(?:\+\+|#)?")
# For ASCII text this table is many times as fast as the pattern.
_ASCII_WORDS = bytes(
    code if chr(code).isalnum() or chr(code) in "+#" else 32 for code in range(256)
)
_WITH_SIGN = frozenset(("c++", "c#", "f#"))
_IS_CJK = re.compile(rf"[{_CJK}]")
# Katakana words are long, so they give groups of three. Hiragana and the commonest pronouns and
# particles are left out as grammar.
_CJK_PARTS = re.compile(
    r"([\u30a1-\u30ff]+)|([^\u3040-\u30ff的了是我你他她它们這这那吗呢吧啊请請帮幫把被]+)"
)
_HUMP = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_LETTERS_THEN_DIGITS = re.compile(r"([a-z]{3,})[0-9]{1,4}")
_LOOKS_LIKE_AN_ID = re.compile(
    r"(?=[a-z]*[0-9])(?=[0-9]*[a-z])(?:[0-9a-f]{6,}|[0-9]+[a-z]+[0-9]+[a-z0-9]*|(?=(?:[a-z]*[0-9]){4})[a-z0-9]{10,})"
)
_DERIVED = ("ization", "isation", "ation", "ator", "ate", "ion", "er", "or", "ly")
_VOWEL = re.compile(r"[aeiouy]")
_MEMO_SIZE = 100_000
_COMPOUND = re.compile(r"[^\W_]+(?:[-'’._/:@+#][^\W_]+)*|[^\W_]+")
_JOINT = re.compile(r"[-'’._/:@+#]")
_PREFIX_CHARS = 6
_CJK_RUN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")


def count_terms(text: str) -> dict[str, int]:
    """How often each term occurs in a text, in order of first appearance."""
    counts: dict[str, int] = {}
    for word, times in Counter(list_words(text)).items():
        for term in _known_words[word]:
            counts[term] = counts.get(term, 0) + times
    return counts


def list_terms(text: str) -> list[str]:
    """The terms of a short text, in order, with repetitions."""
    return [term for word in list_words(text) for term in _known_words[word]]


def terms_of(word: str) -> tuple[str, ...]:
    """The terms of one word, each once."""
    return _known_words[word]


def list_words(text: str) -> list[str]:
    """The words of a text, in order, before identifiers are split."""
    return (
        text.encode().translate(_ASCII_WORDS).decode().split()
        if text.isascii()
        else _WORD.findall(text)
    )


_LONGEST_NUMBER = 5


class _KnownWords(dict[str, tuple[str, ...]]):
    """Cache of the terms of each word."""

    def __missing__(self, word: str) -> tuple[str, ...]:
        if len(word) > _LONGEST_NUMBER and word.isdecimal():
            return ()
        terms = tuple(dict.fromkeys(_split_word(word[: MAX_WORD_CHARS * 4])))
        if len(self) >= _MEMO_SIZE:  # cheap to rebuild
            self.clear()
        # Random strings rarely occur twice and are not cached. Short strings, such as list numbers,
        # are.
        if len(word) <= MAX_WORD_CHARS and (word.isalpha() or len(word) <= 2):
            self[word] = terms
        return terms


_known_words = _KnownWords()


def _split_word(word: str) -> Iterator[str]:
    if word.isascii() and (
        (word.isalpha() and word.islower()) or word.isdecimal()
    ):  # the common cases
        yield from _usable(word)
        return
    if _IS_CJK.match(word):
        for katakana, other in _CJK_PARTS.findall(word):
            yield from _pieces(katakana, 3) if katakana else _pieces(other, 2)
        return
    if not word.isascii():
        word = "".join(
            char for char in unicodedata.normalize("NFKD", word) if not unicodedata.combining(char)
        )
    folded = word.casefold()
    if folded in _WITH_SIGN:
        yield folded
        return
    if "+" in word or "#" in word:
        for part in filter(None, re.split(r"[+#]+", word)):
            yield from _split_word(part)
        return
    yield from _usable(folded)
    if folded != word and folded not in BRANDS:
        humps = _HUMP.findall(word)
        if len(humps) > 1:
            for hump in humps:
                yield from _usable(hump.casefold())
    prefix = _LETTERS_THEN_DIGITS.fullmatch(folded)
    if prefix:
        yield from _usable(prefix[1])


def _pieces(run: str, size: int) -> Iterator[str]:
    for start in range(max(1, len(run) - size + 1)):
        yield run[start : start + size]


def _usable(word: str) -> Iterator[str]:
    """The word's stem; nothing for stop words, single letters, small numbers, years and random
    identifiers.
    """
    if len(word) < 2 or len(word) > MAX_WORD_CHARS or word in STOP_WORDS:
        return
    if word.isalpha():
        yield stem(word)
    elif word.isdecimal():
        if 3 <= len(word) <= _LONGEST_NUMBER and not word.startswith(("19", "20")):
            yield word
    elif not _LOOKS_LIKE_AN_ID.fullmatch(word):
        yield stem(word)


def stem(word: str) -> str:
    """The word without plural, tense and the commonest derivational endings of English."""
    if len(word) < 4 or not word.isascii() or not word.isalpha():
        return word
    word = _without_inflection(word)
    if word.endswith(_DERIVED):
        word = _without_derivation(word)
    if len(word) > 4 and word[-3:] in ("ize", "ise") and len(word) - 3 >= 3:
        return word[:-3]
    if word[-1] == "e" and len(word) > 3:
        return word[:-1]
    if word[-1] == "y" and len(word) > 3:
        return word[:-1] + "i"
    return word


def _without_derivation(word: str) -> str:
    for suffix in _DERIVED:
        least = 3 if len(suffix) == 7 else 4
        if word.endswith(suffix) and len(word) - len(suffix) >= least:
            return word if suffix == "ion" and word[-4] not in "st" else word[: -len(suffix)]
    return word


def _without_inflection(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "shes", "ches", "xes", "zes")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for suffix in ("ing", "ed"):
        bare = word[: -len(suffix)]
        if word.endswith(suffix) and len(bare) >= 3 and _VOWEL.search(bare):
            doubled = len(bare) > 3 and bare[-1] == bare[-2] and bare[-1] not in "lsz"
            if doubled:
                return bare[:-1]
            return bare + "e" if bare.endswith("at") else bare
    return word


def sentence_terms(text: str) -> frozenset[str]:
    """Terms for comparing sentences. A compound (`build:prod`, `evil.example`) counts as a whole
    and by its parts.
    """
    found: set[str] = set()
    for match in _COMPOUND.finditer(without_hidden_characters(text)):
        word = match[0]
        cjk = _CJK_RUN.findall(word)
        for run in cjk:
            found |= {run[at : at + 2] for at in range(len(run) - 1)} or {run}
        if cjk or word.casefold() in FUNCTION_WORDS:
            continue
        found.add(_short_stem(word))
        parts = _JOINT.split(word)
        if len(parts) > 1:
            found |= {
                _short_stem(part)
                for part in parts
                if len(part) > 2 and part.casefold() not in FUNCTION_WORDS
            }
    return frozenset(term for term in found if len(term) > 1 or term.isdigit())


def specific_terms(terms: frozenset[str]) -> frozenset[str]:
    """The terms without those that fit every task (GENERIC_WORDS)."""
    return terms - _GENERIC_STEMS


@lru_cache(maxsize=65_536)
def _short_stem(word: str) -> str:
    low = word.casefold().replace("’", "'").removesuffix("'s")
    if any(char in low for char in "._/:@+#") or any(map(str.isdigit, low)):
        return low
    return stem(low)[:_PREFIX_CHARS] if low.isascii() else low[: _PREFIX_CHARS + 1]


_GENERIC_STEMS = frozenset(map(_short_stem, GENERIC_WORDS))
