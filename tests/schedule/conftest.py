"""What several tests of the scheduler need: an X server of their own."""

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest


@pytest.fixture
def server() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A real X server without a screen: its display, and its process."""
    for tool in ("Xvfb", "xdotool"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed: apt-get install xvfb xdotool")
    here, there = os.pipe()
    command = ["Xvfb", "-displayfd", str(there), "-screen", "0", "320x240x8", "-nolisten", "tcp"]
    process = subprocess.Popen(command, pass_fds=(there,), stderr=subprocess.DEVNULL)
    os.close(there)
    with os.fdopen(here) as told:
        number = told.readline().strip()
    try:
        yield f":{number}", process
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture
def display(server: tuple[str, subprocess.Popen[bytes]]) -> str:
    return server[0]
