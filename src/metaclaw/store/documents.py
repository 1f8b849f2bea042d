"""Domain values as one text column each: JSON, with every text in it made safe for any database."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from metaclaw.store.packing import pack_text, unpack_text

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
