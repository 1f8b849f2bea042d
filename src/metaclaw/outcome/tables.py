"""The word lists of this room, kept as data so that they can be read and extended by people: `phrases.toml` and `programs.toml`."""

import tomllib
from importlib.resources import files

_FOLDER = files("metaclaw.outcome")
_PHRASES, _PROGRAMS = (
    tomllib.loads(_FOLDER.joinpath(name).read_text(encoding="utf-8")) for name in ("phrases.toml", "programs.toml")
)


def phrases_of(name: str) -> tuple[str, ...]:
    """A table of what people, and agents, say."""
    return _entries(_PHRASES[name])


def programs_of(name: str) -> tuple[str, ...]:
    """A table of what programs are called and say."""
    return _entries(_PROGRAMS[name])


def _entries(table: str) -> tuple[str, ...]:
    return tuple(entry for entry in map(str.strip, table.split("|")) if entry)
