"""Parts of long texts: JSON documents inside prose, and texts cut to a limit."""

import json
import re
from collections.abc import Iterator, Sequence

from metaclaw.domain.chat import Json

_THINKING = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_DECODER = json.JSONDecoder()


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
    """JSON documents in a model's answer, without those in its thoughts; the last first, since models think aloud."""
    return list(json_documents(_THINKING.sub(" ", text), most, openings))[::-1]


def cut_middle(text: str, limit: int) -> str:
    """The text, or its beginning and end with a note of how much is missing between them."""
    if len(text) <= limit:
        return text
    note = f" … [{len(text) - limit} characters left out] … "
    keep = limit - len(note)
    if keep < 20:
        return text[:limit]
    return f"{text[: keep - keep // 2]}{note}{text[len(text) - keep // 2 :]}"


def shorten(text: str, limit: int) -> str:
    """The text on one line, cut at the end."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1].rstrip()}…"


def fair_shares(lengths: Sequence[int], total: int) -> list[int]:
    """Share `total` characters: short texts get all they need, long ones equal parts of the rest."""
    shares, left = [0] * len(lengths), total
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for rank, at in enumerate(order):
        shares[at] = min(lengths[at], left // (len(order) - rank))
        left -= shares[at]
    return shares
