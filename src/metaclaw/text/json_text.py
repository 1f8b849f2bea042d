"""JSON documents inside prose, as models write them."""

import json
from collections.abc import Iterator


def json_documents(text: str, most: int, openings: str = "{[") -> Iterator[object]:
    """Objects and arrays in a text, in their order; at most `most` opening brackets are tried."""
    decoder, at = json.JSONDecoder(), 0
    for _ in range(most):
        at = min((found for sign in openings if (found := text.find(sign, at)) >= 0), default=-1)
        if at < 0:
            return
        try:
            document, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
        else:
            yield document
