"""Compiles the provider and the load clients on demand; a C compiler is all they need."""

import os
import shutil
import subprocess
from pathlib import Path

SOURCES = Path(__file__).parent / "tools"
BUILD = Path(__file__).parent.parent / ".build" / "proxy"
PROGRAMS = ("provider", "load", "streams")


class MissingToolError(Exception):
    """Something the benchmark needs is not on this machine; the message says how to get it."""


def _compiler() -> str:
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise MissingToolError(
        "no C compiler found: install one (Debian: apt install gcc libc6-dev) or set CC"
    )


def _is_fresh(program: Path) -> bool:
    return program.exists() and all(
        program.stat().st_mtime > source.stat().st_mtime for source in SOURCES.iterdir()
    )


def build(into: Path = BUILD) -> dict[str, Path]:
    """Returns the path of each program, compiling those that are older than any source."""
    into.mkdir(parents=True, exist_ok=True)
    programs = {name: into / name for name in PROGRAMS}
    for name, program in programs.items():
        if _is_fresh(program):
            continue
        fresh = program.with_suffix(
            f".{os.getpid()}"
        )  # moved into place, so that two runs at once do not meet half a file
        command = [
            _compiler(),
            "-O2",
            "-Wall",
            "-Wextra",
            "-o",
            str(fresh),
            str(SOURCES / f"{name}.c"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MissingToolError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
        fresh.replace(program)
    return programs
