"""Windows without a scheduler: open for as long as somebody says so."""

from collections.abc import Callable
from datetime import UTC, datetime

import anyio

from metaclaw.domain.window import Window


class HandOpened:
    """Opened and shut by whoever holds it."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._now = now
        self._window: Window | None = None
        self._why = "nobody has opened it"
        self._opened = anyio.Event()
        self._hearers: list[Callable[[Window | None], None]] = []

    @property
    def window(self) -> Window | None:
        """The open window, or None while it is shut."""
        return self._window

    @property
    def shut_because(self) -> str:
        """Why no window is open; empty while one is."""
        return "" if self._window is not None else self._why

    async def until_open(self) -> Window:
        """Wait for an open window; at once if one is open."""
        while self._window is None:
            await self._opened.wait()
        return self._window

    def has_room(self, seconds: float) -> bool:
        """Nobody knows when it will be shut: while it is open there is room."""
        return self._window is not None

    def on_change(self, hear: Callable[[Window | None], None]) -> None:
        """Call this at once whenever the window opens or shuts."""
        self._hearers.append(hear)

    def open(self, reason: str, until: datetime | None = None) -> None:
        """Open it; one that is open stays as it is."""
        if self._window is None:
            self._window = Window(self._now(), reason, until)
            self._opened.set()
            self._tell()

    def shut(self, why: str) -> None:
        """Shut it."""
        self._why = why
        if self._window is not None:
            self._window = None
            self._opened = anyio.Event()
            self._tell()

    def facts(self) -> dict[str, object]:
        """What people and programs may know."""
        reason = self._why if self._window is None else self._window.reason
        return {"open": self._window is not None, "reason": reason, "signals": []}

    async def run(self) -> None:
        """Nothing happens by itself."""

    def _tell(self) -> None:
        for hear in self._hearers:
            hear(self._window)
