"""The tree as a list of dotted keys, and which of its secrets cannot be had."""

from collections.abc import Iterator, Mapping

from pydantic import BaseModel

from metaclaw.config.problems import Problem
from metaclaw.config.secret import Secret
from metaclaw.config.source import LISTS, key_of, named_key_of, path_of
from metaclaw.config.tree import Config
from metaclaw.errors import ConfigError


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
    """The secrets that point at a variable or file which has none, each with the place it is written at."""
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
