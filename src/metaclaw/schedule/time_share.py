"""A share of the time for training while the user works, for training with its own processor."""

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import anyio

from metaclaw.domain.training import Window
from metaclaw.ports import Windows

_PERIOD_S: Final = 60.0


class SharedWindows:
    """Scheduled windows and, while none is open, the first `share` of every minute."""

    def __init__(
        self,
        windows: Windows,
        share: float,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        period_s: float = _PERIOD_S,
    ) -> None:
        self._windows = windows
        self._share = share
        self._now = now
        self._period_s = period_s
        self._mine: Window | None = None
        self._was_open = windows.window is not None
        self._opened = anyio.Event()
        self._hearers: list[Callable[[Window | None], None]] = []
        windows.on_change(lambda window: self._changed())

    @property
    def window(self) -> Window | None:
        """The schedule's window, or our own; None while both are shut."""
        return self._windows.window or self._mine

    @property
    def shut_because(self) -> str:
        """Why no window is open; empty while one is."""
        if self.window is not None:
            return ""
        return f"training has {self._share:.0%} of the time (policy.train_share) while you work; {self._windows.shut_because}"

    async def until_open(self) -> Window:
        """Wait for an open window; at once if one is open."""
        while (window := self.window) is None:
            await self._opened.wait()
        return window

    def has_room(self, seconds: float) -> bool:
        """Whether work of this length fits. In our part of a minute everything does."""
        return self._mine is not None or self._windows.has_room(seconds)

    def on_change(self, hear: Callable[[Window | None], None]) -> None:
        """Call this at once whenever a window opens or the last one shuts."""
        self._hearers.append(hear)

    def open(self) -> None:
        """Our part of a minute begins."""
        self._mine = Window(self._now(), f"{self._share:.0%} of the time while you work", None)
        self._changed()

    def shut(self) -> None:
        """Our part of a minute is over."""
        self._mine = None
        self._changed()

    async def run(self) -> None:
        """Open and shut, for ever."""
        while True:
            self.open()
            await anyio.sleep(math.inf if self._share >= 1.0 else self._period_s * self._share)
            self.shut()
            await anyio.sleep(self._period_s * (1.0 - self._share))

    def _changed(self) -> None:
        is_open = self.window is not None
        if is_open == self._was_open:
            return
        self._was_open = is_open
        if is_open:
            self._opened.set()
        else:
            self._opened = anyio.Event()
        for hear in self._hearers:
            hear(self.window)
