"""What a loop fell over: an item that ends the loop each time it is taken up is passed over, so that the others get their turn."""

import logging
from typing import Final

log = logging.getLogger(__name__)

_TRIES: Final = 3
_REMEMBERED: Final = 1_000


class Stumbles:
    """Counts what was begun and never finished. It outlives the loop that is started again."""

    def __init__(self, loop: str) -> None:
        self._loop = loop
        self._begun: dict[object, int] = {}

    def may_begin(self, item: object) -> bool:
        """Begin an item; False where it has ended the loop too often."""
        tries = self._begun.get(item, 0)
        if tries >= _TRIES:
            log.error("item_passed_over loop=%s item=%s tries=%d; the log says why it failed", self._loop, item, tries)
            return False
        if len(self._begun) >= _REMEMBERED:
            self._begun.clear()
        self._begun[item] = tries + 1
        return True

    def finished(self, item: object) -> None:
        """It is done."""
        self._begun.pop(item, None)
