"""Secrets in another alphabet: base64 and hexadecimal tokens whose plain text holds one."""

from collections.abc import Callable, Iterator

from metaclaw.domain.encoded_text import BASE64, HEX, from_base64, from_hex
from metaclaw.privacy.hits import Hit
from metaclaw.privacy.tokens import LongTokens

_MAX_CHARS = 100_000


def encoded(tokens: LongTokens, detect: Callable[[str], list[Hit]]) -> Iterator[Hit]:
    """Each token that hides a secret; `detect` looks into what it decodes to."""
    for pattern, decode in ((BASE64, from_base64), (HEX, from_hex)):
        for match in pattern.finditer(tokens.joined):
            plain = decode(match[0]) if match.end() - match.start() <= _MAX_CHARS else ""
            inside = detect(plain) if plain else []
            if inside:
                surest = max(inside, key=lambda hit: hit.certainty)
                for start, end in tokens.places(match.start(), match.end()):
                    yield Hit(start, end, surest.label, surest.certainty)
