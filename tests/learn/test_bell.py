"""The bell: nothing that rang is slept through, and nobody waits for ever."""

import anyio
import pytest

from metaclaw.learn.bell import Bell

pytestmark = pytest.mark.anyio
LONG_S = 60.0


async def test_a_ring_wakes_whoever_waits() -> None:
    bell = Bell()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(bell.wait, LONG_S)
            await anyio.wait_all_tasks_blocked()
            bell.ring()


async def test_a_ring_before_the_wait_is_not_lost() -> None:
    bell = Bell()
    bell.ring()
    with anyio.fail_after(60):
        await bell.wait(LONG_S)


async def test_many_rings_wake_once_and_then_it_is_quiet() -> None:
    bell = Bell()
    for _ in range(3):
        bell.ring()
    with anyio.fail_after(60):
        await bell.wait(LONG_S)
    woken = False
    with anyio.move_on_after(0.01):
        await bell.wait(LONG_S)
        woken = True
    assert not woken


async def test_nobody_waits_longer_than_they_said() -> None:
    bell = Bell()
    with anyio.fail_after(60):
        for _ in range(3):
            await bell.wait(0.001)


async def test_a_ring_between_two_waits_is_heard_by_the_second() -> None:
    bell = Bell()
    await bell.wait(0.001)
    bell.ring()
    with anyio.fail_after(60):
        await bell.wait(LONG_S)
