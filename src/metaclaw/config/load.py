"""Reading the configuration: defaults, then the file, then `METACLAW__SECTION__KEY`, then `--set section.key=value`."""

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path

from pydantic import ValidationError

from metaclaw.config.home import CONFIG_NAME
from metaclaw.config.lines import KeyPath
from metaclaw.config.problems import InvalidConfigError, Problem, explain
from metaclaw.config.source import LISTS, OPTIONAL, Assignment, ConfigFile, Source, SourceKind, Sources, key_of
from metaclaw.config.text import parse_text
from metaclaw.config.tree import Config

ENV_PREFIX = "METACLAW__"
_POSITION = re.compile(r"\(at (?:line (\d+), column \d+|end of document)\)")


def load(home: Path, env: Mapping[str, str] | None = None, sets: Sequence[str] = ()) -> Config:
    """The configuration of a home folder. Raises InvalidConfigError with everything that is wrong, never writes."""
    file = read_file(home / CONFIG_NAME)
    layers = [*from_environment(os.environ if env is None else env), *from_options(sets)]
    return compose(home, file, layers)


def build(tree: Mapping[str, object], home: Path) -> Config:
    """A configuration from a tree that is already in memory, with every rule of a file applied."""
    return compose(home, ConfigFile(home / CONFIG_NAME, "", tree), [])


def compose(home: Path, file: ConfigFile, layers: Sequence[Assignment]) -> Config:
    """Put the layers over the file and check the whole."""
    tree: dict[str, object] = deepcopy(dict(file.tree))
    placed = [place(tree, layer) for layer in layers]
    sources = Sources(file, placed)
    # Sections that are written nowhere are validated too, so that their defaults learn where home is.
    whole = {name: {} for name in Config.model_fields if name not in (*LISTS, *OPTIONAL)} | tree
    try:
        config = Config.model_validate(whole, context={"home": home})
    except ValidationError as error:
        raise explain(error, Config, sources, whole) from None
    config._sources = sources
    return config


def read_file(path: Path) -> ConfigFile:
    """The file's text and tree; an absent file is empty. A file that cannot be read or parsed is an error, and is left alone."""
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


def from_environment(env: Mapping[str, str]) -> list[Assignment]:
    """The settings among the environment's variables, in the order of their names."""
    found = []
    for name in sorted(env):
        if name.startswith(ENV_PREFIX):
            key = name.removeprefix(ENV_PREFIX).lower().replace("__", ".")
            found.append(_assignment(key, env[name], Source(SourceKind.ENVIRONMENT, name)))
    return found


def from_options(sets: Sequence[str], *, option: str = "--set") -> list[Assignment]:
    """The settings given as `section.key=value`, in order."""
    found = []
    for text in sets:
        key, separator, value = text.partition("=")
        if not separator:
            raise _broken(option, f"{text!r} has no =", f"write {option} section.key=value")
        found.append(_assignment(key.strip(), value, Source(SourceKind.OPTION, option)))
    return found


def place(tree: dict[str, object], layer: Assignment) -> Assignment:
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
    return Assignment(tuple(path), layer.value, layer.source)


def _step(here: object, part: str | int, path: list[str | int], layer: Assignment) -> str | int:
    """Which entry of a list, or which key of a section, a part of a path means."""
    if isinstance(here, list) and len(path) == 1 and path[0] in LISTS:
        return _position(here, part, layer)
    if isinstance(here, list) and isinstance(part, str) and part.isdecimal():
        return int(part)
    return part


def _assignment(key: str, text: str, source: Source) -> Assignment:
    parts = key.split(".")
    if not all(parts):
        raise _broken(str(source), f"{key!r} is not a key", "write section.key, as in proxy.port")
    path: KeyPath = tuple(parts)
    return Assignment(path, parse_text(path, text), source)


def _position(here: list[object], part: str | int, layer: Assignment) -> int:
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


def _enter(here: object, step: str | int, *, is_list: bool, layer: Assignment) -> object:
    """The table or list at `step`, made if it is not there."""
    if isinstance(here, list) and isinstance(step, int):
        if step == len(here):
            here.append({})
        return here[step]
    if isinstance(here, dict):
        return here.setdefault(step, [] if is_list else {})
    raise _broken(str(layer.source), f"leads into {step}, which is not a section", "see docs/config.md for the keys there are")


def _put(here: object, step: str | int, layer: Assignment) -> None:
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
