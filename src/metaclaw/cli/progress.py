"""Progress of long work: one line on standard error that is written over; nothing where that is not a terminal."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from metaclaw.cli.output import cut, duration, plain

_BAR = 24
_PAUSE_S = 0.2


def show_progress(line: str) -> None:
    """Write a line over the one before it; an empty one takes it away."""
    if sys.stderr.isatty():
        import shutil

        width = shutil.get_terminal_size().columns - 1
        click.echo(f"\r\033[K{cut(plain(line), width) if line else ''}", nl=False, err=True)


def bar(share: float) -> str:
    """A share from 0 to 1 as a bar with its percentage."""
    done = round(min(1.0, max(0.0, share)) * _BAR)
    return f"[{'#' * done}{'.' * (_BAR - done)}] {share:4.0%}"


@contextmanager
def shown_while(what: str) -> Iterator[None]:
    """Show what is being done and for how long, until the block ends."""
    if not sys.stderr.isatty():
        yield
        return
    is_done, began = threading.Event(), time.monotonic()

    def tick() -> None:
        while not is_done.wait(_PAUSE_S):
            show_progress(f"{what}, {duration(time.monotonic() - began)}")

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()
        show_progress("")
