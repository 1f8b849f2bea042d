"""Whether the network is metered, as NetworkManager says."""

from typing import Final

from metaclaw.schedule.signals.bus import BusType, connected
from metaclaw.schedule.signals.inactivity import SignalError

_NAME: Final = "org.freedesktop.NetworkManager"
_PATH: Final = "/org/freedesktop/NetworkManager"
# Its own word, and its guess.
_METERED: Final = (1, 3)


class Metered:
    """Asks when called; None where there is nobody to ask."""

    def __init__(self, address: str | None = None) -> None:
        self._address = address

    async def __call__(self) -> bool | None:
        """Whether it is metered."""
        try:
            async with connected(BusType.SYSTEM, self._address) as bus:
                return await bus.property(_NAME, _PATH, _NAME, "Metered") in _METERED
        except SignalError:
            return None
