"""Running a file check where the agent cannot reach it: a copy of its workspace, pristine checkers,
a clean environment.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metaclaw_bench.questions import FileCheck
from metaclaw_bench.workspaces import OWN_CHECKERS, SCRIPTS, TooMuchError, copy_tree, place_checkers

TAIL_CHARACTERS: Final = 2_000
MOST_BYTES: Final = 256 * 1024 * 1024
_READ_BYTES: Final = 1024 * 1024
_NAMED_CHECKER: Final = re.compile(rf"(?<![\w./-]){SCRIPTS}/([\w.-]+\.py)\b")


@dataclass(frozen=True, slots=True)
class Checked:
    """The check ran. `exit` is None if it ran out of time; outputs are their last characters."""

    passed: bool
    exit: int | None
    stdout: str
    stderr: str
    why: str


@dataclass(frozen=True, slots=True)
class CheckBroken:
    """The check could not be run, which says nothing about the agent's work."""

    why: str


Outcome = Checked | CheckBroken


def run_check(check: FileCheck, workspace: Path, checkers: Path | None = None) -> Outcome:
    """Check a copy of `workspace`, which stays as it is, with the data's own `checkers` or else
    ours. Blocks until it is done.
    """
    unknown = sorted(
        {
            name
            for name in _NAMED_CHECKER.findall(check.command)
            if not ((checkers or OWN_CHECKERS) / name).is_file()
        }
    )
    if unknown:
        return CheckBroken(
            f"the command names {', '.join(unknown)}, and {checkers or 'our own set'} has no such"
            " checker"
        )
    if not workspace.is_dir():
        return CheckBroken(f"the workspace {workspace} is gone")
    try:
        with tempfile.TemporaryDirectory(
            prefix="metaclaw-check-", ignore_cleanup_errors=True
        ) as room:
            snapshot = Path(room) / "workspace"
            copy_tree(workspace, snapshot, without=SCRIPTS, most_bytes=MOST_BYTES)
            place_checkers(checkers, snapshot)
            return _run(check, Path(room), snapshot)
    except TooMuchError as error:
        return Checked(
            passed=False,
            exit=None,
            stdout="",
            stderr="",
            why=f"the workspace is too large to check: {error}",
        )
    except OSError as error:
        return CheckBroken(f"{type(error).__name__}: {error}")


def _run(check: FileCheck, room: Path, snapshot: Path) -> Checked:
    links = room / "bin"
    links.mkdir()
    # The data says `python`, which a machine with only python3 does not have.
    (links / "python").symlink_to(sys.executable)
    out, err = room / "stdout", room / "stderr"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        with _group(
            check.command, snapshot, _environment(links, room), (stdout.fileno(), stderr.fileno())
        ) as process:
            try:
                code: int | None = process.wait(check.timeout_s)
            except subprocess.TimeoutExpired:
                code = None
    said = _decode(_head(out))
    why = _fault(check, code, said)
    return Checked(
        passed=why is None,
        exit=code,
        stdout=_tail(out),
        stderr=_tail(err),
        why=why or "as expected",
    )


@contextmanager
def _group(
    command: str, cwd: Path, environment: dict[str, str], outputs: tuple[int, int]
) -> Iterator["subprocess.Popen[bytes]"]:
    """The command in a process group of its own, which ends with the block, whatever the command
    left running.
    """
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=outputs[0],
        stderr=outputs[1],
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _environment(links: Path, room: Path) -> dict[str, str]:
    return {
        "PATH": f"{links}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(room),
        "TMPDIR": str(room),
        "LANG": "C.UTF-8",
        # Without it `python -c` imports from the workspace first, and an agent's own glob.py would
        # decide.
        "PYTHONSAFEPATH": "1",
        "PYTHONPATH": str(room / "workspace" / SCRIPTS),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
    }


def _fault(check: FileCheck, code: int | None, said: str) -> str | None:
    if code is None:
        return f"not done after {check.timeout_s:g} s"
    if code != check.expect_exit:
        return f"exit {code} instead of {check.expect_exit}"
    wanted = check.expect_stdout
    if wanted is None:
        return None
    found = re.search(wanted, said) is not None if check.is_regex else wanted in said
    return None if found else f"its output lacks {wanted!r}"


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_READ_BYTES)


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4 * TAIL_CHARACTERS))
        return _decode(file.read())[-TAIL_CHARACTERS:]


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")
