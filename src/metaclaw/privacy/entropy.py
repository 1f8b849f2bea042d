"""Long random tokens that no shape and no name gives away, and the public things that only look like them."""

import re
from bisect import bisect_right
from collections.abc import Iterator

from metaclaw.domain.encoded_text import from_base64
from metaclaw.privacy.hits import Certainty, Hit
from metaclaw.privacy.randomness import MIN_CHARS, is_random
from metaclaw.privacy.tokens import LongTokens

_TOKEN = re.compile(rf"[A-Za-z0-9+/_~-]{{{MIN_CHARS},}}={{0,2}}")
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
_LINE = re.compile(r"[A-Za-z0-9+/]{20,}={0,2}")
_MIN_LINE = 40
_SAMPLE = 4_000


def random_tokens(text: str, tokens: LongTokens) -> list[Hit]:
    """Tokens of 20 to 200 characters that were drawn by lot and stand where no public thing does; words in base64 are none."""
    found: list[Hit] = []
    passed_over: list[tuple[int, int]] | None = None
    for match in _TOKEN.finditer(tokens.joined, tokens.digits_from):
        for low, high in () if " " in from_base64(match[0]) else _candidates(match[0]):
            if passed_over is None:
                passed_over = list(_public(text))
            for start, end in tokens.places(match.start() + low, match.start() + high):
                if _stands_alone(text, start, end) and not _is_covered(start, passed_over):
                    found.append(Hit(start, end, "SECRET", Certainty.RANDOM))
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
    """The stretches of a token that were drawn by lot: all of it, or steps of a path."""
    if "/" in token and not _is_base64(token):
        at = 0
        for piece in token.split("/"):
            if MIN_CHARS <= len(piece) <= _MAX_CHARS and is_random(piece):
                yield at, at + len(piece)
            at += len(piece) + 1
    elif len(token) <= _MAX_CHARS and is_random(token):
        yield 0, len(token)


def _is_base64(token: str) -> bool:
    """Whether slashes belong to an alphabet and do not part the steps of a path: no piece between them looks like a name."""
    pieces = token.strip("/").split("/")
    return (
        len(token) >= 30 and len(pieces) <= 2 + len(token) // 16 and is_random(token[:_SAMPLE]) and not any(map(_is_name, pieces))
    )


def _is_name(piece: str) -> bool:
    return len(piece) >= 3 and piece.replace("_", "").replace("-", "").isalpha() and (piece.islower() or piece.istitle())


def _stands_alone(text: str, start: int, end: int) -> bool:
    """Whether nothing around the token says that it is public: a digest's name, an id's prefix, a file's ending."""
    before = text[max(0, start - _MAX_CHARS) : start]
    whole = start - len(before) + len(before.rstrip(_BASE64))
    if _PUBLIC_PREFIX.match(text, start) or _PUBLIC_BEFORE.search(text, max(0, whole - 40), whole):
        return False
    if text[end : end + 1] == "." and re.match(r"\.[a-z][a-z0-9]{1,5}\b", text[end : end + 8]):
        return False
    return not _in_block(text, start, end)


def _in_block(text: str, start: int, end: int) -> bool:
    """Whether the token stands in a line of base64 beside lines like it: a file in base64, not a token."""
    first = text.rfind("\n", max(0, start - _MAX_CHARS), start) + 1
    last = text.find("\n", end, end + _MAX_CHARS)
    last = len(text) if last < 0 else last
    size = last - first
    if not _MIN_LINE <= size <= 3 * _MAX_CHARS or not _LINE.fullmatch(text, first, last):
        return False
    before = text.rfind("\n", max(0, first - 1 - _MAX_CHARS), max(0, first - 1)) + 1
    follows = first - 1 - before >= size and _LINE.fullmatch(text, before, first - 1) is not None
    return follows or (
        text[last + 1 + size : last + 2 + size] in ("\n", "") and _LINE.fullmatch(text, last + 1, last + 1 + size) is not None
    )
