"""Changing the file: one value at a time, comments kept, the whole tree checked first, replaced in one step."""

import fcntl
import os
import secrets
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

import tomlkit
import tomlkit.exceptions
from tomlkit.items import AoT, Item

from metaclaw.config.home import CONFIG_NAME, prepare_home, replace_file
from metaclaw.config.lines import KeyPath, Statement, statements
from metaclaw.config.load import compose, from_environment, from_options, place, read_file
from metaclaw.config.problems import InvalidConfigError, Problem
from metaclaw.config.secret import Secret
from metaclaw.config.source import LISTS, Assignment, ConfigFile, Source, SourceKind, key_of
from metaclaw.config.template import template
from metaclaw.errors import ConfigError


def set_values(home: Path, settings: Sequence[str], env: Mapping[str, str] | None = None) -> Path:
    """Write `section.key=value` settings into the file. Nothing is written unless the whole result is valid.

    `env` counts as it will at the next start, except for the keys that are being set: those must be right in the file itself.
    """
    layers = from_options(settings, option="config set")
    with _locked(home):
        return _change(home, layers, os.environ if env is None else env)


def ensure_api_key(home: Path, env: Mapping[str, str] | None = None) -> Secret:
    """The proxy's key as the file has it; generated and stored if it has none. A file that cannot be used is not touched."""
    with _locked(home):
        file = read_file(home / CONFIG_NAME)
        config = compose(home, file, [])
        if config.proxy.api_key is not None:
            return config.proxy.api_key
        key = secrets.token_urlsafe(32)
        if not file.text.strip():
            _write(file.path, template(key))
        else:
            _change(home, [Assignment(("proxy", "api_key"), key, Source(SourceKind.OPTION, "generated key"))], env or os.environ)
        return Secret(key)


def _change(home: Path, layers: Sequence[Assignment], env: Mapping[str, str]) -> Path:
    file = read_file(home / CONFIG_NAME)
    hidden = [place(deepcopy(dict(file.tree)), layer).path for layer in layers]
    kept = {name: value for name, value in env.items() if not _hides_one_of(hidden, file.tree, name, value)}
    compose(home, file, [*from_environment(kept), *layers])
    tree, text = deepcopy(dict(file.tree)), file.text
    for layer in layers:
        for step in _steps(tree, layer):
            text = _edited(file, text, place(tree, step), tree)
    _write(file.path, text)
    return file.path


def _hides_one_of(paths: Sequence[KeyPath], tree: Mapping[str, object], name: str, value: str) -> bool:
    """Whether a variable would hide one of the keys that are being set."""
    own = [place(deepcopy(dict(tree)), layer).path for layer in from_environment({name: value})]
    return any(mine[: len(path)] == path[: len(mine)] for mine in own for path in paths)


def _steps(tree: Mapping[str, object], layer: Assignment) -> list[Assignment]:
    """The lines one setting needs: a provider or team addressed by a new name is given that name first."""
    section = layer.path[0]
    entries = tree.get(str(section), [])
    if section not in LISTS or len(layer.path) < 3 or not isinstance(entries, list):
        return [layer]
    name = str(layer.path[1])
    if name.isdecimal() or any(isinstance(entry, dict) and entry.get("name") == name for entry in entries):
        return [layer]
    return [Assignment((section, len(entries), "name"), name, layer.source), layer]


def _edited(file: ConfigFile, text: str, step: Assignment, wanted: Mapping[str, object]) -> str:
    """The text with one value changed or added, proven to say exactly what is wanted."""
    for write in (_inserted, _replaced):
        candidate = write(text, step)
        if candidate is not None and _says(candidate, wanted):
            return candidate
    remedy = "change it by hand; the file was left as it is"
    raise InvalidConfigError(
        [Problem(str(file.path), key_of(step.path), "cannot be written there without changing something else", remedy)]
    )


def _says(text: str, wanted: Mapping[str, object]) -> bool:
    try:
        return tomllib.loads(text) == wanted
    except (tomllib.TOMLDecodeError, RecursionError):
        return False


def _inserted(text: str, step: Assignment) -> str | None:
    """A line for a new key, below the last key of its table; for a new table, its header too. None where the key is there already.

    tomlkit would put the line behind the comments that belong to the next table.
    """
    value = _item(step.value)
    if len(step.path) < 2 or value is None or isinstance(value, AoT):
        return None
    known = list(statements(text))
    table = step.path[:-1]
    if any(statement.path == step.path for statement in known):
        return None
    line = f"{step.path[-1]} = {value.as_string()}\n"
    inside = [statement for statement in known if statement.in_table == table]
    if inside:
        return _with_lines(text, inside[-1].last_line, line)
    header = f"[[{table[0]}]]" if isinstance(table[-1], int) else f"[{key_of(table)}]"
    return _with_lines(text, _end_of_table(known, table, text), f"\n{header}\n{line}" if text else f"{header}\n{line}")


def _end_of_table(known: Sequence[Statement], table: KeyPath, text: str) -> int:
    """After the last table of the same array, else at the end of the text."""
    alike = [statement.last_line for statement in known if isinstance(table[-1], int) and statement.in_table[:1] == table[:1]]
    return alike[-1] if alike else len(text.splitlines())


def _with_lines(text: str, after: int, lines: str) -> str:
    parts = text.splitlines(keepends=True)
    if parts and after and not parts[after - 1].endswith("\n"):
        parts[after - 1] += "\n"
    return "".join(parts[:after]) + lines + "".join(parts[after:])


def _replaced(text: str, step: Assignment) -> str | None:
    """The value changed where it stands, by tomlkit, which keeps everything around it."""
    try:
        document = tomlkit.parse(text)
        here: object = document
        for part in step.path[:-1]:
            if isinstance(here, list) and part == len(here):
                here.append({})
            here = here[part]  # type: ignore[index]
        here[step.path[-1]] = _item(step.value)  # type: ignore[index]
        return tomlkit.dumps(document)
    except (tomlkit.exceptions.TOMLKitError, KeyError, IndexError, TypeError, ValueError):
        return None


def _item(value: object) -> Item | None:
    try:
        return tomlkit.item(value)
    except (ValueError, TypeError):
        return None


def _write(path: Path, text: str) -> None:
    try:
        replace_file(path, text.encode("utf-8"))
    except (OSError, UnicodeEncodeError) as error:
        raise ConfigError(f"{path} cannot be written ({error}); it was left as it is") from error


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """One change at a time: two programs that edit at once would lose one of the edits."""
    prepare_home(home)
    folder = os.open(home, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
