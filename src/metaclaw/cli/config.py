"""`metaclaw config`: show the values in force and their sources, check the file, change values,
print its path.
"""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from metaclaw.cli.output import CommandOutput, answers, echo, wants_json

if TYPE_CHECKING:
    from metaclaw.config import Config, Problem


@click.group()
def config() -> None:
    """Show, check and change the configuration."""


@config.command()
@click.argument("key", required=False)
@answers
def show(home: Path, key: str | None) -> CommandOutput:
    """Print every value in force and its source; secrets are masked. With KEY, only that key or
    section."""
    from metaclaw.config import LISTS, OPTIONAL, flatten, load, toml_value
    from metaclaw.errors import ConfigError

    tree = load(home)
    chosen = {
        name: _masked(value)
        for name, value in flatten(tree)
        if key is None or name == key or name.startswith(f"{key}.")
    }
    if key is not None and not chosen and key not in (*LISTS, *OPTIONAL):
        raise ConfigError(
            f"{key} is not a key of the configuration; metaclaw config show lists them all"
        )
    sources = {name: str(tree.where(name)) for name in chosen}
    width = max(map(len, chosen), default=0)
    return CommandOutput(
        {"values": chosen, "sources": sources},
        [
            f"{name.ljust(width)} = {'–' if value is None else toml_value(value)}"
            f"  ({sources[name]})"
            for name, value in chosen.items()
        ],
    )


@config.command()
@answers
def check(home: Path) -> CommandOutput:
    """Check the configuration, and print every problem."""
    from metaclaw.config import CONFIG_NAME, InvalidConfigError, load, missing_secrets

    path = home / CONFIG_NAME
    try:
        loaded = load(home)
        problems = (*missing_secrets(loaded), *ignored_settings(loaded))
    except InvalidConfigError as error:
        problems = error.problems
    facts = {"valid": not problems, "file": str(path), "problems": list(map(asdict, problems))}
    if not problems:
        right = "is right" if path.exists() else "does not exist; the defaults are right"
        return CommandOutput(facts, f"{path} {right}.")
    if not wants_json():
        for problem in problems:
            echo(str(problem), err=True)
    return CommandOutput(facts, (), 2)


@config.command(name="set", context_settings={"ignore_unknown_options": True})
@click.argument("settings", nargs=-1, required=True, metavar="KEY VALUE | KEY=VALUE...")
@answers
def set_(home: Path, settings: tuple[str, ...]) -> CommandOutput:
    """Write values into the file, keeping its comments, or nothing if it would be invalid."""
    from metaclaw.config import set_values

    if len(settings) == 2 and "=" not in settings[0]:
        settings = ("=".join(settings),)
    path = set_values(home, settings)
    keys = [setting.partition("=")[0].strip() for setting in settings]
    told = f"Set {', '.join(keys)} in {path}; a running proxy takes it at its next start."
    return CommandOutput({"file": str(path), "set": keys}, told)


@config.command()
@answers
def path(home: Path) -> CommandOutput:
    """Print the path of the configuration file."""
    from metaclaw.config import CONFIG_NAME

    file = home / CONFIG_NAME
    return CommandOutput({"path": str(file), "home": str(home), "exists": file.exists()}, str(file))


def ignored_settings(loaded: "Config") -> "Iterator[Problem]":
    """Settings without which the proxy starts: plugins that do not work, and invalid hours of
    sleep, such as 25:00.
    """
    from metaclaw.config import Problem
    from metaclaw.hooks import PluginError, load_plugin

    for key, group, name in loaded.plugins():
        try:
            load_plugin(group, name, object)
        except PluginError as error:
            why, _, remedy = str(error).partition("; ")
            yield Problem(str(loaded.where(key)), key, f"is ignored: {why}", remedy)
    if trouble := loaded.schedule.sleep_trouble:
        key, advice = "schedule.sleep", 'write, for example, "23:00-07:00"'
        yield Problem(str(loaded.where(key)), key, f"is ignored: {trouble}", advice)


def _masked(value: object) -> object:
    from metaclaw.config import without_password

    return without_password(value) if isinstance(value, str) and "://" in value else value


@click.command()
@answers
def key(home: Path) -> CommandOutput:
    """Print the proxy's key, for example for `export OPENAI_API_KEY=$(metaclaw key)`. Does not
    create one.
    """
    from metaclaw.config import load
    from metaclaw.errors import ConfigError

    config = load(home)
    secret = config.proxy.api_key
    if secret is None:
        raise ConfigError(
            f"{home} has no key yet: metaclaw start generates one, or set your own with: metaclaw"
            " config set proxy.api_key KEY"
        )
    found = secret.resolve()
    return CommandOutput({"api_key": found, "source": str(config.where("proxy.api_key"))}, found)
