"""Wake a loop that waits for work. Notifications before it wakes count as one."""

import anyio


class Wakeup:
    """One waiter and any number of notifiers, all on one event loop."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def notify(self) -> None:
        """Wake the waiter, now or at its next wait."""
        self._event.set()

    @property
    def is_set(self) -> bool:
        """Whether there was a notification since the last wait ended."""
        return self._event.is_set()

    async def wait(self, at_most_s: float) -> None:
        """Return at the next notification, at once if there was one since the last wait, or after `at_most_s`."""
        with anyio.move_on_after(at_most_s):
            await self._event.wait()
        self._event = anyio.Event()
