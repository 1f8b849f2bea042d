"""Secrets in another alphabet: base64 and hexadecimal tokens whose plain text holds one."""

import base64
import binascii
import re
from collections.abc import Callable, Iterator

from metaclaw.privacy.hits import Hit
from metaclaw.privacy.tokens import LongTokens

_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
_HEX = re.compile(r"[0-9a-fA-F]{24,}")
_READABLE = bytes((*b"\t\r\n", *range(32, 127)))
_MAX_CHARS = 100_000
_SAMPLE = 64
_FIRST_HALF = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef"


def encoded(tokens: LongTokens, detect: Callable[[str], list[Hit]]) -> Iterator[Hit]:
    """Each token that hides a secret; `detect` looks into what it decodes to."""
    for pattern, decode in ((_BASE64, from_base64), (_HEX, _from_hex)):
        for match in pattern.finditer(tokens.joined):
            plain = decode(match[0]) if match.end() - match.start() <= _MAX_CHARS else ""
            inside = detect(plain) if plain else []
            if inside:
                surest = max(inside, key=lambda hit: hit.certainty)
                for start, end in tokens.places(match.start(), match.end()):
                    yield Hit(start, end, surest.label, surest.certainty)


def from_base64(token: str) -> str:
    """The words that a token stands for; empty where it stands for none."""
    bare = token.rstrip("=")
    # Plain text has no byte above 127, so each group of four begins with one of the first half of the alphabet.
    if len(bare) % 4 == 1 or bare[:_SAMPLE:4].strip(_FIRST_HALF) or not _reads(_decoded(bare[:_SAMPLE])):
        return ""
    return _text(_decoded(bare))


def _decoded(bare: str) -> bytes:
    altchars = b"-_" if "-" in bare or "_" in bare else None
    try:
        return base64.b64decode(bare + "=" * (-len(bare) % 4), altchars)
    except (binascii.Error, ValueError):
        return b""


def _from_hex(token: str) -> str:
    return _text(bytes.fromhex(token)) if len(token) % 2 == 0 else ""


def _reads(raw: bytes) -> bool:
    """Whether these bytes are text; names and random tokens decode to noise."""
    return bool(raw) and raw.isascii() and not raw.translate(None, _READABLE)


def _text(raw: bytes) -> str:
    return raw.decode("ascii") if _reads(raw) else ""
