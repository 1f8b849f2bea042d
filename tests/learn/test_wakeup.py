"""Wakeup: no notification is lost, and no wait is without end."""

import anyio
import pytest

from metaclaw.learn.worker.supervision import LoopWakeup

pytestmark = pytest.mark.anyio
LONG_S = 60.0


async def test_a_ring_wakes_whoever_waits() -> None:
    wakeup = LoopWakeup()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(wakeup.wait, LONG_S)
            await anyio.wait_all_tasks_blocked()
            wakeup.notify()


async def test_a_ring_before_the_wait_is_not_lost() -> None:
    wakeup = LoopWakeup()
    wakeup.notify()
    with anyio.fail_after(60):
        await wakeup.wait(LONG_S)


async def test_many_rings_wake_once_and_then_it_is_quiet() -> None:
    wakeup = LoopWakeup()
    for _ in range(3):
        wakeup.notify()
    with anyio.fail_after(60):
        await wakeup.wait(LONG_S)
    woken = False
    with anyio.move_on_after(0.01):
        await wakeup.wait(LONG_S)
        woken = True
    assert not woken


async def test_nobody_waits_longer_than_they_said() -> None:
    wakeup = LoopWakeup()
    with anyio.fail_after(60):
        for _ in range(3):
            await wakeup.wait(0.001)


async def test_a_ring_between_two_waits_is_heard_by_the_second() -> None:
    wakeup = LoopWakeup()
    await wakeup.wait(0.001)
    wakeup.notify()
    with anyio.fail_after(60):
        await wakeup.wait(LONG_S)
