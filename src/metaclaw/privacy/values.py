"""Whether what stands behind a name is a secret itself, or a word about one: a type, a variable, an example, a mask."""

import re

from metaclaw.privacy.hits import PLACEHOLDER
from metaclaw.privacy.randomness import is_digest, is_mixed, is_random, wordiness
from metaclaw.privacy.words import PLAIN_VALUES

_TEMPLATE = re.compile(
    r"\$\{?(?:env:)?[A-Za-z_][\w.]*(?:[:?=+-][^{}]{0,60})?\}?|\$\{[^{}]{0,80}\}?|\$\(.*|\{\{.*|\{[a-z_.]{0,40}\}"
    r"|<[^<>]{0,60}>?|%[sdr]|%\(\w+\)s"
    r"|%\w+%|@\w+@|(?:vault|env|file|secret|ref|op|aws-sm|arn|keychain):.*|ref\+.*|secretkeyref.*|!(?:vault|ref|sub)\b.*"
    r"|/(?:run|etc|var|home|usr|tmp|opt|app|mnt)/[\w./-]*",
    re.IGNORECASE | re.DOTALL,
)
_CODE = re.compile(
    r"[a-z_][\w.]*[(\[]|[({\[]|(?:os|process|self|settings|config|env|cfg|this|args|ctx)\b[.\[]|await\b|lambda\b|function\b",
    re.IGNORECASE,
)
_MASK = re.compile(
    r"[*•xX.·#_-]{3,}|\.{2,}|…|[\"'\\]+|\[?(?:redacted|masked|hidden|filtered|secret|removed|omitted|sensitive|scrubbed)\]?",
    re.IGNORECASE,
)
_EXAMPLE = re.compile(r"(?:your|my|the|some|enter|insert|put|replace|change|add)(?:[-_ ]?[a-z]+)*", re.IGNORECASE)
_CLOSES_CODE = frozenset(",)]};")
_NAME = re.compile(r"[A-Za-z_][A-Za-z_]*(?:[._\[\]-][A-Za-z_]+)*\??")
_TYPE = re.compile(r"(?:[A-Z][a-z]+){1,4}(?:\[.{0,40}\]|<.{0,40}>)?[?!,;]?")
# Words with a number or two among them (`sha256-based`, `utf-8`), versions, measures, dates.
_COMPOUND = re.compile(
    r"[a-z]*\d{0,4}(?:[-_./:][a-z]*\d{0,4})*|[A-Z][a-z]*\d{0,2}(?:[-_./ ][A-Za-z]+)*|v?\d+(?:[.:-]\d+)*[A-Za-z]{0,4}"
    r"|\d{4}-\d\d-\d\d.*"
)
_FIELD = re.compile(r"[A-Za-z_][\w.-]*[=:][^=].*", re.DOTALL)


def is_word_about(value: str, *, quoted: bool = True) -> bool:
    """Whether a value is not a secret but stands for one: a variable, a mask, an example, a type; without quotes, also code."""
    bare = value.strip().strip("\"'`.,;:!?)")
    if not bare or value.lstrip()[:1] in _CLOSES_CODE or PLACEHOLDER.match(value) or bare.lower() in PLAIN_VALUES:
        return True
    if _TEMPLATE.fullmatch(bare) or _MASK.fullmatch(bare) or _EXAMPLE.fullmatch(bare):
        return True
    return not quoted and (_CODE.match(bare) is not None or (value.endswith("}") and _NAME.fullmatch(bare.rstrip("}")) is not None))


def is_name(value: str) -> bool:
    """Whether a value is an identifier made of words: a variable, not what it holds."""
    return _NAME.fullmatch(value) is not None and wordiness(value) >= 0.5


def is_password(value: str, *, quoted: bool, config: bool) -> bool:
    """Whether a value behind a password's name is the password. In code, a bare name is a variable; in a setting it is meant."""
    if len(value) < 3 or value[0].isspace() or is_word_about(value, quoted=quoted):
        return False
    if quoted:
        return not (value.count(" ") >= 2 and wordiness(value) > 0.5)
    bare = value.strip(".,;:!?")
    if config:
        return True
    return (is_mixed(bare) and not _NAME.fullmatch(bare)) or (len(bare) >= 8 and bare.isalpha() and wordiness(bare) < 0.4)


def is_token(value: str, *, quoted: bool = True) -> bool:
    """Whether a value behind a token's or key's name is the token: long enough, with digits among its letters, and no name."""
    if len(value) < 8 or " " in value or is_word_about(value, quoted=quoted) or not any(map(str.isalpha, value)):
        return False
    has_both = not value.islower() and not value.isupper() and not value.istitle()
    if not any(map(str.isdigit, value)):
        return len(value) >= 16 and has_both and wordiness(value) < 0.3
    return wordiness(value) <= 0.6 or (len(value) >= 10 and not _COMPOUND.fullmatch(value))


def is_typed(value: str) -> bool:
    """Whether a value was made to be a secret, judged by itself: long, digits among letters, not words, no version, no date."""
    if len(value) < 8 or not value.isascii() or is_word_about(value, quoted=False) or not any(map(str.isalpha, value)):
        return False
    if is_digest(value):
        return len(value) >= 16
    if not any(map(str.isdigit, value)):
        return len(value) >= 16 and is_random(value + "0")
    return not _COMPOUND.fullmatch(value) and not _FIELD.fullmatch(value)


def is_meant(value: str) -> bool:
    """Whether a value is a secret where its place says that it is one: digits among letters, or letters that make no words."""
    if len(value) < 8 or not any(map(str.isalpha, value)) or is_word_about(value):
        return False
    return any(map(str.isdigit, value)) or (len(value) >= 12 and wordiness(value) < 0.6)
