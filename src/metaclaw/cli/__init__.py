"""The `metaclaw` program: commands, exit codes (0 done, 1 failed, 2 usage or configuration) and the
last word on errors.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import click

from metaclaw.cli.output import echo, plain, print_json, print_table
from metaclaw.errors import ConfigError, MetaClawError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    from metaclaw.cli.root import root

    try:
        result = root.main(
            args=None if arguments is None else list(arguments),
            prog_name="metaclaw",
            standalone_mode=False,
        )
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        _say("stopped; nothing more was done")
        return 1
    except MetaClawError as error:
        return _explain(error)
    except BrokenPipeError:
        # The reader of our output went away (`metaclaw … | head`): the interpreter must not try to
        # flush it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        expected = _expected(error)
        if expected is not None:
            return _explain(expected)
        place = _write_down(sys.argv if arguments is None else arguments)
        _say(
            f"this is a bug in MetaClaw ({type(error).__name__}); what happened is written in"
            f" {place}"
        )
        return 1


def _explain(error: MetaClawError) -> int:
    _say(str(error))
    return 2 if isinstance(error, ConfigError) else 1


def _expected(error: Exception) -> MetaClawError | None:
    """The one of our own errors that tasks running side by side ended with, if they ended with
    nothing else.
    """
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, MetaClawError) else None


def _say(sentence: str) -> None:
    for line in f"metaclaw: {sentence}".splitlines():
        echo(line, err=True)


def _write_down(arguments: Sequence[str]) -> str:
    """Append the traceback to the log, for its owner only; where there is none, show it."""
    from metaclaw.cli.root import chosen_home

    log = chosen_home(arguments) / "logs" / "metaclaw.log"
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(log, "a", encoding="utf-8", opener=_private) as file:
            traceback.print_exc(file=file)
    except (OSError, ValueError):
        traceback.print_exc()
        return "the lines above"
    return str(log)


def _private(path: str, flags: int) -> int:
    return os.open(Path(path), flags, 0o600)
