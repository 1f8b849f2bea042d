"""`metaclaw logs`: the end of the proxy's log, and what it writes from now on."""

import sys
import time
from collections import deque
from pathlib import Path

import click

from metaclaw.cli.output import plain
from metaclaw.errors import MetaClawError

_PAUSE_S = 0.2


@click.command()
@click.option("-n", "--lines", type=click.IntRange(0, 1_000_000), default=50, show_default=True, help="Lines of the end to print.")
@click.option(
    "-f/-F", "--follow/--no-follow", default=None, help="Go on as lines are written [on a terminal, follow]. Ctrl-C ends it."
)
@click.pass_obj
def logs(home: Path, lines: int, follow: bool | None) -> None:
    """Print the end of the proxy's log, and follow it. A proxy that was started in a terminal logs there instead."""
    path = home / "logs" / "metaclaw.log"
    if not path.exists():
        raise MetaClawError(f"there is no log at {path}; a proxy writes one when it is started with: metaclaw start --detach")
    is_followed = sys.stdout.isatty() if follow is None else follow
    with path.open("rb") as file:
        for line in deque(file, maxlen=lines):
            _print(line)
        try:
            while is_followed:
                line = file.readline()
                if line:
                    _print(line)
                elif path.exists() and path.stat().st_size < file.tell():
                    file.seek(0)  # it was begun anew
                else:
                    time.sleep(_PAUSE_S)
        except KeyboardInterrupt:
            return


def _print(line: bytes) -> None:
    click.echo(plain(line.decode("utf-8", "replace").rstrip("\r\n").replace("\t", "    ")) if line.strip() else "")
