"""Problems in a configuration: the place, the key, what is wrong, and what to write."""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from metaclaw.config.section import Secret, without_password
from metaclaw.config.sources import LISTS, KeyPath, ValueSources, key_of, named_key_of
from metaclaw.errors import ConfigError

_FOLLOWS = (
    "default_factory_not_called"  # pydantic's error for a default that depends on an invalid key
)
_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a text in quotes",
    "path_type": "a text in quotes",
    "tuple_type": "a list",
    "secret_type": "a text in quotes",
}


@dataclass(frozen=True, slots=True)
class Problem:
    place: str
    key: str
    what: str
    remedy: str

    def __str__(self) -> str:
        subject = f"{self.place}: {self.key}" if self.key else f"{self.place}:"
        return f"{subject} {self.what}; {self.remedy}"


class InvalidConfigError(ConfigError):
    """The configuration is invalid."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


def explain(
    error: ValidationError, root: type[BaseModel], sources: ValueSources, tree: Mapping[str, object]
) -> InvalidConfigError:
    """Turn validation errors into problems with their places."""
    found = [details for details in error.errors(include_url=False) if details["type"] != _FOLLOWS]
    return InvalidConfigError([_explain_one(details, root, sources, tree) for details in found])


def _explain_one(
    details: ErrorDetails, root: type[BaseModel], sources: ValueSources, tree: Mapping[str, object]
) -> Problem:
    path: KeyPath = details["loc"]
    kind = details["type"]
    if kind == "open_host":
        path = (*path, "host")
    owner, field = find_field(root, path)
    place = str(sources.around(path))
    key = named_key_of(path, _names(tree, path))
    if kind == "extra_forbidden":
        return Problem(place, key, *_unknown(path, owner))
    if kind == "missing":
        return Problem(place, key, "is missing", _example(path, field))
    if (
        kind in ("model_type", "tuple_type")
        and owner is not None
        and field is not None
        and section_type(field.annotation)
    ):
        entries = path[:-1] if isinstance(path[-1], int) else path
        is_list = kind == "tuple_type" or entries != path or path[0] in LISTS
        header = f"[[{key_of(entries)}]]" if is_list else f"[{key}]"
        return Problem(
            place,
            key,
            "is not a section",
            f"write {header} on a line of its own and its keys below",
        )
    if kind == "open_host":
        return Problem(
            place,
            key,
            details["msg"],
            'write api_key = "env:NAME" into [proxy], or host = "127.0.0.1"',
        )
    if kind == "anthropic_url":
        shorter = without_password(str(details["input"]).rstrip("/").removesuffix("/v1"))
        return Problem(place, key, details["msg"], f"write base_url = {toml_value(shorter)}")
    if kind == "plugin_missing":
        what, _, remedy = details["msg"].partition("; ")
        return Problem(place, key, what, remedy)
    return Problem(place, key, _what(details), _example(path, field))


def _names(tree: Mapping[str, object], path: KeyPath) -> list[object]:
    """The names of the entries of the list at the beginning of a path; empty if it is not a
    list.
    """
    entries = tree.get(str(path[0])) if path else None
    return (
        [entry.get("name") if isinstance(entry, Mapping) else None for entry in entries]
        if isinstance(entries, list)
        else []
    )


def _unknown(path: KeyPath, owner: type[BaseModel] | None) -> tuple[str, str]:
    known = list(owner.model_fields) if owner is not None else []
    close = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.6)
    what = "is not a known key" if len(path) > 1 else "is not a known section"
    return what, f"did you mean {close[0]}?" if close else f"write one of {', '.join(known)}"


def _what(details: ErrorDetails) -> str:
    if details["type"] in _EXPECTED:
        return f"is not {_EXPECTED[details['type']]}"
    message = details["msg"]
    for polite, plain in (
        ("Input should be ", "must be "),
        ("Input should have ", "must have "),
        ("Value error, ", ""),
    ):
        message = message.replace(polite, plain)
    return message


def _example(path: KeyPath, field: FieldInfo | None) -> str:
    """What to write, from the key's example or default."""
    if field is None or isinstance(path[-1], int):
        return "correct this entry"
    value = field.examples[0] if field.examples else field.get_default()
    if value is PydanticUndefined or value is None or isinstance(value, BaseModel | tuple):
        return "see docs/config.md"
    return f"write, for example, {path[-1]} = {toml_value(value)}"


def toml_value(value: object) -> str:
    """A value of the tree as TOML, secrets masked."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return (
            "{ " + ", ".join(f"{name} = {toml_value(item)}" for name, item in value.items()) + " }"
        )
    return json.dumps(
        str(value) if isinstance(value, Secret | Path) else value, ensure_ascii=False, default=str
    )


def find_field(
    root: type[BaseModel], path: KeyPath
) -> tuple[type[BaseModel] | None, FieldInfo | None]:
    """The last section on a path, and the field at its end, or None."""
    owner: type[BaseModel] | None = root
    field: FieldInfo | None = None
    names = [part for part in path if isinstance(part, str)]
    for depth, name in enumerate(names, 1):
        if owner is None:
            return None, None
        field = owner.model_fields.get(name)
        inner = None if field is None else section_type(field.annotation)
        if depth == len(names) and inner is None:
            break
        owner = inner
    return owner, field


def section_type(annotation: object) -> type[BaseModel] | None:
    """The section type inside an annotation such as `Section` or `tuple[Section, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(
        (found for arg in get_args(annotation) if (found := section_type(arg)) is not None), None
    )
