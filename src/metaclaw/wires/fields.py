"""Decode and check JSON: each field is read with the type that a wire requires, or a WireError
names its path.
"""

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
    """A JSON object whose fields are read and removed one by one; `rest` has the fields that the
    wire does not know.
    """

    def __init__(self, value: Json, at: str) -> None:
        if not isinstance(value, dict):
            raise wrong_type(at or "the body", "an object", value)
        self._left: Object = dict(value)
        self._at = at

    def path(self, key: str) -> str:
        """The path of a field in the whole body."""
        return f"{self._at}.{key}" if self._at else key

    def pop(self, key: str) -> Json:
        """Remove and return a field of any type; None if it is absent."""
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
        """A string field, or any other JSON encoded as a string; empty if absent."""
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
        """A field of one of these types, or None if absent. A boolean is not a number."""
        value = self.pop(key)
        if value is None or (
            isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)
        ):
            return value
        raise wrong_type(self.path(key), wanted, value)

    def list(self, key: str) -> list[Json]:
        value = self.maybe_list(key)
        if value is None:
            raise wrong_type(self.path(key), "an array", value)
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A string or an array of strings; empty if absent."""
        value = self.pop(key)
        texts = tuple(
            [
                item
                for item in ([value] if isinstance(value, str) else list_of(value))
                if isinstance(item, str)
            ]
        )
        if not isinstance(value, str | list | None) or len(texts) < len(list_of(value)):
            raise wrong_type(self.path(key), "a string or an array of strings", value)
        return texts

    def each(self, key: str, read: Callable[[Json, str], T]) -> tuple[T, ...]:
        """The items of an array, each passed to `read` with its path; empty if absent."""
        at = self.path(key)
        return tuple(
            [
                read(item, f"{at}[{number}]")
                for number, item in enumerate(self.maybe_list(key) or ())
            ]
        )

    def content(
        self, key: str, read: Callable[[Json, str], T], of: str = "parts"
    ) -> tuple[T | Text, ...]:
        """Content: a string, or an array of parts, each passed to `read` with its path; empty if
        absent.
        """
        value, at = self.pop(key), self.path(key)
        if isinstance(value, str) or value is None:
            return (Text(value),) if value else ()
        if not isinstance(value, list):
            raise wrong_type(at, f"a string or an array of {of}", value)
        return tuple([read(item, f"{at}[{number}]") for number, item in enumerate(value)])


def decode_object(body: bytes | str, what: str) -> Object:
    """Decode a provider's JSON object. Raises UpstreamError for anything else."""
    try:
        value = decode_json(body)
    except (ValueError, RecursionError) as error:
        raise UpstreamError(
            f"the provider sent {what} that is not JSON: {error}", code="upstream_garbage"
        ) from error
    if not isinstance(value, dict):
        raise UpstreamError(
            f"the provider sent {what} that is not a JSON object", code="upstream_garbage"
        )
    return value


def decode_json(body: bytes | str) -> Json:
    """Decode any JSON. Falls back to the slower `json` for lone surrogates, which some servers
    send.

    Raises ValueError or RecursionError.
    """
    try:
        value: Json = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        value = json.loads(body)
    return value


def decode_or_text(data: bytes | str) -> Json:
    """Decode JSON, or return the data as text if it is not JSON. Never raises."""
    try:
        return decode_json(data)
    except (ValueError, RecursionError):
        return data if isinstance(data, str) else data.decode("utf-8", "replace").strip()


@contextmanager
def provider_at_fault(what: str) -> Iterator[None]:
    """Turn a WireError into an UpstreamError, because the provider and not the client sent the
    value.
    """
    try:
        yield
    except WireError as error:
        raise UpstreamError(
            f"the provider sent {what} that cannot be understood: {error}", code="upstream_garbage"
        ) from error


def encode_json(value: Json) -> bytes:
    """Encode compact JSON. Lone surrogates, which UTF-8 cannot encode, become question marks."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_encodable(value))


@lru_cache(maxsize=512)
def literal_json(text: str) -> bytes:
    """Encode a JSON string, with a cache. Raises UnicodeEncodeError for a lone surrogate."""
    return msgspec.json.encode(text)


def encode_text(value: Json) -> str:
    return encode_json(value).decode()


def json_text(value: Json) -> str:
    """A call's arguments as text: some servers send an object, and some send nothing."""
    if isinstance(value, str):
        return value
    return "" if value is None else encode_text(value)


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
    """A count from a provider; 0 for anything that is not an integer from 1 to 2**53."""
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST
        else 0
    )


def put(body: Object, options: Object) -> None:
    """Add the fields that have a value."""
    body.update({name: value for name, value in options.items() if value is not None})


def object_of(value: Json) -> Object:
    """The value if it is an object, else an empty object."""
    return value if isinstance(value, dict) else {}


def list_of(value: Json) -> list[Json]:
    """The value if it is an array, else an empty list."""
    return value if isinstance(value, list) else []


def text_of(value: Json) -> str:
    return value if isinstance(value, str) else ""
