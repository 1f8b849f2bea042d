"""JSON checked once: each field is taken out as the type a wire asks for, or a WireError names the place."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TypeAlias, TypeVar

import msgspec

from metaclaw.domain.chat import Json, Text
from metaclaw.errors import UpstreamError, WireError

Object: TypeAlias = dict[str, Json]
T = TypeVar("T")

_NAMES: Mapping[type, str] = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
}
_MOST = 2**53


def wrong_type(param: str, wanted: str, value: Json) -> WireError:
    got = "null" if value is None else _NAMES.get(type(value), "something else")
    return WireError(f"{param} must be {wanted}, not {got}", param=param)


class Fields:
    """A JSON object that is emptied field by field; what is left at the end is what the wire does not name."""

    def __init__(self, value: Json, at: str) -> None:
        if not isinstance(value, dict):
            raise wrong_type(at or "the body", "an object", value)
        self._left: Object = dict(value)
        self._at = at

    def path(self, key: str) -> str:
        """Where a field stands in the whole body."""
        return f"{self._at}.{key}" if self._at else key

    def pop(self, key: str) -> Json:
        """A field as it is; None if it is absent."""
        return self._left.pop(key, None)

    def rest(self) -> Object:
        return self._left

    def text(self, key: str) -> str:
        value = self.pop(key)
        if not isinstance(value, str):
            raise wrong_type(self.path(key), "a string", value)
        return value

    def maybe_text(self, key: str) -> str | None:
        return self._maybe(key, "a string", str)

    def json_text(self, key: str) -> str:
        """A text, or any other JSON as its text; absent is empty."""
        return json_text(self.pop(key))

    def maybe_int(self, key: str) -> int | None:
        return self._maybe(key, "an integer", int)

    def maybe_number(self, key: str) -> float | None:
        return self._maybe(key, "a number", int, float)

    def maybe_bool(self, key: str) -> bool | None:
        return self._maybe(key, "a boolean", bool)

    def maybe_object(self, key: str) -> Object | None:
        return self._maybe(key, "an object", dict)

    def maybe_list(self, key: str) -> list[Json] | None:
        return self._maybe(key, "an array", list)

    def _maybe(self, key: str, wanted: str, *kinds: type[T]) -> T | None:
        """A field of one of these kinds, or None; a boolean is no number."""
        value = self.pop(key)
        if value is None or (isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)):
            return value
        raise wrong_type(self.path(key), wanted, value)

    def list(self, key: str) -> list[Json]:
        value = self.maybe_list(key)
        if value is None:
            raise wrong_type(self.path(key), "an array", value)
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A string or an array of strings; absent is empty."""
        value = self.pop(key)
        texts = tuple([item for item in ([value] if isinstance(value, str) else list_of(value)) if isinstance(item, str)])
        if not isinstance(value, str | list | None) or len(texts) < len(list_of(value)):
            raise wrong_type(self.path(key), "a string or an array of strings", value)
        return texts

    def each(self, key: str, read: Callable[[Json, str], T]) -> tuple[T, ...]:
        """The items of an array, each read together with its path; absent is empty."""
        at = self.path(key)
        return tuple([read(item, f"{at}[{number}]") for number, item in enumerate(self.maybe_list(key) or ())])

    def content(self, key: str, read: Callable[[Json, str], T], of: str = "parts") -> tuple[T | Text, ...]:
        """What is said: a string, or an array of parts, each read together with its path; absent or empty is nothing."""
        value, at = self.pop(key), self.path(key)
        if isinstance(value, str) or value is None:
            return (Text(value),) if value else ()
        if not isinstance(value, list):
            raise wrong_type(at, f"a string or an array of {of}", value)
        return tuple([read(item, f"{at}[{number}]") for number, item in enumerate(value)])


def decode_object(body: bytes | str, what: str) -> Object:
    """A provider's JSON object, or an UpstreamError that says what was wrong with it."""
    try:
        value = decode(body)
    except (ValueError, RecursionError) as error:
        raise UpstreamError(f"the provider sent {what} that is not JSON: {error}", code="upstream_garbage") from error
    if not isinstance(value, dict):
        raise UpstreamError(f"the provider sent {what} that is not a JSON object", code="upstream_garbage")
    return value


def decode(body: bytes | str) -> Json:
    """Any JSON. Servers that cut text between the halves of a surrogate pair send halves, which only the slower parser takes.

    Raises ValueError or RecursionError.
    """
    try:
        value: Json = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        value = json.loads(body)
    return value


def decode_or_text(data: bytes | str) -> Json:
    """Any JSON; what is none, as text. Never raises."""
    try:
        return decode(data)
    except (ValueError, RecursionError):
        return data if isinstance(data, str) else data.decode("utf-8", "replace").strip()


@contextmanager
def provider_at_fault(what: str) -> Iterator[None]:
    """Inside, a value of the wrong kind is the provider's mistake and not the client's."""
    try:
        yield
    except WireError as error:
        raise UpstreamError(f"the provider sent {what} that cannot be understood: {error}", code="upstream_garbage") from error


def encode(value: Json) -> bytes:
    """Compact JSON; a lone surrogate, which UTF-8 cannot carry, becomes a question mark."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_encodable(value))


@lru_cache(maxsize=512)
def literal(text: str) -> bytes:
    """A JSON string. Raises UnicodeEncodeError for a lone surrogate."""
    return msgspec.json.encode(text)


def encode_text(value: Json) -> str:
    return encode(value).decode()


def json_text(value: Json) -> str:
    """A call's arguments as text: some servers give them as an object, and some leave them out."""
    return value if isinstance(value, str) else "" if value is None else encode_text(value)


def _encodable(value: Json) -> Json:
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case list():
            return [_encodable(item) for item in value]
        case dict():
            return {str(_encodable(key)): _encodable(item) for key, item in value.items()}
        case _:
            return value


def whole(value: Json) -> int:
    """A count from a provider: anything that is not an integer from 0 to 2**53 counts as none, for nothing can be that many."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST else 0


def object_of(value: Json) -> Object:
    """The value if it is an object, else an empty one; for optional details that must not break an answer."""
    return value if isinstance(value, dict) else {}


def list_of(value: Json) -> list[Json]:
    """The value if it is an array, else an empty one."""
    return value if isinstance(value, list) else []


def text_of(value: Json) -> str:
    return value if isinstance(value, str) else ""
