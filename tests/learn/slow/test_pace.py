"""Work cut to fit: what cannot stand still is begun only where there is room, and never put off for
ever.
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import anyio
import pytest

from metaclaw.domain.training import Window
from metaclaw.learn.slow.recipe import Pace

pytestmark = pytest.mark.anyio


class Room:
    """Windows, always open, that have room for so many seconds each; the next one comes when one is
    asked for in vain.
    """

    def __init__(self, *rooms_s: float) -> None:
        self._rooms_s = list(rooms_s)
        self._number = 0

    @property
    def window(self) -> Window | None:
        return Window(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=self._number), "a test")

    @property
    def shut_because(self) -> str:
        return ""

    @property
    def number(self) -> int:
        return self._number

    async def until_open(self) -> Window:
        found = self.window
        assert found is not None
        return found

    def has_room(self, seconds: float) -> bool:
        has = seconds <= self._rooms_s[min(self._number, len(self._rooms_s) - 1)]
        if not has:
            self._number += 1
        return has

    def on_change(self, hear: Callable[[Window | None], None]) -> None:
        raise NotImplementedError


class Hand:
    """A clock turned by hand."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at


def took(pace: Pace, hand: Hand, seconds: float) -> None:
    with pace.timed("draw"):
        hand.at += seconds


async def test_a_piece_waits_for_a_window_that_is_long_enough_for_the_longest_of_the_last_ones() -> (
    None
):
    hand, windows = Hand(), Room(5, 9, 20)
    pace = Pace(windows, yields=False, now=hand.now)
    for seconds in (8.0, 12.0, 3.0):
        took(pace, hand, seconds)
    with anyio.fail_after(60):
        await pace.room_for("draw")
    assert windows.number == 2


async def test_the_first_piece_of_a_kind_and_one_that_can_stand_still_are_begun_in_any_window() -> (
    None
):
    hand, windows = Hand(), Room(0)
    careful, yielding = (
        Pace(windows, yields=False, now=hand.now),
        Pace(windows, yields=True, now=hand.now),
    )
    took(yielding, hand, 100)
    with anyio.fail_after(60):
        await careful.room_for("draw")
        await yielding.room_for("draw")
    assert windows.number == 0


async def test_a_piece_that_never_fits_is_begun_after_a_few_windows_all_the_same() -> None:
    hand, windows = Hand(), Room(1)
    pace = Pace(windows, yields=False, now=hand.now)
    took(pace, hand, 100)
    with anyio.fail_after(60):
        await pace.room_for("draw")
    assert windows.number == 4


async def test_a_piece_that_failed_says_nothing_of_how_long_one_takes() -> None:
    hand = Hand()
    pace = Pace(Room(1), yields=False, now=hand.now)
    with suppress(ValueError), pace.timed("draw"):
        hand.at += 100
        raise ValueError
    assert pace.expected_s("draw") is None
