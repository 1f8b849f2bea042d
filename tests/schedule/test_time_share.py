"""A share of the time for training that has its own processor."""

import anyio
import pytest

from metaclaw.domain.training import Window
from metaclaw.schedule import ManualWindows, SharedWindows

pytestmark = pytest.mark.anyio


async def test_training_gets_its_share_although_no_window_opens() -> None:
    inner = ManualWindows()
    shared = SharedWindows(inner, 0.25)
    heard: list[bool] = []
    shared.on_change(lambda window: heard.append(window is not None))
    assert shared.window is None
    assert "25% of the time" in shared.shut_because
    shared.open()
    assert (await shared.until_open()).reason == "25% of the time while you work"
    shared.shut()
    assert shared.window is None
    assert heard == [True, False]


async def test_a_window_of_the_schedule_goes_on_when_the_share_is_over() -> None:
    inner = ManualWindows()
    shared = SharedWindows(inner, 0.5)
    heard: list[Window | None] = []
    shared.on_change(heard.append)
    shared.open()
    inner.open("you are away")
    shared.shut()
    assert shared.window is inner.window
    inner.shut("you are back")
    assert shared.window is None
    assert [window is None for window in heard] == [False, True]


async def test_it_opens_and_shuts_by_itself() -> None:
    shared = SharedWindows(ManualWindows(), 0.5, period_s=0.02)
    changes: list[bool] = []
    enough = anyio.Event()

    def hear(window: Window | None) -> None:
        changes.append(window is not None)
        if len(changes) == 4:
            enough.set()

    shared.on_change(hear)
    async with anyio.create_task_group() as group:
        group.start_soon(shared.run)
        await enough.wait()
        group.cancel_scope.cancel()
    assert changes[:4] == [True, False, True, False]


async def test_all_of_the_time_is_never_interrupted() -> None:
    shared = SharedWindows(ManualWindows(), 1.0, period_s=0.001)
    with anyio.move_on_after(0.05):
        await shared.run()
    assert shared.window is not None
