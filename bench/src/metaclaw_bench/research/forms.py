"""Reading what a stage wrote: JSON, BibTeX, Markdown, Python. What cannot be read is a broken
contract, in words.
"""

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

from metaclaw.plugin import MetaClawError
from metaclaw_bench.json_types import Json

_FENCED: Final = re.compile(r"\A\s*```[\w:.-]*[ \t]*\n(.*?)\n?```\s*\Z", re.DOTALL)
_ENTRY: Final = re.compile(r"@(\w+)\{\s*([^,\s]+)\s*,(.*?)\n\}", re.DOTALL)
_FIELD: Final = re.compile(r"(\w+)\s*=\s*\{([^{}]*)\}")
_HEADING: Final = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t]*$", re.MULTILINE)
_CITED: Final = re.compile(r"\[@?([a-z]+\d{4}[a-z]*)\]")
_FRONT: Final = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)


class ContractError(MetaClawError):
    """What a stage wrote is not what it is asked for; the message says what is wrong with it."""


def unfenced(answer: str) -> str:
    """An answer without the code fence that models like to put around a whole file."""
    found = _FENCED.match(answer)
    return (found[1] if found else answer).strip() + "\n"


def object_of(text: str) -> Mapping[str, Json]:
    """A JSON object."""
    value = _parsed(text)
    if not isinstance(value, dict):
        raise ContractError("it is not a JSON object")
    return value


def objects_of(text: str, least: int = 1) -> list[Mapping[str, Json]]:
    """A JSON list of at least so many objects."""
    value = _parsed(text)
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise ContractError("it is not a JSON list of objects")
    if len(value) < least:
        raise ContractError(f"the list has {len(value)} entries, not {least} or more")
    return [one for one in value if isinstance(one, dict)]


def text_at(value: Mapping[str, Json], name: str) -> str:
    """A text that is there and says something."""
    found = value.get(name)
    if not isinstance(found, str) or not found.strip():
        raise ContractError(f"the field {name!r} is missing or no text")
    return found


def texts_at(value: Mapping[str, Json], name: str, least: int) -> list[str]:
    """A list of at least so many texts."""
    found = value.get(name)
    if (
        not isinstance(found, list)
        or not all(isinstance(one, str) and one.strip() for one in found)
        or len(found) < least
    ):
        raise ContractError(f"the field {name!r} is no list of {least} or more texts")
    return [one for one in found if isinstance(one, str)]


def whole_at(value: Mapping[str, Json], name: str) -> int:
    """A whole number."""
    found = value.get(name)
    if not isinstance(found, int) or isinstance(found, bool):
        raise ContractError(f"the field {name!r} is missing or no whole number")
    return found


def wholes_at(value: Mapping[str, Json], name: str, least: int) -> list[int]:
    """A list of at least so many different whole numbers."""
    found = value.get(name)
    is_wholes = isinstance(found, list) and all(
        isinstance(one, int) and not isinstance(one, bool) for one in found
    )
    if not isinstance(found, list) or not is_wholes or len(set(map(str, found))) < least:
        raise ContractError(
            f"the field {name!r} is no list of {least} or more different whole numbers"
        )
    return [one for one in found if isinstance(one, int)]


def entries_of(text: str, least: int = 1) -> dict[str, dict[str, str]]:
    """BibTeX entries: their fields by key."""
    entries: dict[str, dict[str, str]] = {}
    for _, key, fields in _ENTRY.findall(text):
        if key in entries:
            raise ContractError(f"the key {key} is given twice")
        entries[key] = {name.lower(): value.strip() for name, value in _FIELD.findall(fields)}
    if len(entries) < least:
        raise ContractError(f"{len(entries)} BibTeX entries can be read, not {least} or more")
    return entries


def sections_of(text: str, wanted: Sequence[str]) -> dict[str, str]:
    """The text under each Markdown heading, by heading; those that are wanted must be there and
    hold something.
    """
    _, *pieces = _HEADING.split(text)
    found = {
        heading: under.strip() for heading, under in zip(pieces[::2], pieces[1::2], strict=True)
    }
    missing = [name for name in wanted if not found.get(name)]
    if missing:
        raise ContractError(f"there is no section {missing[0]!r} with anything in it")
    return found


def cited_in(text: str) -> list[str]:
    """The keys that are cited as [key] or [@key], each once, in order."""
    return list(dict.fromkeys(_CITED.findall(text)))


def front_of(text: str) -> dict[str, str]:
    """The front matter of a Markdown file, simple `name: value` lines."""
    found = _FRONT.match(text)
    if found is None:
        raise ContractError("it does not begin with front matter between two lines of three dashes")
    pairs = (line.partition(":") for line in found[1].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def program_of(text: str) -> ast.Module:
    """A Python program."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise ContractError(f"it is no Python that can be read: {error}") from error


def _parsed(text: str) -> Json:
    try:
        value: Json = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"it is not JSON: {error}") from error
    return value
