"""`metaclaw completion`: the script that lets a shell complete commands, options and names."""

import os
from pathlib import Path

import click

from metaclaw.errors import ConfigError

_FILES = {
    "bash": 'eval "$(metaclaw completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(metaclaw completion zsh)"   # in ~/.zshrc, behind compinit',
    "fish": "metaclaw completion fish | source   # in ~/.config/fish/config.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(tuple(_FILES)), required=False)
def completion(shell: str | None) -> None:
    """Print a completion script for SHELL [the shell you use].

    Switch it on with one line in your shell's own file: eval "$(metaclaw completion bash)", the same with zsh, or
    metaclaw completion fish | source.
    """
    from click.shell_completion import get_completion_class

    from metaclaw.cli.root import root

    name = shell or Path(os.environ.get("SHELL", "")).name
    found = get_completion_class(name) if name in _FILES else None
    if found is None:
        raise ConfigError(f"say for which shell: metaclaw completion {'|'.join(_FILES)}")
    click.echo(found(root, {}, "metaclaw", "_METACLAW_COMPLETE").source())
