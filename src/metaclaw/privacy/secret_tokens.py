"""Decide which tokens and values are secrets: random tokens, encoded secrets, and values after a name.

Each distinct long token of a text is examined once. A value after a name may be a secret, or only a type, a variable or an example.
"""

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import pairwise

from metaclaw.text import BASE64, HEX, from_base64, from_hex

PLACEHOLDER = re.compile(r"<[A-Z][A-Z_]{2,20}(?::[a-z0-9-]{1,30})?(?:#\d{1,6})?>")
"""The replacement of a secret: `<API_KEY:openai>`, `<PASSWORD#2>`."""


class Certainty(IntEnum):
    """How a secret was recognised, weakest first. Of two overlapping matches, the surer one gives the label."""

    RANDOM = 1
    NAMED = 2
    SHAPED = 3
    KNOWN = 4


@dataclass(frozen=True, slots=True)
class SecretMatch:
    """The place of a secret. `label` is the text of its placeholder without brackets and number."""

    start: int
    end: int
    label: str
    certainty: Certainty


def merge_matches(hits: Iterable[SecretMatch]) -> list[SecretMatch]:
    """The matches in order, overlapping ones united, with the label of the surest."""
    united: list[SecretMatch] = []
    for hit in sorted((hit for hit in hits if hit.start < hit.end), key=lambda hit: (hit.start, -hit.end)):
        if united and hit.start < united[-1].end:
            last = united[-1]
            name = hit if hit.certainty > last.certainty else last
            united[-1] = SecretMatch(last.start, max(last.end, hit.end), name.label, name.certainty)
        else:
            united.append(hit)
    return united


_VALUE_SAMPLE = 200
_BLOCK = 2_048
_MAX_PER_BLOCK = 64 * _BLOCK


class ValueCheck:
    """Decides which values of one text are secrets, in time linear in the length of the text.

    Values overlap if names follow one another without white space (`bearerbearer…`). Only the first 200 characters of a value are
    examined. Once the values that begin in one block of text are together 64 times as long as the block, further values in it count
    as secrets without examination.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._examined: Counter[int] = Counter()

    def holds(self, start: int, end: int, is_secret: Callable[[str], bool]) -> bool:
        """Whether the value between `start` and `end` is a secret."""
        if end <= start:
            return False
        self._examined[start // _BLOCK] += end - start
        return self.is_exhausted(start) or is_secret(self.text[start : min(end, start + _VALUE_SAMPLE)])

    def is_exhausted(self, start: int) -> bool:
        """Whether values that begin here are no longer checked."""
        return self._examined[start // _BLOCK] > _MAX_PER_BLOCK


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
    pairs = [(left, right) for left, right in pairwise(kinds) if left in "Uld" and right in "Uld"]
    return sum(left != right for left, right in pairs) / len(pairs) if pairs else 0.0


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
# Words with a number or two among them (`sha256-based`, `utf-8`), versions, measures, dates.
_COMPOUND = re.compile(
    r"[a-z]*\d{0,4}(?:[-_./:][a-z]*\d{0,4})*|[A-Z][a-z]*\d{0,2}(?:[-_./ ][A-Za-z]+)*|v?\d+(?:[.:-]\d+)*[A-Za-z]{0,4}"
    r"|\d{4}-\d\d-\d\d.*"
)
_FIELD = re.compile(r"[A-Za-z_][\w.-]*[=:][^=].*", re.DOTALL)


def is_word_about(value: str, *, quoted: bool = True) -> bool:
    """Whether a value is not a secret but a variable, a mask, an example or a type; without quotes, also code."""
    bare = value.strip().strip("\"'`.,;:!?)")
    if not bare or value.lstrip()[:1] in _CLOSES_CODE or PLACEHOLDER.match(value) or bare.lower() in PLAIN_VALUES:
        return True
    if _TEMPLATE.fullmatch(bare) or _MASK.fullmatch(bare) or _EXAMPLE.fullmatch(bare):
        return True
    return not quoted and (_CODE.match(bare) is not None or (value.endswith("}") and _NAME.fullmatch(bare.rstrip("}")) is not None))


def is_name(value: str) -> bool:
    """Whether a value is an identifier made of words, such as the name of a variable."""
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
    """Whether the value after a token's or key's name is the token: long enough, with digits among its letters, not a name."""
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
"""Values after a secret's name that are not secrets: types, masks, words of a sentence."""


