"""The tree as a list of dotted keys, and which of its secrets cannot be had."""

from collections.abc import Iterator, Mapping

from pydantic import BaseModel

from metaclaw.config.problems import Problem
from metaclaw.config.secret import Secret
from metaclaw.config.source import LISTS, key_of
from metaclaw.config.tree import Config
from metaclaw.errors import ConfigError


def flatten(config: Config) -> Iterator[tuple[str, object]]:
    """Every key with its value, in the order of the tree; secrets stay secrets."""
    for section, value in config:
        if isinstance(value, BaseModel):
            yield from ((key_of((section, name)), inner) for name, inner in value)
    for section in LISTS:
        for position, entry in enumerate(getattr(config, section)):
            yield from ((key_of((section, position, name)), inner) for name, inner in entry)


def missing_secrets(config: Config, env: Mapping[str, str] | None = None) -> list[Problem]:
    """The secrets that point at a variable or file which has none, each with the place it is written at."""
    found = []
    for key, value in flatten(config):
        if isinstance(value, Secret):
            try:
                value.resolve(env)
            except ConfigError as error:
                what, _, remedy = str(error).partition(": ")
                found.append(Problem(str(config.where(key)), key, f"has no value ({what})", remedy))
    return found
