"""A bell: wakes a loop that waits for something to do. Ringing is cheap, and ringing twice before it wakes is ringing once."""

import anyio


class Bell:
    """One waiter, any number of ringers, all on one event loop."""

    def __init__(self) -> None:
        self._rung = anyio.Event()

    def ring(self) -> None:
        """There is something to do."""
        self._rung.set()

    @property
    def is_rung(self) -> bool:
        """Whether somebody has rung since the last wait ended."""
        return self._rung.is_set()

    async def wait(self, at_most_s: float) -> None:
        """Until it rings, or rang since the last wait, or this much time has passed."""
        with anyio.move_on_after(at_most_s):
            await self._rung.wait()
        self._rung = anyio.Event()
