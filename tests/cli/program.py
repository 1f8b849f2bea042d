"""Running `metaclaw` in tests: as the real program, or inside this process where only the outcome
matters.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any

from metaclaw.cli import main


@dataclass(frozen=True, slots=True)
class Done:
    """How one run ended."""

    code: int
    out: str
    err: str

    @property
    def facts(self) -> dict[str, Any]:  # JSON of any shape; each test says what it expects
        """What `--json` printed."""
        found: dict[str, Any] = json.loads(self.out)
        return found


def program(
    *arguments: str, env: Mapping[str, str] | None = None, given: str = "", timeout_s: float = 180.0
) -> Done:
    """Run the real program to its end."""
    command = [sys.executable, "-m", "metaclaw.cli", *arguments]
    done = subprocess.run(
        command,
        input=given,
        capture_output=True,
        text=True,
        env=env,
        timeout=timeout_s,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def metaclaw(*arguments: str, given: str = "") -> Done:
    """Run one command in this process."""
    out, err, stdin = StringIO(), StringIO(), sys.stdin
    sys.stdin = StringIO(given)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main(arguments)
    finally:
        sys.stdin = stdin
    return Done(code, out.getvalue(), err.getvalue())
