"""Edit the configuration file: keep comments, validate the whole tree first, and replace the file
atomically.
"""

import fcntl
import os
import secrets
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from metaclaw.config.loader import Config, compose, from_environment, from_options, place, read_file
from metaclaw.config.problems import InvalidConfigError, Problem, section_type, toml_value
from metaclaw.config.section import CONFIG_NAME, Secret, prepare_home
from metaclaw.config.sources import (
    LISTS,
    ConfigFile,
    KeyPath,
    SourceKind,
    Statement,
    ValueAssignment,
    ValueSource,
    key_of,
    statements,
)
from metaclaw.durable_files import replace_file
from metaclaw.errors import ConfigError

if TYPE_CHECKING:
    from tomlkit.items import Item  # slow to import, so imported where it is used


def set_values(home: Path, settings: Sequence[str], env: Mapping[str, str] | None = None) -> Path:
    """Write `section.key=value` settings into the file, if the whole result is valid. It is
    validated together with `env`, as at the next start, except that variables for the keys that are
    being set are ignored."""
    layers = from_options(settings, option="config set")
    with _locked(home):
        return _change(home, layers, os.environ if env is None else env)


def ensure_api_key(home: Path, env: Mapping[str, str] | None = None) -> Secret:
    """Return the proxy's key from the file; generate and store one if there is none. Raises for an
    invalid file.
    """
    with _locked(home):
        file = read_file(home / CONFIG_NAME)
        config = compose(home, file, [])
        if config.proxy.api_key is not None:
            return config.proxy.api_key
        key = secrets.token_urlsafe(32)
        if not file.text.strip():
            _write(file.path, template(key))
        else:
            _change(
                home,
                [
                    ValueAssignment(
                        ("proxy", "api_key"), key, ValueSource(SourceKind.OPTION, "generated key")
                    )
                ],
                env or os.environ,
            )
        return Secret(key)


def _change(home: Path, layers: Sequence[ValueAssignment], env: Mapping[str, str]) -> Path:
    file = read_file(home / CONFIG_NAME)
    paths = [place(deepcopy(dict(file.tree)), layer).path for layer in layers]
    others = {
        name: value
        for name, value in env.items()
        if not _hides_one_of(paths, file.tree, name, value)
    }
    compose(home, file, [*from_environment(others), *layers])
    tree, text = deepcopy(dict(file.tree)), file.text
    for layer in layers:
        for step in _steps(tree, layer):
            text = _edited(file, text, place(tree, step), tree)
    _write(file.path, text)
    return file.path


def _hides_one_of(
    paths: Sequence[KeyPath], tree: Mapping[str, object], name: str, value: str
) -> bool:
    """Whether an environment variable would hide one of these keys."""
    hidden = [place(deepcopy(dict(tree)), layer).path for layer in from_environment({name: value})]
    return any(
        variable[: len(path)] == path[: len(variable)] for variable in hidden for path in paths
    )


def _steps(tree: Mapping[str, object], layer: ValueAssignment) -> list[ValueAssignment]:
    """The assignments for one setting. For a new provider or team, the first one sets its name."""
    section = layer.path[0]
    entries = tree.get(str(section), [])
    if section not in LISTS or len(layer.path) < 3 or not isinstance(entries, list):
        return [layer]
    name = str(layer.path[1])
    if name.isdecimal() or any(
        isinstance(entry, dict) and entry.get("name") == name for entry in entries
    ):
        return [layer]
    return [ValueAssignment((section, len(entries), "name"), name, layer.source), layer]


def _edited(
    file: ConfigFile, text: str, step: ValueAssignment, wanted: Mapping[str, object]
) -> str:
    """The text with one value changed or added, checked by parsing the result."""
    for write in (_inserted, _replaced):
        candidate = write(text, step)
        if candidate is not None and _says(candidate, wanted):
            return candidate
    remedy = "change it by hand; the file is unchanged"
    raise InvalidConfigError(
        [
            Problem(
                str(file.path),
                key_of(step.path),
                "cannot be written there without changing something else",
                remedy,
            )
        ]
    )


