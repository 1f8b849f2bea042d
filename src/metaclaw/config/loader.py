"""Loading the configuration: defaults, then the file, then `METACLAW__SECTION__KEY`, then `--set section.key=value`."""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from enum import Enum
from pathlib import Path
from typing import Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

from metaclaw.config.home import CONFIG_NAME
from metaclaw.config.problems import InvalidConfigError, Problem, explain, find_field, section_type
from metaclaw.config.section import Secret
from metaclaw.config.sources import (
    LISTS,
    OPTIONAL,
    ConfigFile,
    KeyPath,
    SourceKind,
    ValueAssignment,
    ValueSource,
    ValueSources,
    key_of,
    named_key_of,
    path_of,
)
from metaclaw.config.tree import Config
from metaclaw.errors import ConfigError


def parse_text(path: Sequence[str | int], text: str) -> object:
    """Parse a value given as text for its key's type: texts as they are, the rest as TOML. Invalid values fail in validation."""
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


def flatten(config: Config) -> Iterator[tuple[str, object]]:
    """Every key with its value, in the order of the tree; secrets stay secrets. Sections that are absent have no keys."""
    named = [(name, value) for name, value in config if name not in LISTS]
    for section, value in [*named, *((name, getattr(config, name)) for name in LISTS)]:
        yield from _keys((section,), value)


def _keys(path: tuple[str | int, ...], value: object) -> Iterator[tuple[str, object]]:
    """What is inside sections and lists of sections; anything else is a value."""
    if isinstance(value, BaseModel):
        for name, inner in value:
            yield from _keys((*path, name), inner)
    elif isinstance(value, tuple) and value and all(isinstance(entry, BaseModel) for entry in value):
        for position, entry in enumerate(value):
            yield from _keys((*path, position), entry)
    elif len(path) > 1:
        yield key_of(path), value


def missing_secrets(config: Config, env: Mapping[str, str] | None = None) -> list[Problem]:
    """Secrets whose variable or file has no value, each with its place."""
    found = []
    for key, value in flatten(config):
        if isinstance(value, Secret):
            try:
                value.resolve(env)
            except ConfigError as error:
                what, _, remedy = str(error).partition(": ")
                shown = named_key_of(path_of(key), [provider.name for provider in config.providers])
                found.append(Problem(str(config.where(key)), shown, f"has no value ({what})", remedy))
    return found


ENV_PREFIX = "METACLAW__"
_POSITION = re.compile(r"\(at (?:line (\d+), column \d+|end of document)\)")


def load(home: Path, env: Mapping[str, str] | None = None, sets: Sequence[str] = ()) -> Config:
    """The configuration of a home folder. Raises InvalidConfigError with all problems. Never writes."""
    file = read_file(home / CONFIG_NAME)
    layers = [*from_environment(os.environ if env is None else env), *from_options(sets)]
    return compose(home, file, layers)


def build(tree: Mapping[str, object], home: Path) -> Config:
    """A configuration from a tree that is already in memory, with every rule of a file applied."""
    return compose(home, ConfigFile(home / CONFIG_NAME, "", tree), [])


def compose(home: Path, file: ConfigFile, layers: Sequence[ValueAssignment]) -> Config:
    """Put the layers over the file and check the whole."""
    tree: dict[str, object] = deepcopy(dict(file.tree))
    placed = [place(tree, layer) for layer in layers]
    sources = ValueSources(file, placed)
    # Sections that are written nowhere are validated too, so that their defaults learn where home is.
    whole = {name: {} for name in Config.model_fields if name not in (*LISTS, *OPTIONAL)} | tree
    try:
        config = Config.model_validate(whole, context={"home": home})
    except ValidationError as error:
        raise explain(error, Config, sources, whole) from None
    config._sources = sources
    return config


