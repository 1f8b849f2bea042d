"""Words in base64 or hexadecimal, which a person cannot read."""

import base64
import binascii
import re
from typing import Final

BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
HEX: Final = re.compile(r"[0-9a-fA-F]{24,}")
_READABLE: Final = bytes((*b"\t\r\n", *range(32, 127)))
_SAMPLE: Final = 64
_LONG: Final = 24
_FIRST_HALF: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef"


def hides_text(text: str) -> bool:
    """Whether a text holds words in base64 or hexadecimal, or is mostly such a token: a person's rule is in plain words."""
    tokens = [match[0] for pattern in (BASE64, HEX) for match in pattern.finditer(text)]
    if any(from_base64(token) or (HEX.fullmatch(token) and from_hex(token)) for token in tokens):
        return True
    random = sum(len(token) for token in set(tokens) if len(token) >= _LONG and _is_mixed(token) and "/" not in token)
    return random > len("".join(text.split())) / 2


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


def from_hex(token: str) -> str:
    """The words that hexadecimal digits stand for; empty where they stand for none."""
    return _text(bytes.fromhex(token)) if len(token) % 2 == 0 else ""


def _reads(raw: bytes) -> bool:
    """Whether these bytes are text; names and random tokens decode to noise."""
    return bool(raw) and raw.isascii() and not raw.translate(None, _READABLE)


def _text(raw: bytes) -> str:
    return raw.decode("ascii") if _reads(raw) else ""


def _is_mixed(token: str) -> bool:
    kinds = (str.isdigit, str.isupper, str.islower)
    return all(any(map(kind, token)) for kind in kinds)
