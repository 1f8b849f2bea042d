"""The first event of a provider's stream: whether it begins an answer, looked at before any of it is relayed."""

import msgspec

from metaclaw.domain.chat import Json
from metaclaw.errors import UpstreamError
from metaclaw.wires.failure import reported_error
from metaclaw.wires.fields import object_of

MAX_LOOK_BYTES = 16 * 1024
"""A first line that is longer is taken for an answer: errors are short."""

_BOM = b"\xef\xbb\xbf"
_ERROR_EVENTS = (b"error", b"response.failed")
_SILENT_FIELDS = (b"id", b"retry")


def begins_answer(data: bytes, *, is_all: bool = False) -> bool:
    """Whether a stream that begins with these bytes may be relayed; False while more of it must be seen. `is_all`: nothing follows.

    Raises UpstreamError if the first event is an error, or if the stream is over without an event. A name tells it at once; data
    without a name are read to the end of their line. A second comment is a keep-alive, which must reach the client.
    """
    at = len(_BOM) if data.startswith(_BOM) else 0
    names_error, comments = False, 0
    while at < len(data):
        end = _line_end(data, at)
        if end < 0:
            if not is_all:
                return len(data) > MAX_LOOK_BYTES
            end = len(data)
        line, at = data[at:end], end + 1
        field, _, value = line.partition(b":")
        value = value.strip()
        if field == b"data" and value:
            return _is_answer(value, names_error=names_error)
        if field == b"event":
            names_error = value in _ERROR_EVENTS
            if not names_error:
                return True
        elif line.startswith(b":"):
            comments += 1
            if comments > 1:
                return True
        elif field and field not in _SILENT_FIELDS and field != b"data":
            return _is_stream_at_all(data, is_all=is_all)
    if is_all:
        raise UpstreamError("the stream ended before its first event", code="upstream_empty")
    return False


def _is_answer(value: bytes, *, names_error: bool) -> bool:
    if value.startswith(b"[DONE]"):
        raise UpstreamError("the stream has no answer in it", code="upstream_empty")
    if names_error or b'"error"' in value:
        body = _parsed(value)
        if names_error or object_of(body).get("error") or object_of(body).get("type") == "error":
            raise reported_error(body)
    return True


def _is_stream_at_all(data: bytes, *, is_all: bool) -> bool:
    """Something else than events came where a stream was due, such as an error in JSON or a page."""
    if not is_all:
        return len(data) > MAX_LOOK_BYTES
    body = _parsed(data)
    if object_of(body).get("error"):
        raise reported_error(body)
    raise UpstreamError("it sent something else than a stream of events", code="upstream_garbage")


def _parsed(data: bytes) -> Json:
    try:
        value: Json = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return data.decode("utf-8", "replace").strip()
    return value


def _line_end(data: bytes, at: int) -> int:
    end = data.find(b"\n", at)
    carriage = data.find(b"\r", at, end if end >= 0 else len(data))
    return end if carriage < 0 else carriage
