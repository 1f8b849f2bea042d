"""Whether what stands behind a name is a secret itself, or a word about one: a type, a variable, an example, a mask."""

import re

from metaclaw.privacy.hits import PLACEHOLDER
from metaclaw.privacy.randomness import is_mixed, wordiness
from metaclaw.privacy.words import PLAIN_VALUES

_REFERENCE = re.compile(
    r"[$%]\{?[A-Za-z_(]|\$\{|\{\{|\{[a-z_]{0,30}\}|<[^<>]{0,60}>?\Z|%[sd(]|@\w+@|env[:.\[(]|os\.|process\.|getenv|config[.\[]"
    r"|self\.|settings\."
    r"|vault:|ref\+|secretkeyref|file:|/(?:run|etc|var|home|usr|tmp|opt|app)/|[a-z_][\w.]*[(\[]|\(|await |function|lambda"
    r"|!vault|!ref|arn:",
    re.IGNORECASE,
)
_MASK = re.compile(
    r"[*•xX.·#_-]{3,}|\.{2,}|…|(?:[\"'\\]+)|\[?(?:redacted|masked|hidden|filtered|secret|removed|omitted|sensitive|scrubbed)\]?",
    re.IGNORECASE,
)
_EXAMPLE = re.compile(r"(?:your|my|the|some|enter|insert|put|replace|change|add)[-_ ]", re.IGNORECASE)
_CODE = frozenset(",)]};")
_NAME = re.compile(r"[A-Za-z_][A-Za-z_]*(?:[._\[\]-][A-Za-z_]+)*\??")
_TYPE = re.compile(r"(?:[A-Z][a-z]+){1,4}(?:\[.{0,40}\]|<.{0,40}>)?[?!,;]?")


def is_word_about(value: str) -> bool:
    """Whether a value is not a secret but stands for one: a variable, a call, a mask, an example, a type."""
    bare = value.strip().strip("\"'`.,;:!?)")
    if not bare or value.lstrip()[:1] in _CODE or PLACEHOLDER.match(value) or bare.lower() in PLAIN_VALUES:
        return True
    return bool(
        _REFERENCE.match(bare)
        or (value.endswith("}") and _NAME.fullmatch(bare.rstrip("}")))
        or _MASK.fullmatch(bare)
        or _EXAMPLE.match(bare)
    )


def is_name(value: str) -> bool:
    """Whether a value is an identifier made of words: a variable, not what it holds."""
    return _NAME.fullmatch(value) is not None and wordiness(value) >= 0.5


def is_password(value: str, *, quoted: bool, config: bool) -> bool:
    """Whether a value behind a password's name is the password. In code, a bare name is a variable; in a setting it is meant."""
    if len(value) < 3 or value[0].isspace() or is_word_about(value):
        return False
    if quoted:
        return not (" " in value.strip() and value.count(" ") >= 2 and wordiness(value) > 0.5)
    if _TYPE.fullmatch(value) and not config:
        return False
    return config or (is_mixed(value.strip(".,;:!?")) and not _NAME.fullmatch(value.strip(".,;:!?")))


def is_token(value: str) -> bool:
    """Whether a value behind a token's or key's name is the token: long enough, with digits among its letters, and no name."""
    if len(value) < 8 or " " in value or is_word_about(value):
        return False
    has_digit, has_alpha = any(map(str.isdigit, value)), any(map(str.isalpha, value))
    if not has_alpha:
        return False
    if not has_digit:
        mixed_case = not value.islower() and not value.isupper() and not value.istitle()
        return len(value) >= 16 and mixed_case and wordiness(value) < 0.3
    return wordiness(value) <= 0.6