def read_file(path: Path) -> ConfigFile:
    """Read the file. Raises InvalidConfigError if it cannot be read or parsed."""
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return ConfigFile(path, "", {})
    except OSError as error:
        raise _broken(path, f"cannot be read ({error.strerror})", "make it a file that you may read") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise _broken(f"{path}:{line}", "is not UTF-8 text", "save the file as UTF-8; it was left as it is") from None
    if text.startswith("\ufeff"):
        raise _broken(f"{path}:1", "begins with a byte order mark", "save the file as UTF-8 without one; it was left as it is")
    try:
        return ConfigFile(path, text, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise _syntax(path, text, str(error)) from None
    except RecursionError:
        raise _broken(path, "is nested too deeply", "write plain sections and keys; it was left as it is") from None


def from_environment(env: Mapping[str, str]) -> list[ValueAssignment]:
    """The settings in environment variables, in the order of their names."""
    found = []
    for name in sorted(env):
        if name.startswith(ENV_PREFIX):
            key = name.removeprefix(ENV_PREFIX).lower().replace("__", ".")
            found.append(_assignment(key, env[name], ValueSource(SourceKind.ENVIRONMENT, name)))
    return found


def from_options(sets: Sequence[str], *, option: str = "--set") -> list[ValueAssignment]:
    """The settings given as `section.key=value`, in order."""
    found = []
    for text in sets:
        key, separator, value = text.partition("=")
        if not separator:
            raise _broken(option, f"{text!r} has no =", f"write {option} section.key=value")
        found.append(_assignment(key.strip(), value, ValueSource(SourceKind.OPTION, option)))
    return found


def place(tree: dict[str, object], layer: ValueAssignment) -> ValueAssignment:
    """Put one setting into the tree; returns it with an entry's name in its path replaced by its position."""
    here: object = tree
    path: list[str | int] = []
    for depth, part in enumerate(layer.path):
        step = _step(here, part, path, layer)
        path.append(step)
        if depth == len(layer.path) - 1:
            _put(here, step, layer)
        else:
            here = _enter(here, step, is_list=key_of(path) in LISTS, layer=layer)
    return ValueAssignment(tuple(path), layer.value, layer.source)


def _step(here: object, part: str | int, path: list[str | int], layer: ValueAssignment) -> str | int:
    """Which entry of a list, or which key of a section, a part of a path means."""
    if isinstance(here, list) and len(path) == 1 and path[0] in LISTS:
        return _position(here, part, layer)
    if isinstance(here, list) and isinstance(part, str) and part.isdecimal():
        return int(part)
    return part


def _assignment(key: str, text: str, source: ValueSource) -> ValueAssignment:
    parts = key.split(".")
    if not all(parts):
        raise _broken(str(source), f"{key!r} is not a key", "write section.key, as in proxy.port")
    path: KeyPath = tuple(parts)
    return ValueAssignment(path, parse_text(path, text), source)


def _position(here: list[object], part: str | int, layer: ValueAssignment) -> int:
    """Which entry is meant: a position, a name, or (one past the end, or a new name) the next one."""
    if isinstance(part, int) or part.isdecimal():
        if int(part) > len(here):
            raise _broken(str(layer.source), f"there are only {len(here)} {layer.path[0]}", f"write {len(here)} to add one")
        return int(part)
    for position, entry in enumerate(here):
        if isinstance(entry, dict) and entry.get("name") == part:
            return position
    here.append({"name": part})
    return len(here) - 1


def _enter(here: object, step: str | int, *, is_list: bool, layer: ValueAssignment) -> object:
    """The table or list at `step`, made if it is not there."""
    if isinstance(here, list) and isinstance(step, int):
        if step == len(here):
            here.append({})
        return here[step]
    if isinstance(here, dict):
        return here.setdefault(step, [] if is_list else {})
    raise _broken(str(layer.source), f"leads into {step}, which is not a section", "see docs/config.md for the keys there are")


def _put(here: object, step: str | int, layer: ValueAssignment) -> None:
    if isinstance(here, list) and isinstance(step, int):
        here[step : step + 1] = [layer.value]
    elif isinstance(here, dict):
        here[step] = layer.value
    else:
        raise _broken(str(layer.source), f"leads into {step}, which is not a section", "see docs/config.md for the keys there are")


def _syntax(path: Path, text: str, message: str) -> InvalidConfigError:
    """A broken file: where the parser stopped, and the key written on that line."""
    match = _POSITION.search(message)
    lines = text.splitlines() or [""]
    line = int(match[1]) if match and match[1] else len(lines)
    written = re.match(r"\s*([\w.\"'-]+)\s*=", lines[min(line, len(lines)) - 1])
    what = _POSITION.sub("", message).strip()
    remedy = 'write key = value, with texts in "quotes", numbers and true or false without; the file was left as it is'
    return InvalidConfigError([Problem(f"{path}:{line}", written[1] if written else "", f"is not valid TOML ({what})", remedy)])


def _broken(place: Path | str, what: str, remedy: str) -> InvalidConfigError:
    return InvalidConfigError([Problem(str(place), "", what, remedy)])
