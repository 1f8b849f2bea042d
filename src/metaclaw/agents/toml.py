"""Change TOML in place with tomlkit, which keeps comments and the form of everything else."""

import tomllib
from collections.abc import Callable
from typing import Any

from metaclaw.agents.formats import KeyPath, UnreadableTextError, newline_of


class TomlFormat:
    """TOML."""

    name = "TOML"
    is_appending = True

    def read(self, text: str) -> object:
        try:
            return tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise UnreadableTextError(str(error) or "it is nested too deeply") from error

    def put(self, text: str, path: KeyPath, value: object) -> str:
        import tomlkit  # slow to import, so imported where it is used

        def change(document: Any) -> None:
            here = document
            for part in path[:-1]:
                if part not in here:
                    is_outer = part != path[-2]
                    here[part] = tomlkit.table(is_super_table=is_outer)
                here = here[part]
            here[path[-1]] = _rendered(value)

        return _changed(text, change)

    def remove(self, text: str, path: KeyPath) -> str:
        """Remove a key or a table."""

        def change(document: Any) -> None:
            here = document
            for part in path[:-1]:
                here = here[part]
            del here[path[-1]]

        return _changed(text, change)


def _rendered(value: object) -> object:
    """A value on one line."""
    if not isinstance(value, dict):
        return value
    import tomlkit

    table = tomlkit.inline_table()
    table.update(value)
    return table


def _changed(text: str, change: Callable[[Any], None]) -> str:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        document = tomlkit.parse(text.replace("\r\n", "\n"))
        change(document)
    except (TOMLKitError, KeyError, TypeError) as error:
        raise UnreadableTextError("it cannot be changed safely") from error
    return tomlkit.dumps(document).replace("\n", newline_of(text))
