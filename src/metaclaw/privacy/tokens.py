"""Long tokens of a text, each examined once: random ones, and encoded ones that contain a secret."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import cached_property

from metaclaw.domain.encoded_text import BASE64, HEX, from_base64, from_hex
from metaclaw.privacy.matches import Certainty, SecretMatch
from metaclaw.privacy.secret_values import MIN_RANDOM_CHARS, is_random

MIN_CHARS = 16
_DIGIT = re.compile("[0-9]")
_LONG = re.compile(rf"[A-Za-z0-9+/=_.:$~%@,-]{{{MIN_CHARS},}}")


class WordSet:
    """The distinct words of a text: far shorter than the text, and enough to rule patterns out."""

    def __init__(self, text: str, min_chars: int) -> None:
        unique = set(text.split())
        self.long = [word for word in unique if len(word) >= min_chars]
        """Words with at least `min_chars` characters."""
        self.low = "\n".join(unique).lower()
        """All words in lower case, one per line."""


class LongTokens:
    """The distinct tokens of at least 16 characters. `joined` has them, one per line.

    Those with a digit come last, from `digits_from` on: random tokens are among them, most names are not.
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
        for found in _LONG.finditer(self._text):
            places.setdefault(found[0], []).append(found.start())
        return places


_CANDIDATE = re.compile(rf"[A-Za-z0-9+/_~-]{{{MIN_RANDOM_CHARS},}}={{0,2}}")
_MAX_CHARS = 200
_BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_PUBLIC_BEFORE = re.compile(
    r"(?:sha(?:1|224|256|384|512)|md5|h1|integrity|ssh-(?:rsa|dss|ed25519)|ecdsa-sha2-\w{1,20}|sk-\w{1,40}@openssh\.com|base64"
    r"|etag|nonce"
    r"|rev|commit|checksum|digest|fingerprint|ref|index)[\"']?(?:[-:= ,]|\\?[\"']){1,4}(?:[Ww]/\"?)?\Z",
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
    found: list[SecretMatch] = []
    passed_over: list[tuple[int, int]] | None = None
    for match in _CANDIDATE.finditer(tokens.joined, tokens.digits_from):
        for low, high in () if " " in from_base64(match[0]) else _candidates(match[0]):
            if passed_over is None:
                passed_over = list(_public(text))
            for start, end in tokens.places(match.start() + low, match.start() + high):
                if _stands_alone(text, start, end) and not _is_covered(start, passed_over):
                    found.append(SecretMatch(start, end, "SECRET", Certainty.RANDOM))
    return found


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
        yield from (found.span() for found in _DATA_URL.finditer(text))


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
    """Whether the slashes are base64 characters and not path separators: no piece between them looks like a name."""
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
