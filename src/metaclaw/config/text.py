"""A value given as plain text, by an environment variable or an option, read as the type its key has."""

import tomllib
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Literal, get_args, get_origin

from metaclaw.config.problems import find_field, section_type
from metaclaw.config.secret import Secret
from metaclaw.config.source import LISTS
from metaclaw.config.tree import Config


def parse_text(path: Sequence[str | int], text: str) -> object:
    """The text as its key's type wants it: words as they are, the rest as TOML; what is neither fails later."""
    parts = tuple(part for part in path if not (isinstance(part, str) and part.isdecimal()))
    if parts[:1] and parts[0] in LISTS and len(parts) == len(path) > 2:
        parts = (parts[0], *parts[2:])  # the second part is an entry's name
    _, field = find_field(Config, parts)
    if field is None or _is_text(field.annotation):
        return text
    value = _toml(text)
    is_list_of_words = get_origin(field.annotation) is tuple and section_type(field.annotation) is None
    if is_list_of_words and not isinstance(value, list):
        return [word.strip() for word in text.split(",") if word.strip()]
    return text if value is None else value


def _toml(text: str) -> object:
    """The one TOML value a text is, or None."""
    try:
        tree = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return None
    return tree["value"] if len(tree) == 1 else None


def _is_text(annotation: object) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, str | Secret | Path | Enum):
        return True
    if get_origin(annotation) is Literal:
        return True
    inner = [arg for arg in get_args(annotation) if arg is not type(None)]
    return len(inner) == 1 and get_origin(annotation) is not tuple and _is_text(inner[0])
