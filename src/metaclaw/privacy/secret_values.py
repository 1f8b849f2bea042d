"""Secret values: whether a token is random, and whether the value after a name is a secret or only a type, variable or example."""

import math
import re
from collections import Counter
from itertools import pairwise

from metaclaw.privacy.matches import PLACEHOLDER

_HEX = re.compile(r"(?:0x)?[0-9a-f-]+|(?:0x)?[0-9A-F-]+")
_UUID = re.compile(r"\{?[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}\}?")
_LETTERS = re.compile(r"[A-Z]?[a-z]{2,}|[A-Z]{2,}(?![a-z])")
_ANY_DIGIT, _SIGNS = re.compile(r"[0-9]"), re.compile(r"[^A-Za-z0-9]+")
_KINDS = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", "U" * 26 + "l" * 26 + "d" * 10)
MIN_RANDOM_CHARS = 20
_MIN_WORD = 4


def entropy(token: str) -> float:
    """Bits per character, from the token's own frequencies."""
    size = len(token)
    return -sum(count / size * math.log2(count / size) for count in Counter(token).values())


def changes(token: str) -> float:
    """The share of neighbouring characters of different kinds (upper, lower, digit): 0.6 in random text, 0.15 in names."""
    kinds = token.translate(_KINDS)
    pairs = [(one, other) for one, other in pairwise(kinds) if one in "Uld" and other in "Uld"]
    return sum(one != other for one, other in pairs) / len(pairs) if pairs else 0.0


def wordiness(token: str) -> float:
    """The share of the token that is made of word-like stretches."""
    good = 0
    for word in _LETTERS.findall(token):
        low = word.lower()
        pairs = [low[at : at + 2] in COMMON_PAIRS for at in range(len(low) - 1)]
        if len(low) >= _MIN_WORD and sum(pairs) >= 0.7 * len(pairs):
            good += len(low)
    return good / len(token)


def is_digest(token: str) -> bool:
    """Hexadecimal digests, UUIDs and numbers: as random as secrets, but public."""
    return token.isdigit() or _HEX.fullmatch(token) is not None or _UUID.fullmatch(token) is not None


def is_random(token: str) -> bool:
    """Whether the token is random. Words, names, paths, digests and numbers are not."""
    if is_digest(token):
        return False
    bare = _SIGNS.sub("", token)
    if len(bare) < 16 or entropy(bare) < 3.2:
        return False
    has_both = bare.upper() != bare and bare.lower() != bare
    if not _ANY_DIGIT.search(bare):
        return has_both and len(bare) >= 24 and changes(bare) >= 0.42 and wordiness(token) < 0.25
    return wordiness(token) <= 0.45 and changes(bare) >= (0.34 if has_both else 0.22)


def is_mixed(value: str) -> bool:
    """Whether a value has at least two of: letters, digits, other signs. Passwords do, most words do not."""
    kinds = (any(map(str.isalpha, value)), any(map(str.isdigit, value)), any(not char.isalnum() for char in value))
    return sum(kinds) >= 2


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
    """Whether a value only stands for a secret: a variable, a mask, an example, a type; without quotes, also code."""
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
    """Whether the value after a password's name is the password. In code, a bare name is a variable."""
    if len(value) < 3 or value[0].isspace() or is_word_about(value, quoted=quoted):
        return False
    if quoted:
        return not (value.count(" ") >= 2 and wordiness(value) > 0.5)
    bare = value.strip(".,;:!?")
    if config:
        return True
    return (is_mixed(bare) and not _NAME.fullmatch(bare)) or (len(bare) >= 8 and bare.isalpha() and wordiness(bare) < 0.4)


def is_token(value: str, *, quoted: bool = True) -> bool:
    """Whether the value after a token's or key's name is the token: long enough, with digits among its letters, and no name."""
    if len(value) < 8 or " " in value or is_word_about(value, quoted=quoted) or not any(map(str.isalpha, value)):
        return False
    has_both = not value.islower() and not value.isupper() and not value.istitle()
    if not any(map(str.isdigit, value)):
        return len(value) >= 16 and has_both and wordiness(value) < 0.3
    return wordiness(value) <= 0.6 or (len(value) >= 10 and not _COMPOUND.fullmatch(value))


def is_typed(value: str) -> bool:
    """Whether a value looks like a secret on its own: long, digits among letters, no words, version or date."""
    if len(value) < 8 or not value.isascii() or is_word_about(value, quoted=False) or not any(map(str.isalpha, value)):
        return False
    if is_digest(value):
        return len(value) >= 16
    if not any(map(str.isdigit, value)):
        return len(value) >= 16 and is_random(value + "0")
    return not _COMPOUND.fullmatch(value) and not _FIELD.fullmatch(value)


def is_meant(value: str) -> bool:
    """Whether a value at a place for secrets is one: digits among letters, or letters that make no words."""
    if len(value) < 8 or not any(map(str.isalpha, value)) or is_word_about(value):
        return False
    return any(map(str.isdigit, value)) or (len(value) >= 12 and wordiness(value) < 0.6)


_COMMON_PAIRS = (
    "th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng se ha as ou io le ve co me de hi ri ro ic ne ea ra"
    " ce li ch ll be ma si om ur ca el ta la ns di fo ho pe ec pr no ct us ac ot il tr ly nc et ut ss so rs un lo wa ge ie wh ee"
    " wi em ad ol rt po we na ul ni ts mo ow pa im mi ai sh ir su id os iv ia am fi ci vi pl ig tu ev ld ry mp fe bl ab gh ty op"
    " wo sa ay ex ke fr oo av ag if ap gr od bo sp rd do uc bu ei ov by rm ep tt oc fa ef cu rn sc gi da yo cr cl du ga qu ue ff"
    " ba ey ls va um pp ua up lu go ht ru ug ds lt pi rc rr eg au ck ew mu br bi pt ak pu ui rg ib tl ny ki rk ys ob mm fu ph og"
    " ms ye ud mb ip ub oi rl gu dr hr cc tw ft wn nu af hu nn eo vo rv nf xp gn sm fl iz ok nl my gl aw ju oa eq sy sl ps jo lf"
    " nv je nk kn gs dy hy ze ks xt bs ik dd rp sk xi oe oy ws lv dl rf eu dg wr xa yi nm eb tc tm kr xc js md db http"
)
COMMON_PAIRS = frozenset(_COMMON_PAIRS.split())
"""The commonest pairs of letters in words and identifiers; about a third of random pairs are among them."""

_PLAIN_VALUES = (
    "none null nil undefined true false yes no on off str string text bytes byte int integer number bool boolean object any"
    " array list dict map char varchar required optional empty missing invalid expired wrong incorrect correct valid set unset"
    " default hidden secret password passwd token key auth bearer basic digest value field input type name prompt stdin env file"
    " here it and or the to for is was of with from this that not must should can will has have are be in disabled enabled ok"
    " error failed example changeme placeholder test todo tbd n/a refresh access session optional[str] secretstr self cls ctx"
    " args reset rotate rotated unknown if credential credentials secretbytes apikey api_key"
)
PLAIN_VALUES = frozenset(_PLAIN_VALUES.split())
"""Values after a secret's name that are no secrets: types, masks, words of a sentence."""
