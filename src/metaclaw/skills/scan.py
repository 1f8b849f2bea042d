"""What changed in the skills folder since the last look, told from names, times, sizes and inodes without opening a file."""

import os
import stat
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from metaclaw.skills.files import SKILL_FILE

# A file changed this recently may change again without its time changing: the clock of a file system ticks every few milliseconds.
_UNSETTLED_S = 0.1

Signature = tuple[int, int, int]


class Changes(NamedTuple):
    """Names of skill folders to read again, and of those that are gone."""

    changed: list[str]
    gone: list[str]


class FolderScan:
    """Remembers what the folder looked like. Where nothing changed, a look costs one system call a skill."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = str(folder)
        self._clock = clock
        self._listed_at: int | None = None
        self._seen: dict[str, Signature | None] = {}
        self._turn: list[str] = []

    def __contains__(self, name: str) -> bool:
        """Whether a folder of this name was there at the last look."""
        return name in self._seen

    def look(self, most: int | None = None, also: Iterable[str] = ()) -> Changes:
        """What changed. With `most`, only so many files are looked at, going round from call to call, and `also` these; new and
        removed folders are always noticed. Raises OSError where the folder cannot be listed; one that does not exist is empty."""
        new, gone = self._list() if self._folder_changed() else ([], [])
        for name in gone:
            del self._seen[name]
        self._seen.update(dict.fromkeys(new))
        due = set(self._next(most)).union(new, also)
        return Changes(sorted(name for name in due if name in self._seen and self._file_changed(name)), sorted(gone))

    def look_again(self, name: str) -> None:
        """Report this one as changed next time, whatever it looks like."""
        if name in self._seen:
            self._seen[name] = None
            self._turn.append(name)

    def _folder_changed(self) -> bool:
        try:
            changed_at = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 - called several times a second
        except FileNotFoundError:
            changed_at = -1
        if changed_at == self._listed_at:
            return False
        self._listed_at = changed_at if self._settled(changed_at) else None
        return True

    def _list(self) -> tuple[list[str], list[str]]:
        try:
            with os.scandir(self._folder) as entries:
                found = {
                    entry.name
                    for entry in entries
                    if not entry.name.startswith(".") and (entry.is_dir() or entry.name.endswith(".md"))
                }
        except FileNotFoundError:
            found = set()
        return [name for name in found if name not in self._seen], [name for name in self._seen if name not in found]

    def _next(self, most: int | None) -> list[str]:
        if most is None or most >= len(self._seen):
            self._turn.clear()
            return list(self._seen)
        if len(self._turn) < most:
            self._turn = [*self._seen, *self._turn]
        due = self._turn[-most:]
        del self._turn[-most:]
        return due

    def _file_changed(self, name: str) -> bool:
        try:
            facts = os.stat(f"{self._folder}/{name}/{SKILL_FILE}")  # noqa: PTH116 - as above
            signature: Signature = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
        except OSError as error:
            signature = (-1, error.errno or 0, 0)
        if self._seen[name] == signature:
            return False
        self._seen[name] = signature if self._settled(signature[0]) else None
        return True

    def _settled(self, changed_at_ns: int) -> bool:
        return not 0 <= self._clock() - changed_at_ns / 1e9 < _UNSETTLED_S


def modified_at(path: Path) -> float | None:
    """When a file was last written, or None where there is none."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_mtime if stat.S_ISREG(facts.st_mode) else None
