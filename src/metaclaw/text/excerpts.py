"""Find JSON in prose, cut texts to a limit, and reveal hidden characters and text in base64 or
hexadecimal.
"""

import base64
import binascii
import json
import re
import unicodedata
from collections.abc import Iterator, Sequence

from metaclaw.domain.chat import Completion, Json, text_of

_THINKING = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_DECODER = json.JSONDecoder()
_MAX_ANSWER_CHARS = 40_000
_MOST_OPENINGS = 500


def json_documents(text: str, most: int, openings: str = "{[") -> Iterator[Json]:
    """Objects and arrays in a text, in their order; at most `most` opening brackets are tried."""
    at = 0
    for _ in range(most):
        at = min((found for sign in openings if (found := text.find(sign, at)) >= 0), default=-1)
        if at < 0:
            return
        try:
            document, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
        else:
            yield document


def answer_documents(text: str, most: int, openings: str = "{[") -> list[Json]:
    """JSON documents in a model's answer outside its thoughts, the last first: earlier ones are
    often drafts.
    """
    return list(json_documents(_THINKING.sub(" ", text), most, openings))[::-1]


def answer_objects(completion: Completion) -> list[Json]:
    """The JSON objects in a model's answer, the last first."""
    text = text_of(completion.parts)[:_MAX_ANSWER_CHARS]
    return answer_documents(text, _MOST_OPENINGS, openings="{")


def cut_middle(text: str, limit: int) -> str:
    """The text; if it is longer than `limit`, its beginning and end with a note between them of how
    much is missing.
    """
    if len(text) <= limit:
        return text
    note = f" … [{len(text) - limit} characters left out] … "
    keep = limit - len(note)
    if keep < 20:
        return text[:limit]
    return f"{text[: keep - keep // 2]}{note}{text[len(text) - keep // 2 :]}"


def keep_ends(text: str, head: int, tail: int, between: str = "\n") -> str:
    """The text; if it is longer than `head + tail` characters, that much of its beginning and of
    its end.
    """
    return text if len(text) <= head + tail else f"{text[:head]}{between}{text[-tail:]}"


