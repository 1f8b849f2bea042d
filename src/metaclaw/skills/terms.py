"""From text to index terms: words of any script, identifiers taken apart, light stemming, stop words left out.

Two texts share a term where a person would say they share a word: `parseHTTPRequest`, "parsing HTTP requests" and
`parse-http-request` give the same terms. Scripts without spaces (Chinese, Japanese, Korean) give overlapping pairs of characters.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator

from metaclaw.skills.words import BRANDS, STOP_WORDS

MAX_WORD_CHARS = 40
_CJK = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f"
_WORD = re.compile(rf"[{_CJK}]+|[^\W_{_CJK}]+(?:\+\+|#)?")
# Most text is plain ASCII, for which this is many times as fast as the pattern.
_ASCII_WORDS = bytes(code if chr(code).isalnum() or chr(code) in "+#" else 32 for code in range(256))
_WITH_SIGN = frozenset(("c++", "c#", "f#"))
_IS_CJK = re.compile(rf"[{_CJK}]")
# Within such a run: Katakana words are long, so they go by threes; Hiragana and the commonest pronouns and particles are grammar.
_CJK_PARTS = re.compile(r"([\u30a1-\u30ff]+)|([^\u3040-\u30ff的了是我你他她它们這这那吗呢吧啊请請帮幫把被]+)")
_HUMP = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_LETTERS_THEN_DIGITS = re.compile(r"([a-z]{3,})[0-9]{1,4}")
_LOOKS_LIKE_AN_ID = re.compile(
    r"(?=[a-z]*[0-9])(?=[0-9]*[a-z])(?:[0-9a-f]{6,}|[0-9]+[a-z]+[0-9]+[a-z0-9]*|(?=(?:[a-z]*[0-9]){4})[a-z0-9]{10,})"
)
_DERIVED = ("ization", "isation", "ation", "ator", "ate", "ion", "er", "or", "ly")
_VOWEL = re.compile(r"[aeiouy]")
_MEMO_SIZE = 100_000


def count_terms(text: str) -> dict[str, int]:
    """The terms of a text, each with how often it occurs, in order of first appearance."""
    counts: dict[str, int] = {}
    for word, times in Counter(list_words(text)).items():
        for term in _known_words[word]:
            counts[term] = counts.get(term, 0) + times
    return counts


def list_terms(text: str) -> list[str]:
    """The terms of a short text, in order; those that occur twice may be there twice."""
    return [term for word in list_words(text) for term in _known_words[word]]


def terms_of(word: str) -> tuple[str, ...]:
    """The terms of one word, each once."""
    return _known_words[word]


def list_words(text: str) -> list[str]:
    """The words of a text, in order, before they are taken apart."""
    return text.encode().translate(_ASCII_WORDS).decode().split() if text.isascii() else _WORD.findall(text)


class _KnownWords(dict[str, tuple[str, ...]]):
    """The terms of each word met so far."""

    def __missing__(self, word: str) -> tuple[str, ...]:
        terms = tuple(dict.fromkeys(_take_apart(word[: MAX_WORD_CHARS * 4])))
        if len(self) >= _MEMO_SIZE:  # a bound, not a policy: starting afresh is cheap
            self.clear()
        # What is no word will hardly come again, unless it is as short as the number of a list's item.
        if len(word) <= MAX_WORD_CHARS and (word.isalpha() or len(word) <= 2):
            self[word] = terms
        return terms


_known_words = _KnownWords()


def _take_apart(word: str) -> Iterator[str]:
    if word.isascii() and ((word.isalpha() and word.islower()) or word.isdecimal()):  # the common cases: nothing to take apart
        yield from _usable(word)
        return
    if _IS_CJK.match(word):
        for katakana, other in _CJK_PARTS.findall(word):
            yield from _pieces(katakana, 3) if katakana else _pieces(other, 2)
        return
    if not word.isascii():
        word = _without_accents(word)
    folded = word.casefold()
    if folded in _WITH_SIGN:
        yield folded
        return
    if "+" in word or "#" in word:
        for part in filter(None, re.split(r"[+#]+", word)):
            yield from _take_apart(part)
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
    """The word's stem, or nothing where it says nothing: stop words, single letters, small numbers, years, random identifiers."""
    if len(word) < 2 or len(word) > MAX_WORD_CHARS or word in STOP_WORDS:
        return
    if word.isalpha():
        yield stem(word)
    elif word.isdecimal():
        if 3 <= len(word) <= 5 and not word.startswith(("19", "20")):
            yield word
    elif not _LOOKS_LIKE_AN_ID.fullmatch(word):
        yield stem(word)


def _without_accents(word: str) -> str:
    return "".join(char for char in unicodedata.normalize("NFKD", word) if not unicodedata.combining(char))


def stem(word: str) -> str:
    """A light stem: what plural, tense and the commonest derivations of an English word have in common."""
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