MIN_CHARS = 16
_DIGIT = re.compile("[0-9]")
_LONG = re.compile(rf"[A-Za-z0-9+/=_.:$~%@,-]{{{MIN_CHARS},}}")


class WordSet:
    """The distinct words of a text. They are far shorter than the text and show which patterns cannot match."""

    def __init__(self, text: str, min_chars: int) -> None:
        unique = set(text.split())
        self.long = [word for word in unique if len(word) >= min_chars]
        """Words with at least `min_chars` characters."""
        self.low = "\n".join(unique).lower()
        """All words in lower case, one per line."""


class LongTokens:
    """The distinct tokens of at least 16 characters. `joined` has one per line.

    Tokens with a digit come last, from `digits_from` on: nearly all random tokens have a digit, most names do not.
    """

    def __init__(self, text: str, words: list[str]) -> None:
        self._text = text
        unique = set(_LONG.findall("\n".join(words)))
        with_digit = [token for token in unique if _DIGIT.search(token)]
        without = list(unique.difference(with_digit))
        self._unique = without + with_digit
        self.joined = "\n".join(self._unique)
        self.digits_from = sum(map(len, without)) + len(without)

    def places(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Every place in the text of a stretch of `joined`."""
        token = bisect_right(self._starts, start) - 1
        shift = start - self._starts[token]
        for place in self._places.get(self._unique[token], ()):
            yield place + shift, place + shift + end - start

    @cached_property
    def _starts(self) -> list[int]:
        starts, at = [], 0
        for token in self._unique:
            starts.append(at)
            at += len(token) + 1
        return starts

    @cached_property
    def _places(self) -> dict[str, list[int]]:
        places: dict[str, list[int]] = {}
        for match in _LONG.finditer(self._text):
            places.setdefault(match[0], []).append(match.start())
        return places


_CANDIDATE = re.compile(rf"[A-Za-z0-9+/_~-]{{{MIN_RANDOM_CHARS},}}={{0,2}}")
_MAX_CHARS = 200
_BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_PUBLIC_BEFORE = re.compile(
    r"(?:sha(?:1|224|256|384|512)|md5|h1|integrity|ssh-(?:rsa|dss|ed25519)|ecdsa-sha2-\w{1,20}|sk-\w{1,40}@openssh\.com|base64"
    r"|etag|nonce|rev|commit|checksum|digest|fingerprint|ref|index)[\"']?(?:[-:= ,]|\\?[\"']){1,4}(?:[Ww]/\"?)?\Z",
    re.IGNORECASE,
)
_PUBLIC_PREFIX = re.compile(
    r"(?:call|toolu|tooluse|chatcmpl|cmpl|msg|resp|req|fc|rs|ws|run|thread|asst|file|batch|evt|step|srvtoolu|gen|item|trace"
    r"|span|sess_id)[_-]"
    r"|AAAA[A-Z]3NzaC1|AAAAE2VjZHNh|MII[A-K]|pk_(?:live|test)_|ey[IJ]|iVBORw0KGgo|R0lGOD|/9j/|UklGR|JVBERi0|UEsDB|H4sIA|AAABAA"
)
_PUBLIC_BLOCK = re.compile(
    r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}(?:CERTIFICATE|PUBLIC KEY|SIGNATURE|MESSAGE|CERTIFICATE REQUEST|X509 CRL)(?: BLOCK)?-----"
)
_DATA_URL = re.compile(r"data:(?:image|audio|video|font|application)/[\w.+-]{1,60}(?:;[\w=.-]{1,40}){0,3};base64,[A-Za-z0-9+/=_-]+")
_MAX_BLOCK = 200_000
_BASE64_LINE = re.compile(r"[A-Za-z0-9+/]{20,}={0,2}")
_MIN_LINE_CHARS = 40
_SAMPLE = 4_000


def find_random(text: str, tokens: LongTokens) -> list[SecretMatch]:
    """Find random tokens of 20 to 200 characters, except public ones (digests, ids, certificates) and words in base64."""
    matches: list[SecretMatch] = []
    passed_over: list[tuple[int, int]] | None = None
    for match in _CANDIDATE.finditer(tokens.joined, tokens.digits_from):
        for low, high in () if " " in from_base64(match[0]) else _candidates(match[0]):
            if passed_over is None:
                passed_over = list(_public(text))
            for start, end in tokens.places(match.start() + low, match.start() + high):
                if _stands_alone(text, start, end) and not _is_covered(start, passed_over):
                    matches.append(SecretMatch(start, end, "SECRET", Certainty.RANDOM))
    return matches


def _is_covered(start: int, stretches: list[tuple[int, int]]) -> bool:
    at = bisect_right(stretches, (start, len(stretches) and stretches[-1][1])) - 1
    return at >= 0 and stretches[at][0] <= start < stretches[at][1]


def _public(text: str) -> Iterator[tuple[int, int]]:
    """Certificates, public keys, signatures, and pictures in the text."""
    if "-----BEGIN " in text:
        end = 0
        for begin in _PUBLIC_BLOCK.finditer(text):
            if 0 <= end < begin.end():
                end = text.find("-----END", begin.end())
            yield begin.start(), end if 0 <= end <= begin.end() + _MAX_BLOCK else begin.end()
    if ";base64," in text:
        yield from (match.span() for match in _DATA_URL.finditer(text))


def _candidates(token: str) -> Iterator[tuple[int, int]]:
    """The random stretches of a token: all of it, or segments of a path."""
    if "/" in token and not _is_base64(token):
        at = 0
        for piece in token.split("/"):
            if MIN_RANDOM_CHARS <= len(piece) <= _MAX_CHARS and is_random(piece):
                yield at, at + len(piece)
            at += len(piece) + 1
    elif len(token) <= _MAX_CHARS and is_random(token):
        yield 0, len(token)


def _is_base64(token: str) -> bool:
    """Whether the slashes are base64 characters, not path separators: no piece between them looks like a name."""
    pieces = token.strip("/").split("/")
    return (
        len(token) >= 30 and len(pieces) <= 2 + len(token) // 16 and is_random(token[:_SAMPLE]) and not any(map(_is_name, pieces))
    )


def _is_name(piece: str) -> bool:
    return len(piece) >= 3 and piece.replace("_", "").replace("-", "").isalpha() and (piece.islower() or piece.istitle())


def _stands_alone(text: str, start: int, end: int) -> bool:
    """Whether nothing around the token marks it as public: a digest's name, an id's prefix, a file extension."""
    before = text[max(0, start - _MAX_CHARS) : start]
    whole = start - len(before) + len(before.rstrip(_BASE64))
    if _PUBLIC_PREFIX.match(text, start) or _PUBLIC_BEFORE.search(text, max(0, whole - 40), whole):
        return False
    if text[end : end + 1] == "." and re.match(r"\.[a-z][a-z0-9]{1,5}\b", text[end : end + 8]):
        return False
    return not _in_block(text, start, end)


def _in_block(text: str, start: int, end: int) -> bool:
    """Whether the token is a line of a base64 block, that is, part of a file."""
    first = text.rfind("\n", max(0, start - _MAX_CHARS), start) + 1
    last = text.find("\n", end, end + _MAX_CHARS)
    last = len(text) if last < 0 else last
    size = last - first
    if not _MIN_LINE_CHARS <= size <= 3 * _MAX_CHARS or not _BASE64_LINE.fullmatch(text, first, last):
        return False
    before = text.rfind("\n", max(0, first - 1 - _MAX_CHARS), max(0, first - 1)) + 1
    follows = first - 1 - before >= size and _BASE64_LINE.fullmatch(text, before, first - 1) is not None
    return follows or (
        text[last + 1 + size : last + 2 + size] in ("\n", "")
        and _BASE64_LINE.fullmatch(text, last + 1, last + 1 + size) is not None
    )


_MAX_ENCODED_CHARS = 100_000


def find_encoded(tokens: LongTokens, detect: Callable[[str], list[SecretMatch]]) -> Iterator[SecretMatch]:
    """Find base64 and hexadecimal tokens whose decoded text contains a secret according to `detect`."""
    for pattern, decode in ((BASE64, from_base64), (HEX, from_hex)):
        for match in pattern.finditer(tokens.joined):
            plain = decode(match[0]) if match.end() - match.start() <= _MAX_ENCODED_CHARS else ""
            inside = detect(plain) if plain else []
            if inside:
                surest = max(inside, key=lambda hit: hit.certainty)
                for start, end in tokens.places(match.start(), match.end()):
                    yield SecretMatch(start, end, surest.label, surest.certainty)
