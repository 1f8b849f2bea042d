"""A child process for one check: no environment, an empty folder of its own, and an end it cannot put off."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import BinaryIO

from metaclaw.domain.chat import Json

_SCRIPT = Path(__file__).with_name("inside.py")
_MAX_OUTPUT_BYTES = 64 * 1024
_MEMORY_MIB = 512


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended: its exit status (negative for a signal), or None where it ran out of time, and what it printed."""

    status: int | None
    output: str
    errors: str


def run_child(task: dict[str, Json], limit_s: float, *, with_libraries: bool = False) -> Ended:
    """Have `inside.py` do a task in a process of its own. Raises OSError where none can be started. Blocks."""
    options = ["-I"] if with_libraries else ["-I", "-S"]
    given = json.dumps(task | {"seconds": ceil(limit_s) + 1, "memory_mib": _MEMORY_MIB}).encode()
    with (
        tempfile.TemporaryDirectory(prefix="metaclaw-check-") as folder,
        tempfile.TemporaryFile() as source,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):
        source.write(given)
        source.seek(0)
        child = subprocess.Popen(
            [sys.executable, *options, str(_SCRIPT)],
            stdin=source,
            stdout=output,
            stderr=errors,
            cwd=folder,
            env={},
            start_new_session=True,
        )
        return Ended(_wait(child, limit_s), _read(output), _read(errors))


def _wait(child: "subprocess.Popen[bytes]", limit_s: float) -> int | None:
    try:
        return child.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if child.returncode is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _read(file: BinaryIO) -> str:
    file.seek(0)
    return file.read(_MAX_OUTPUT_BYTES).decode("utf-8", "replace")
