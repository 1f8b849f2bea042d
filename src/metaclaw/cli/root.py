"""The root command. The module of a command is imported when the command is run or described, and
heavy modules inside the commands.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Final

import click

from metaclaw import __version__
from metaclaw.errors import ConfigError
from metaclaw.home import default_home
from metaclaw.hooks import COMMANDS, PluginError, installed_names, known_names, load_plugin

_COMMANDS: Final = {
    "Start and stop": {
        "start": "lifecycle",
        "stop": "lifecycle",
        "restart": "lifecycle",
        "status": "status",
        "logs": "lifecycle",
        "page": "lifecycle",
        "service": "service",
    },
    "What it learned": {
        "rules": "rules",
        "enforce": "enforcement",
        "whatif": "what_if",
        "lessons": "lessons",
        "skills": "skills",
        "candidates": "candidates",
        "undo": "skills",
    },
    "What happened": {
        "watch": "watch",
        "sessions": "sessions",
        "why": "turns",
        "feedback": "turns",
        "cost": "cost",
    },
    "Training": {"policy": "policy", "model": "model", "windows": "policy"},
    "Set-up": {
        "setup": "setup",
        "agents": "agents",
        "mcp": "mcp",
        "config": "config",
        "key": "config",
        "keys": "keys",
        "completion": "root",
    },
    "Upkeep": {"doctor": "checks", "store": "store"},
}
"""The commands in the order of `--help`, and their modules."""
_OTHERS: Final = "Of plugins"
_MODULES: Final = {name: module for group in _COMMANDS.values() for name, module in group.items()}


class LazyGroup(click.Group):
    """A group that imports its commands on use, and also has those of installed plugins. If names
    are equal, its own command wins.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_MODULES, *installed_names(COMMANDS)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name. A plugin that is not installed or cannot be loaded says so when
        it is run.
        """
        if cmd_name in _MODULES:
            module = import_module(f"metaclaw.cli.{_MODULES[cmd_name]}")
            command: click.Command = getattr(module, cmd_name)
            return command
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        return _load_command(cmd_name) if cmd_name in known_names(COMMANDS) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        others = [name for name in self.list_commands(ctx) if name not in _MODULES]
        limit = formatter.width - 6 - max(map(len, (*_MODULES, *others)))
        for title, names in (*_COMMANDS.items(), (_OTHERS, others)):
            commands = [(name, self.get_command(ctx, name)) for name in names]
            lines = [
                (name, command.get_short_help_str(limit))
                for name, command in commands
                if command is not None and not command.hidden
            ]
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)


def _load_command(name: str) -> click.Command:
    try:
        return load_plugin(COMMANDS, name, click.Command)
    except PluginError as error:
        return _unusable(name, str(error))


def _unusable(name: str, why: str) -> click.Command:
    """A command that takes any arguments and raises ConfigError, so that `metaclaw --help` works
    beside a broken plugin.
    """

    def refuse(words: tuple[str, ...]) -> None:
        raise ConfigError(f"`metaclaw {name}` cannot be run: {why}")

    words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)
    settings = {
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": [],
    }
    return click.Command(
        name,
        callback=refuse,
        params=[words],
        help=f"Cannot be run: {why}",
        context_settings=settings,
    )


def chosen_home(arguments: Sequence[str]) -> Path:
    """The home folder that a command line names, for use after click has failed."""
    for place, word in enumerate(arguments):
        if word == "--home" and place + 1 < len(arguments):
            return Path(arguments[place + 1]).expanduser().absolute()
        if word.startswith("--home="):
            return Path(word.removeprefix("--home=")).expanduser().absolute()
    return default_home()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    help="Home folder [METACLAW_HOME, else ~/.metaclaw].",
)
@click.version_option(__version__, prog_name="metaclaw")
@click.pass_context
def root(context: click.Context, home: Path | None) -> None:
    """A proxy between agents and their model that records every turn and learns from them."""
    # A title or a skill may contain characters that this terminal cannot show; that must not abort
    # the command.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    if os.environ.get("NO_COLOR"):
        context.color = False
    context.obj = home.expanduser().absolute() if home is not None else default_home()


_SHELLS = {
    "bash": 'eval "$(metaclaw completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(metaclaw completion zsh)"   # in ~/.zshrc, behind compinit',
    "fish": "metaclaw completion fish | source   # in ~/.config/fish/config.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(tuple(_SHELLS)), required=False)
def completion(shell: str | None) -> None:
    """Print a completion script for SHELL [the shell you use].

    Switch it on with one line in your shell's startup file: eval "$(metaclaw completion bash)", the
    same with zsh, or metaclaw completion fish | source."""
    from click.shell_completion import get_completion_class

    name = shell or Path(os.environ.get("SHELL", "")).name
    found = get_completion_class(name) if name in _SHELLS else None
    if found is None:
        raise ConfigError(f"name the shell: metaclaw completion {'|'.join(_SHELLS)}")
    click.echo(found(root, {}, "metaclaw", "_METACLAW_COMPLETE").source())