def shorten(text: str, limit: int) -> str:
    """The text on one line, cut after `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1].rstrip()}…"


def fair_shares(lengths: Sequence[int], total: int) -> list[int]:
    """Share `total` characters: short texts get all they need, long ones equal parts of the
    rest.
    """
    shares, left = [0] * len(lengths), total
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for rank, at in enumerate(order):
        shares[at] = min(lengths[at], left // (len(order) - rank))
        left -= shares[at]
    return shares


_INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0"
)
_TAGS = "\U000e0000-\U000e007f"
_SUPPLEMENT = "\U000e0100-\U000e01ef"
_WIDE = "\uff01-\uff5e"
_MATHEMATICAL = "\U0001d400-\U0001d7ff"
_ENCLOSED = "\u24b6-\u24e9"
# Cyrillic and Greek letters that look like Latin ones in most typefaces.
_LOOK_ALIKES = dict(
    zip(
        "аеорсухіјѕԁԛԝһӏьАВЕКМНОРСТУХІЈЅԌԚԜҮαοινρυκτΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
        "aeopcyxijsdqwhlbABEKMHOPCTYXIJSGQWYaoivpuktABEZHIKMNOPTYX",
        strict=True,
    )
)
_ALIKE = "".join(_LOOK_ALIKES)

INVISIBLE = re.compile(f"[{_INVISIBLE}{_TAGS}{_SUPPLEMENT}]")
HIDDEN = re.compile(
    f"[{_INVISIBLE}{_TAGS}{_SUPPLEMENT}{_WIDE}{_MATHEMATICAL}{_ENCLOSED}]|(?<=[A-Za-z0-9])[{_ALIKE}]|[{_ALIKE}](?=[A-Za-z0-9])"
)
"""Characters to remove or to replace by plain ones. Look-alikes match only next to a Latin letter
or digit.
"""

_SUSPECT = re.compile(
    f"[{_INVISIBLE}{_TAGS}{_SUPPLEMENT}{_WIDE}{_MATHEMATICAL}{_ENCLOSED}{_ALIKE}]"
)
_HIDDEN_ON_PURPOSE = re.compile(
    f"(?<![\U0001f3f4{_TAGS}])[{_TAGS}]|[\u202a-\u202e\u2066-\u2069]"
    "|(?<=[\x21-\x7e])[\u200b-\u200d\u2060\u00ad\ufeff](?=[\x21-\x7e])"
    f"|(?<=[A-Za-z])[{_ALIKE}](?=[A-Za-z])|(?<=[{_ALIKE}])[A-Za-z]{{2}}(?=[{_ALIKE}])"
)


def may_contain_hidden(text: str) -> bool:
    """A quick test before HIDDEN: whether the text may have a match."""
    return not text.isascii() and _SUSPECT.search(text) is not None


def visible_form(sign: str) -> str:
    """The plain character for one match of HIDDEN; empty for an invisible one."""
    code = ord(sign[0])
    if 0xE0020 <= code <= 0xE007E:
        return chr(code - 0xE0000)
    if sign in _LOOK_ALIKES:
        return _LOOK_ALIKES[sign]
    return "" if INVISIBLE.match(sign) else unicodedata.normalize("NFKC", sign)


def without_hidden_characters(text: str) -> str:
    """The text without invisible characters and with look-alikes as plain letters."""
    return text if text.isascii() else HIDDEN.sub(lambda found: visible_form(found[0]), text)


def hides_characters(text: str) -> bool:
    """Whether the text hides characters on purpose. Joiners that a script or an emoji requires do
    not count.
    """
    return not text.isascii() and _HIDDEN_ON_PURPOSE.search(text) is not None


BASE64 = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
HEX = re.compile(r"[0-9a-fA-F]{24,}")
_READABLE = bytes((*b"\t\r\n", *range(32, 127)))
_SAMPLE = 64
_LONG_TOKEN = 24
_FIRST_HALF = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef"


def hides_text(text: str) -> bool:
    """Whether a text contains words in base64 or hexadecimal, or is mostly such a token."""
    tokens = [match[0] for pattern in (BASE64, HEX) for match in pattern.finditer(text)]
    if any(from_base64(token) or (HEX.fullmatch(token) and from_hex(token)) for token in tokens):
        return True
    long = (token for token in set(tokens) if len(token) >= _LONG_TOKEN and "/" not in token)
    random = sum(
        len(token)
        for token in long
        if all(any(map(kind, token)) for kind in (str.isdigit, str.isupper, str.islower))
    )
    return random > len("".join(text.split())) / 2


def from_base64(token: str) -> str:
    """The text that a token encodes, or an empty string."""
    bare = token.rstrip("=")
    # ASCII text has no byte above 127, so the first character of each group of four is in the first
    # half of the base64 alphabet.
    if (
        len(bare) % 4 == 1
        or bare[:_SAMPLE:4].strip(_FIRST_HALF)
        or not _is_text(_decoded(bare[:_SAMPLE]))
    ):
        return ""
    return _text(_decoded(bare))


def _decoded(bare: str) -> bytes:
    altchars = b"-_" if "-" in bare or "_" in bare else None
    try:
        return base64.b64decode(bare + "=" * (-len(bare) % 4), altchars)
    except (binascii.Error, ValueError):
        return b""


def from_hex(token: str) -> str:
    """The text that hexadecimal digits encode, or an empty string."""
    return _text(bytes.fromhex(token)) if len(token) % 2 == 0 else ""


def _is_text(raw: bytes) -> bool:
    """Whether these bytes are printable ASCII; names and random tokens decode to noise."""
    return bool(raw) and raw.isascii() and not raw.translate(None, _READABLE)


def _text(raw: bytes) -> str:
    return raw.decode("ascii") if _is_text(raw) else ""
