"""The root of the commands. Everything heavy is imported inside the commands, so that `--help` and `status` are quick."""

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path

import click

from metaclaw import __version__
from metaclaw.cli.agents import agents
from metaclaw.cli.candidates import candidates
from metaclaw.cli.completion import completion
from metaclaw.cli.config import config
from metaclaw.cli.cost import cost
from metaclaw.cli.demo import demo
from metaclaw.cli.doctor import doctor
from metaclaw.cli.enforce import enforce
from metaclaw.cli.feedback import feedback
from metaclaw.cli.generations import undo
from metaclaw.cli.key import key
from metaclaw.cli.logs import logs
from metaclaw.cli.page import page
from metaclaw.cli.plugins import PluginGroup
from metaclaw.cli.policy import policy
from metaclaw.cli.rules import rules
from metaclaw.cli.service import service
from metaclaw.cli.sessions import sessions
from metaclaw.cli.setup import setup
from metaclaw.cli.skills import skills
from metaclaw.cli.start import start
from metaclaw.cli.status import status
from metaclaw.cli.stop import stop
from metaclaw.cli.store import store
from metaclaw.cli.watch import watch
from metaclaw.cli.why import why
from metaclaw.cli.windows import windows


def chosen_home(arguments: Sequence[str]) -> Path:
    """The home folder a command line names, for use where click's own reading of it is gone."""
    from metaclaw.config import default_home

    for place, word in enumerate(arguments):
        if word == "--home" and place + 1 < len(arguments):
            return Path(arguments[place + 1]).expanduser().absolute()
        if word.startswith("--home="):
            return Path(word.removeprefix("--home=")).expanduser().absolute()
    return default_home()


@click.group(cls=PluginGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--home", type=click.Path(file_okay=False, path_type=Path), help="Home folder [METACLAW_HOME, else ~/.metaclaw].")
@click.version_option(__version__, prog_name="metaclaw")
@click.pass_context
def root(context: click.Context, home: Path | None) -> None:
    """A proxy between agents and their model that records every turn and learns from them."""
    from metaclaw.config import default_home

    # A title or a skill may hold characters that this terminal cannot show; that must not end the command.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    if os.environ.get("NO_COLOR"):
        context.color = False
    context.obj = home.expanduser().absolute() if home is not None else default_home()


_SAID = (rules, enforce, undo, why, watch)
_LEARNED = (cost, skills, candidates, policy, windows)
_RECORDED = (sessions, feedback, store)
_OPERATED = (start, stop, status, logs, doctor, setup, demo, config, key, page, agents, service, completion)
for command in (*_OPERATED, *_SAID, *_LEARNED, *_RECORDED):
    root.add_command(command)