def _says(text: str, wanted: Mapping[str, object]) -> bool:
    try:
        return tomllib.loads(text) == wanted
    except (tomllib.TOMLDecodeError, RecursionError):
        return False


def _inserted(text: str, step: ValueAssignment) -> str | None:
    """The text with a line for a new key below the last key of its table, and with a header for a
    new table; None if the key is there already. tomlkit would put the line after the comments that
    belong to the next table."""
    from tomlkit.items import AoT

    value = _item(step.value)
    if len(step.path) < 2 or value is None or isinstance(value, AoT):
        return None
    known = statements(text)
    table = step.path[:-1]
    if any(step.path in statement.paths for statement in known):
        return None
    line = f"{step.path[-1]} = {value.as_string()}\n"
    inside = [statement for statement in known if statement.in_table == table]
    if inside:
        return _with_lines(text, inside[-1].last_line, line)
    header = f"[[{table[0]}]]" if isinstance(table[-1], int) else f"[{key_of(table)}]"
    return _with_lines(
        text,
        _end_of_table(known, table, text),
        f"\n{header}\n{line}" if text else f"{header}\n{line}",
    )


def _end_of_table(known: Sequence[Statement], table: KeyPath, text: str) -> int:
    """After the last table of the same array, else at the end of the text."""
    alike = [
        statement.last_line
        for statement in known
        if isinstance(table[-1], int) and statement.in_table[:1] == table[:1]
    ]
    return alike[-1] if alike else len(text.splitlines())


def _with_lines(text: str, after: int, lines: str) -> str:
    parts = text.splitlines(keepends=True)
    if parts and after and not parts[after - 1].endswith("\n"):
        parts[after - 1] += "\n"
    return "".join(parts[:after]) + lines + "".join(parts[after:])


def _replaced(text: str, step: ValueAssignment) -> str | None:
    """The text with the value changed by tomlkit, which keeps everything around it."""
    import tomlkit
    import tomlkit.exceptions

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


def _item(value: object) -> "Item | None":
    import tomlkit

    try:
        return tomlkit.item(value)
    except (ValueError, TypeError):
        return None


def _write(path: Path, text: str) -> None:
    try:
        replace_file(path, text.encode("utf-8"))
    except (OSError, UnicodeEncodeError) as error:
        raise ConfigError(f"{path} cannot be written ({error}); it is unchanged") from error


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Lock the home folder, so that concurrent edits are not lost."""
    prepare_home(home)
    folder = os.open(home, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


_TOP = """\
# MetaClaw's configuration. Lines that begin with # show the defaults; remove the # to change a value.
# `metaclaw config check` finds mistakes in this file. `metaclaw config show` prints every value and where it comes from.
# A secret may be "env:NAME" or "file:/path" instead of the secret itself.
"""


def template(key: str) -> str:
    """The text of a new file: this key, and every other key as a comment with its default."""
    return _TOP + "".join(_section(name, field, key) for name, field in Config.model_fields.items())


def _section(name: str, field: FieldInfo, key: str) -> str:
    section = section_type(field.annotation)
    assert section is not None
    is_list = name in LISTS
    header = f"[[{name}]]" if is_list else f"[{name}]"
    # Optional sections stay comments.
    lines = [
        f"\n# {' '.join(str(section.__doc__).split())}",
        f"# {header}" if is_list or field.get_default() is None else header,
    ]
    for word, value in section.model_fields.items():
        if (name, word) == ("proxy", "api_key"):
            lines.append(f"{word} = {toml_value(key)}")
        else:
            lines.append(f"# {word} = {_shown(value)}  # {value.description}")
    return "\n".join(lines) + "\n"


def _shown(field: FieldInfo) -> str:
    default = field.get_default()
    if default is not None and default is not PydanticUndefined:
        return toml_value(default)
    return toml_value(field.examples[0] if field.examples else "")
