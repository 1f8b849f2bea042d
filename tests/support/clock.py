"""A wall clock that a test can set, for a program in a process of its own."""

from datetime import timedelta
from pathlib import Path


class FakeClock:
    """How far the clock of a program is ahead. Give it `env` when it is started."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set_ahead(timedelta(0))

    @property
    def env(self) -> dict[str, str]:
        return {"METACLAW_CLOCK": str(self._file)}

    def set_ahead(self, by: timedelta) -> None:
        partial = self._file.with_suffix(".partial")
        partial.write_text(str(by.total_seconds()))
        partial.replace(self._file)
