"""Refusals that mean a path does not exist, told apart from those about a model or an object that the request names."""

import re
from collections.abc import Mapping

import msgspec

from metaclaw.domain.chat import Json
from metaclaw.wires import parse_error

_NO_ROUTE = frozenset({404, 405, 501})
# Words of a 404 that is about what was asked for, on a path that exists.
_OF_A_THING = re.compile(r"\b(?:models?|deployment|id|ids|previous|response with|conversation|item)\b", re.IGNORECASE)


def may_lack_route(status: int) -> bool:
    """Whether a response with this status can mean that the path does not exist."""
    return status in _NO_ROUTE


def is_missing_route(status: int, body: bytes) -> bool:
    """Whether a refusal means that the path does not exist, rather than a model or an object that the request names."""
    if status != 404:
        return status in _NO_ROUTE
    try:
        value: Json = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        value = None
    error = value.get("error") if isinstance(value, Mapping) else None
    if isinstance(error, Mapping) and error.get("param"):
        return False
    message, code = parse_error(status, body)
    return not body.strip() or not (_OF_A_THING.search(message) or "model" in code.lower())
