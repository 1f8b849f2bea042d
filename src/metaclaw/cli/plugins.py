"""Commands that other installed distributions add: entry points of the group `metaclaw.commands`."""

from importlib.metadata import EntryPoint, entry_points
from typing import Final

import click

from metaclaw.errors import ConfigError

GROUP: Final = "metaclaw.commands"
# Commands of this project that are distributions of their own: the distribution, and its folder in the repository.
_ELSEWHERE: Final = {"bench": ("metaclaw-bench", "./bench")}


class PluginGroup(click.Group):
    """A group that also has the commands of installed plugins. Its own commands win over a plugin's of the same name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands by name."""
        return sorted({*super().list_commands(ctx), *(one.name for one in entry_points(group=GROUP))})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name. One that is not installed or cannot be loaded says so when it is run."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        found = next(iter(entry_points(group=GROUP, name=cmd_name)), None)
        if found is not None:
            return _load(found)
        if cmd_name in _ELSEWHERE:
            package, folder = _ELSEWHERE[cmd_name]
            why = f"it is in the package {package}, which is not installed; in MetaClaw's repository run: pip install {folder}"
            return _unusable(cmd_name, why)
        return None


def _load(entry: EntryPoint) -> click.Command:
    package = entry.dist.name if entry.dist is not None else entry.value
    try:
        command = entry.load()
    except (ImportError, AttributeError) as error:
        return _unusable(entry.name, f"{package} cannot be loaded ({error}); install it again")
    if not isinstance(command, click.Command):
        return _unusable(entry.name, f"{entry.value} of {package} is not a command; install another version of {package}")
    return command


def _unusable(name: str, why: str) -> click.Command:
    """A command that takes any arguments and raises ConfigError, so that `metaclaw --help` works beside a broken plugin."""

    def refuse(words: tuple[str, ...]) -> None:
        raise ConfigError(f"`metaclaw {name}` cannot be run: {why}")

    words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)
    settings = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}
    return click.Command(name, callback=refuse, params=[words], help=f"Cannot be run: {why}", context_settings=settings)
