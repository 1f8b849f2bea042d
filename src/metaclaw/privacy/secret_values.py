"""Whether a value is a secret: the tests that the table `secrets.toml` names, and the table
itself.
"""

import re
import tomllib
from collections.abc import Callable
from importlib.resources import files
from typing import Any, Final

TABLE: Final[dict[str, Any]] = tomllib.loads(
    (files("metaclaw.privacy") / "secrets.toml").read_text(encoding="utf-8")
)
PLACEHOLDER: Final = re.compile(r"<[A-Z][A-Z_]{2,20}(?::[a-z0-9-]{1,30})?(?:#\d{1,6})?>")
"""The replacement of a secret: `<API_KEY:openai>`, `<PASSWORD#2>`."""


def pattern(regex: str, flags: int = 0) -> re.Pattern[str]:
    """A regular expression of the table, with its classes filled in. A line break in it only keeps
    its lines short.
    """
    return re.compile(
        re.sub(
            "<([a-z]+)>",
            lambda name: TABLE["classes"].get(name[1], name[0]),
            regex.replace("\n", ""),
        ),
        flags,
    )


_PUBLIC_HEX = re.compile(r"\{?(?:0x)?(?:[0-9a-f-]+|[0-9A-F-]+)\}?")
_LETTERS = re.compile(r"[A-Z]?[a-z]{3,}|[A-Z]{4,}(?![a-z])")
_KINDS = re.compile("[A-Z]+|[a-z]+|[0-9]+")
_DIGIT = re.compile("[0-9]")
_NAME = re.compile(r"[A-Za-z_]+(?:[._\[\]'’/-][A-Za-z_]+)*\??")
_PAIRS = frozenset(TABLE["values"]["pairs"].split())
_WORDS = frozenset(TABLE["values"]["words"].split())
_PLAIN = pattern(TABLE["values"]["plain"], re.IGNORECASE | re.DOTALL)
_CODE = pattern(TABLE["values"]["code"], re.IGNORECASE)
_COMPOUND = pattern(TABLE["values"]["compound"], re.DOTALL)


def wordiness(token: str) -> float:
    """The share of the token that is made of word-like stretches of four letters or more."""
    good = 0
    for word in map(str.lower, _LETTERS.findall(token)):
        common = sum(word[at : at + 2] in _PAIRS for at in range(len(word) - 1))
        if len(word) > 3 and common >= 0.7 * (len(word) - 1):
            good += len(word)
    return good / len(token)


def is_mixed(value: str) -> bool:
    """Whether a value has at least two of: letters, digits, other signs. Passwords do, most words
    do not.
    """
    return not value.isalpha() and not value.isdigit() and any(map(str.isalnum, value))


def is_random(token: str) -> bool:
    """Whether the token is random. Words, names, paths, numbers and hexadecimal digests, which are
    public, are not.
    """
    bare = "".join(_KINDS.findall(token))
    if len(bare) < 16 or len(set(bare)) < 10 or _PUBLIC_HEX.fullmatch(token):
        return False
    changes, has_both = (
        (len(_KINDS.findall(bare)) - 1) / (len(bare) - 1),
        bare.upper() != bare and bare.lower() != bare,
    )
    if not _DIGIT.search(bare):
        return has_both and len(bare) >= 24 and changes >= 0.42 and wordiness(token) < 0.25
    return changes >= (0.34 if has_both else 0.22) and wordiness(token) <= 0.45


def is_phrase(value: str) -> bool:
    """Whether a quoted value is not a variable, a mask, an example, a type or a sentence."""
    bare = value.strip("\"'`.,;:!?) ")
    if (
        len(value) < 3
        or value[0].isspace()
        or value[0] in ",)]};"
        or bare.lower() in _WORDS
        or PLACEHOLDER.match(value)
    ):
        return False
    return (
        bool(bare)
        and not _PLAIN.fullmatch(bare)
        and (value.count(" ") < 2 or wordiness(value) <= 0.5)
    )


def is_literal(value: str) -> bool:
    """Whether a bare value is also not code."""
    return is_phrase(value) and not _CODE.match(value.strip("\"'`.,;:!?)"))


def is_password(value: str) -> bool:
    """Whether a value is not the name of a variable either: it has signs or digits, or its letters
    make no words.
    """
    if not is_literal(value) or sum(map(str.isascii, value)) < len(value) / 2:
        return False
    return (
        not _NAME.fullmatch(value)
        if is_mixed(value)
        else len(value) >= 8 and value.isalpha() and wordiness(value) < 0.4
    )


def is_token(value: str) -> bool:
    """Whether a value looks like a token on its own: long, digits among its letters, no name,
    version or date.
    """
    if len(value) < 8 or " " in value or not is_literal(value) or not any(map(str.isalpha, value)):
        return False
    if _DIGIT.search(value):
        return wordiness(value) <= 0.6 or (len(value) >= 10 and not _COMPOUND.fullmatch(value))
    return (
        len(value) >= 16
        and not (value.islower() or value.isupper() or value.istitle())
        and wordiness(value) < 0.3
    )


TESTS: Final[dict[str, Callable[[str], bool]]] = {
    "any": bool,
    "none": lambda value: False,
    "phrase": is_phrase,
    "literal": is_literal,
    "password": is_password,
    "token": is_token,
    "random": lambda value: is_random(value.replace(".", "")),
    "spoken": lambda value: len(value) >= 4 and is_mixed(value) and is_password(value),
    "word": lambda value: " " not in value and is_phrase(value),
    "meant": lambda value: (
        len(value) >= 8
        and " " not in value
        and value.upper() != value.lower()
        and is_password(value)
    ),
    "long": lambda value: len(value) >= 16 and is_token(value),
}
"""The tests by their names in the table."""
