"""Whether a token was drawn by lot, judged by how often it changes between kinds of characters and which letters stand together."""

import math
import re
from collections import Counter
from itertools import pairwise

from metaclaw.privacy.words import COMMON_PAIRS

_HEX = re.compile(r"(?:0x)?[0-9a-f-]+|(?:0x)?[0-9A-F-]+")
_UUID = re.compile(r"\{?[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}\}?")
_WORD = re.compile(r"[A-Z]?[a-z]{2,}|[A-Z]{2,}(?![a-z])")
_DIGIT, _SIGNS = re.compile(r"[0-9]"), re.compile(r"[^A-Za-z0-9]+")
_KINDS = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", "U" * 26 + "l" * 26 + "d" * 10)
MIN_CHARS = 20
_MIN_WORD = 4


def entropy(token: str) -> float:
    """Bits per character, from the token's own frequencies."""
    size = len(token)
    return -sum(count / size * math.log2(count / size) for count in Counter(token).values())


def changes(token: str) -> float:
    """The share of neighbouring characters of different kinds: upper-case, lower-case, digit. About 0.6 by lot, 0.15 in names."""
    kinds = token.translate(_KINDS)
    pairs = [(one, other) for one, other in pairwise(kinds) if one in "Uld" and other in "Uld"]
    return sum(one != other for one, other in pairs) / len(pairs) if pairs else 0.0


def wordiness(token: str) -> float:
    """The share of the token that is made of word-like stretches."""
    good = 0
    for word in _WORD.findall(token):
        low = word.lower()
        pairs = [low[at : at + 2] in COMMON_PAIRS for at in range(len(low) - 1)]
        if len(low) >= _MIN_WORD and sum(pairs) >= 0.7 * len(pairs):
            good += len(low)
    return good / len(token)


def is_digest(token: str) -> bool:
    """Hexadecimal digests, UUIDs and numbers: as random as secrets, but public."""
    return token.isdigit() or _HEX.fullmatch(token) is not None or _UUID.fullmatch(token) is not None


def is_random(token: str) -> bool:
    """Whether the token was drawn by lot. Words, names, paths, digests and numbers were not."""
    if is_digest(token):
        return False
    bare = _SIGNS.sub("", token)
    if len(bare) < 16 or entropy(bare) < 3.2:
        return False
    has_both = bare.upper() != bare and bare.lower() != bare
    if not _DIGIT.search(bare):
        return has_both and len(bare) >= 24 and changes(bare) >= 0.42 and wordiness(token) < 0.25
    return wordiness(token) <= 0.45 and changes(bare) >= (0.34 if has_both else 0.22)


def is_mixed(value: str) -> bool:
    """Whether a value has at least two of: letters, digits, other signs. Passwords have, most words have not."""
    kinds = (any(map(str.isalpha, value)), any(map(str.isdigit, value)), any(not char.isalnum() for char in value))
    return sum(kinds) >= 2
