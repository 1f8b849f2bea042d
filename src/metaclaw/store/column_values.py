"""How values become columns: text any database takes, instants as microseconds, tokens as little-endian arrays."""

import re
import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TypeAlias, TypeVar

import msgspec
from sqlalchemy import Row

from metaclaw.domain.chat import Json

Value: TypeAlias = bool | int | float | str | bytes | None
Values: TypeAlias = tuple[Value, ...]
"""The values of a row to insert, in the order of its columns."""
ResultRow: TypeAlias = Row[*tuple[object, ...]]
"""A row that a query returned."""

_NO_NAME = ""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

# PostgreSQL takes no NUL in text and neither database takes a lone surrogate; clients and providers send both.
_ESCAPE = "\x1a"
_UNSAFE = re.compile("[\x00\x1a\ud800-\udfff]")
_ESCAPED = re.compile("\x1a([0-9a-f]{4})")


def pack_text(text: str) -> str:
    """The text itself in all but odd cases; characters a database refuses are written as an escape and four hex digits."""
    if _is_safe(text):
        return text
    return _UNSAFE.sub(lambda match: f"{_ESCAPE}{ord(match[0]):04x}", text)


def _is_safe(text: str) -> bool:
    if text.isascii():
        return "\x00" not in text and _ESCAPE not in text  # ten times faster than the expression
    return _UNSAFE.search(text) is None


def unpack_text(stored: str) -> str:
    """The text that `pack_text` was given."""
    if _ESCAPE not in stored:
        return stored
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), stored)


def pack_texts(row: Values) -> Values:
    """The row with every text in it packed; one look at all of them is enough for nearly every row."""
    if _is_safe("".join([value for value in row if type(value) is str])):
        return row
    return tuple(pack_text(value) if isinstance(value, str) else value for value in row)


def unpack_optional(stored: str | None) -> str | None:
    """`unpack_text`, or nothing."""
    return None if stored is None else unpack_text(stored)


def pack_names(names: Iterable[str]) -> str:
    """A JSON list of strings; JSON has escapes of its own, so the result needs no packing."""
    return _pack_names(tuple(names))


@lru_cache(maxsize=1024)  # the same few skills go together again and again
def _pack_names(names: tuple[str, ...]) -> str:
    return msgspec.json.encode([pack_text(name) for name in names]).decode()


def unpack_names(stored: str) -> tuple[str, ...]:
    """The strings that `pack_names` was given."""
    return tuple(unpack_text(name) for name in msgspec.json.decode(stored, type=list[str]))


def pack_placed(placed: tuple[str, ...], listed: tuple[str, ...]) -> str:
    """The names placed in full and those listed as one JSON list, with an empty string between them where any is listed."""
    return _pack_names((*placed, _NO_NAME, *listed) if listed else placed)


def unpack_placed(stored: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names that `pack_placed` was given."""
    names = unpack_names(stored)
    if _NO_NAME not in names:
        return names, ()
    at = names.index(_NO_NAME)
    return names[:at], names[at + 1 :]


def pack_json(value: Mapping[str, object]) -> str:
    """A JSON object; what JSON has no word for (a date in a skill's front matter) becomes its text."""
    return pack_text(msgspec.json.encode(value, enc_hook=str).decode())


def unpack_json(stored: str) -> dict[str, Json]:
    """The object that `pack_json` was given."""
    value: dict[str, Json] = msgspec.json.decode(unpack_text(stored), type=dict)
    return value


def pack_instant(instant: datetime) -> int:
    """Microseconds since 1970; an instant without a time zone is an error, not a guess."""
    if instant.tzinfo is None:
        raise ValueError("an instant without a time zone cannot be recorded")
    return (instant - _EPOCH) // _MICROSECOND


def unpack_instant(microseconds: int) -> datetime:
    """The instant, in UTC."""
    return _EPOCH + microseconds * _MICROSECOND


def pack_ids(ids: tuple[int, ...]) -> bytes:
    """Token ids as int32."""
    return struct.pack(f"<{len(ids)}i", *ids)


def unpack_ids(stored: bytes) -> tuple[int, ...]:
    """The ids that `pack_ids` was given."""
    return struct.unpack(f"<{len(stored) // 4}i", stored)


def pack_logprobs(logprobs: tuple[float, ...]) -> bytes:
    """Log-probabilities as float64: every bit is kept."""
    return struct.pack(f"<{len(logprobs)}d", *logprobs)


def unpack_logprobs(stored: bytes) -> tuple[float, ...]:
    """The numbers that `pack_logprobs` was given."""
    return struct.unpack(f"<{len(stored) // 8}d", stored)


T = TypeVar("T")


def pack_document(value: object) -> str:
    """A dataclass, or a tuple of them, as JSON. What JSON has no word for (a date in a skill's front matter) becomes its text."""
    return msgspec.json.encode(_each_text(msgspec.to_builtins(value, enc_hook=str), pack_text)).decode()


def unpack_document(stored: str, kind: type[T]) -> T:
    """The value that `pack_document` was given, checked by its own rules."""
    value: object = msgspec.json.decode(stored)
    return msgspec.convert(_each_text(value, unpack_text), kind)


def _each_text(value: object, change: Callable[[str], str]) -> object:
    match value:
        case str():
            return change(value)
        case dict():
            return {_each_text(key, change): _each_text(item, change) for key, item in value.items()}
        case list() | tuple():
            return [_each_text(item, change) for item in value]
        case float() if value - value != 0.0:
            raise ValueError(f"{value} has no place in a record")
        case _:
            return value
