"""Whether training starves: it has something to do, and no window has opened for a day."""

import time
from collections.abc import Callable
from typing import Final

from metaclaw.domain.window import Window
from metaclaw.learn.slow.loop import State
from metaclaw.ports import Windows

_AFTER_S: Final = 86_400.0
_NEEDS_A_WINDOW: Final = frozenset({State.SHUT, State.TRAINING, State.PROVING})


class Starvation:
    """Remembers when a window was open last."""

    def __init__(self, windows: Windows, now: Callable[[], float] = time.monotonic) -> None:
        self._windows = windows
        self._now = now
        self._last_open = now()
        windows.on_change(self._changed)

    def told(self, state: State) -> str | None:
        """That training starves, why, and what to do; None while it does not."""
        shut_s = self._now() - self._last_open
        if self._windows.window is not None or state not in _NEEDS_A_WINDOW or shut_s < _AFTER_S:
            return None
        return (
            f"training starves: it waits for a window for {shut_s / 3600:.0f} h ({self._windows.shut_because}). On a CPU it runs"
            " only while you are away. Train now with metaclaw policy train, set sleep hours in [schedule], or use a GPU or a"
            " training service, which train while you work"
        )

    def _changed(self, window: Window | None) -> None:
        # Both when it opens and when it shuts: it was open until now.
        self._last_open = self._now()
