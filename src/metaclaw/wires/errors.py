"""Errors in each wire's own shape, and what a provider's error of any shape says."""

from collections.abc import Mapping

import msgspec

from metaclaw.domain.chat import Json
from metaclaw.errors import UpstreamError
from metaclaw.wires.fields import Object, encode, object_of, text_of

_OPENAI_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_STATUS_OF_TYPE: Mapping[str, int] = {
    **{kind: status for status, kind in _ANTHROPIC_TYPES.items()},
    "invalid_request_error": 400,
    "invalid_api_key": 401,
    "insufficient_quota": 429,
    "rate_limit_exceeded": 429,
}
_MAX_MESSAGE_CHARS = 2_000
NO_REASON = "the provider reported an error"


def openai_error(status: int, message: str, code: str, param: str | None) -> Object:
    """An error as OpenAI's wires write it."""
    kind = _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def openai_body(status: int, message: str, code: str, param: str | None) -> bytes:
    """The body of an error answer on OpenAI's wires."""
    return encode(openai_error(status, message, code, param))


def anthropic_error(status: int, message: str) -> Object:
    """An error as Anthropic's wire writes it: its type follows from the status."""
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def parse_error(status: int, body: bytes) -> tuple[str, str]:
    """Message and code of a provider's error, whatever its shape; never raises."""
    try:
        value: Json = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        value = body.decode("utf-8", "replace").strip()
    message, code = error_of(value)
    return message[
        :_MAX_MESSAGE_CHARS
    ] or f"the provider answered with status {status} and no word why", code or f"upstream_{status}"


def error_of(value: Json) -> tuple[str, str]:
    """Message and code somewhere in an error value; empty where it has none."""
    match value:
        case str():
            return value, ""
        case [first, *_]:
            return error_of(first)
        case {"error": dict() | str() | list() as inner}:
            return error_of(inner)
        case {"detail": dict() | str() | list() as inner}:
            return error_of(inner)
        case {"response": {"error": dict() as inner}}:
            return error_of(inner)
        case dict():
            message = text_of(value.get("message")) or text_of(value.get("msg"))
            return message, text_of(value.get("code")) or text_of(value.get("type"))
        case _:
            return "", ""


def reported_error(value: Json) -> UpstreamError:
    """The error a provider reported under a status of success, with the status it names or implies; 502 where it does neither."""
    message, code = error_of(value)
    words = message[:_MAX_MESSAGE_CHARS] or "it reported an error and no reason"
    return UpstreamError(words, status=_status_of(value), code=code or "upstream_error")


def _status_of(value: Json) -> int:
    error = object_of(value)
    error = object_of(error.get("response")) or error
    error = object_of(error.get("error")) or error
    for name in ("status", "status_code", "code", "type"):
        said = error.get(name)
        status = int(said) if isinstance(said, int) or (isinstance(said, str) and said.isdecimal() and len(said) == 3) else 0
        status = status or _STATUS_OF_TYPE.get(text_of(said), 0)
        if 400 <= status < 600:
            return status
    return 502
