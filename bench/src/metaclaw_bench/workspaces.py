"""The folder an agent works in: what all days share, and the day's own files in a folder called
after `day.folder`.
"""

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from metaclaw.plugin import MetaClawError
from metaclaw_bench.questions import Benchmark, Day

OWN_CHECKERS: Final = Path(__file__).parent / "checkers"
SCRIPTS: Final = "scripts"


class TooMuchError(MetaClawError):
    """A folder holds more than may be copied."""


def lay_out(
    benchmark: Benchmark, day: Day, workspace: Path, *, show_checkers: bool = False
) -> None:
    """Fill a fresh workspace for `day`. Nothing of another day is in it.

    The published runner shows the checkers to the agent, as `scripts/`; here only who compares
    scores with it asks for that."""
    workspace.mkdir(parents=True, exist_ok=True)
    for name, source in benchmark.shared.items():
        target = workspace / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    if day.folder is not None:
        copy_tree(day.folder, workspace / day.folder.name)
    if show_checkers:
        place_checkers(benchmark.checkers, workspace)


def place_checkers(checkers: Path | None, workspace: Path) -> None:
    """Put pristine checkers into `scripts/`: the data's own, or ours where it brings none."""
    copy_tree(checkers or OWN_CHECKERS, workspace / SCRIPTS)


def copy_tree(
    source: Path, target: Path, *, without: str | None = None, most_bytes: int | None = None
) -> None:
    """Copy what can be read: files, folders, and links that stay inside. The copies may be written,
    whatever their originals were.

    Links that lead out, pipes, sockets and devices are left behind: an agent may have made them to
    be followed. `without` is a name at the top to leave out. Raises TooMuchError above
    `most_bytes`."""
    left = most_bytes
    inside = source.resolve()
    for folder, folders, files in os.walk(source):
        here = target / Path(folder).relative_to(source)
        here.mkdir(parents=True, exist_ok=True)
        if Path(folder) == source and without is not None:
            folders[:] = [name for name in folders if name != without]
            files = [name for name in files if name != without]
        for name in sorted([*folders, *files]):
            path = Path(folder) / name
            mode = path.lstat()
            if stat.S_ISLNK(mode.st_mode):
                _copy_link(path, here / name, inside)
            elif stat.S_ISREG(mode.st_mode) and os.access(path, os.R_OK):
                if left is not None:
                    left -= mode.st_size
                    if left < 0:
                        raise TooMuchError(f"more than {most_bytes} bytes")
                shutil.copyfile(path, here / name)
                (here / name).chmod(0o755 if mode.st_mode & stat.S_IXUSR else 0o644)


def used_bytes(workspace: Path) -> int:
    """What the files of a workspace take on disk. Blocks."""
    total = 0
    for folder, _, files in os.walk(workspace):
        for name in files:
            with suppress(OSError):  # it may be gone by now
                total += os.lstat(f"{folder}/{name}").st_blocks * 512
    return total


def _copy_link(path: Path, target: Path, inside: Path) -> None:
    to = path.readlink()
    # A link that leads in a circle leads nowhere: resolving it gives up where it stands, or says
    # so.
    try:
        stays = not to.is_absolute() and path.resolve().is_relative_to(inside)
    except (OSError, RuntimeError):
        return
    if stays:
        target.symlink_to(to)
