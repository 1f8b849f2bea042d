"""Change TOML in place: new keys go below their table's header, new tables to the end, new
top-level keys to the top.
"""

import tomllib
from collections.abc import Sequence

import tomlkit
import tomlkit.exceptions
from tomlkit.items import Item as TomlItem

from metaclaw.agents.formats import KeyPath, UnreadableTextError, newline_of
from metaclaw.config import Statement, statements


class TomlFormat:
    """TOML."""

    name = "TOML"

    def read(self, text: str) -> object:
        try:
            return tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise UnreadableTextError(str(error) or "it is nested too deeply") from error

    def put(self, text: str, path: KeyPath, value: object) -> str:
        self.read(text)
        known = list(statements(text))
        line = f"{tomlkit.key(str(path[-1])).as_string()} = {_rendered(value)}{newline_of(text)}"
        written = next((one for one in known if one.path == path and not one.is_header), None)
        if written is not None:
            return _replaced(text, written, path, value)
        table = path[:-1]
        if not table:
            return line + text
        header = next((one for one in known if one.is_header and one.path == table), None)
        if header is not None:
            return _with_lines(text, header.last_line, line)
        title = f"[{'.'.join(tomlkit.key(str(part)).as_string() for part in table)}]"
        return _with_lines(
            text,
            len(_lines(text)),
            f"{newline_of(text) if text else ''}{title}{newline_of(text)}{line}",
        )

    def remove(self, text: str, path: KeyPath) -> str:
        """Remove a key with its lines, or the header of a table."""
        written = next((one for one in statements(text) if one.path == path), None)
        if written is None:
            return text
        lines = _lines(text)
        first = written.first_line - 1
        if written.is_header and first and not lines[first - 1].strip():
            first -= 1
        return "".join(lines[:first] + lines[written.last_line :])


def _replaced(text: str, written: Statement, path: KeyPath, value: object) -> str:
    """Replace a value in place; the spaces and the comment around it stay."""
    lines = _lines(text)
    first, last = written.first_line - 1, written.last_line
    key, equals, rest = "".join(lines[first:last]).partition("=")
    try:
        here: object = tomlkit.parse(text)
        for part in path:
            here = here[part]  # type: ignore[index]
    except (tomlkit.exceptions.TOMLKitError, KeyError, TypeError) as error:
        raise UnreadableTextError(
            f"line {written.first_line}: this value cannot be found again"
        ) from error
    old = here.as_string() if isinstance(here, TomlItem) else tomlkit.item(here).as_string()
    space = rest[: len(rest) - len(rest.lstrip(" \t"))]
    if not rest.startswith(space + old):
        raise UnreadableTextError(
            f"line {written.first_line}: this value is written in a way that cannot be changed"
            " safely"
        )
    new = _rendered(value)
    changed = key + equals + space + new + rest[len(space) + len(old) :]
    return "".join(lines[:first]) + changed + "".join(lines[last:])


def _rendered(value: object) -> str:
    """A value on one line."""
    if isinstance(value, dict):
        table = tomlkit.inline_table()
        table.update(value)
        return table.as_string()
    return tomlkit.item(value).as_string()


def _lines(text: str) -> list[str]:
    """Split into lines with their ends; only a line feed ends a line, as in TOML."""
    parts = text.split("\n")
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _with_lines(text: str, after: int, added: str) -> str:
    lines: Sequence[str] = _lines(text)
    before = "".join(lines[:after])
    gap = newline_of(text) if before and not before.endswith("\n") else ""
    return before + gap + added + "".join(lines[after:])
