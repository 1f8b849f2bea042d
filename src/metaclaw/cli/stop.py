"""`metaclaw stop`: ask the running proxy to finish its answers and go."""

import os
import signal
import time
from pathlib import Path

import click

from metaclaw.cli.output import json_option, print_json
from metaclaw.cli.progress import show_progress
from metaclaw.errors import MetaClawError
from metaclaw.instance import find

_PAUSE_S = 0.05


@click.command()
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0), default=60.0, show_default=True, help="Seconds to wait for it to end."
)
@json_option
@click.pass_obj
def stop(home: Path, timeout_s: float, as_json: bool) -> None:
    """Stop the running proxy: answers under way are finished first."""
    began = time.monotonic()
    pid = stop_proxy(home, timeout_s)
    if as_json:
        print_json({"stopped": True, "pid": pid, "took_s": round(time.monotonic() - began, 3)})
    else:
        click.echo(f"Stopped (pid {pid}).")


def stop_proxy(home: Path, timeout_s: float) -> int:
    """End this home's proxy and wait until it is gone; its process id. Raises MetaClawError."""
    running = find(home)
    if running is None:
        raise MetaClawError(f"no proxy runs for {home}; there is nothing to stop")
    try:
        os.kill(running.pid, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it ended by itself just now
    except PermissionError as error:
        raise MetaClawError(f"the proxy (pid {running.pid}) belongs to another user; stop it as that user") from error
    _wait(home, running.pid, timeout_s)
    return running.pid


def _wait(home: Path, pid: int, timeout_s: float) -> None:
    began = time.monotonic()
    while (running := find(home)) is not None and running.pid == pid:
        waited = time.monotonic() - began
        if waited > timeout_s:
            raise MetaClawError(
                f"the proxy (pid {pid}) still finishes its answers after {timeout_s:g} s; wait, or end it with: kill -9 {pid}"
            )
        show_progress(f"finishing running answers, {waited:.0f} s")
        time.sleep(_PAUSE_S)
    show_progress("")
