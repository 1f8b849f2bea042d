"""Background loops are restarted when they fail, and report their state."""

import anyio
import pytest

from metaclaw.learn import Supervisor
from metaclaw.learn.supervision import LoopWakeup


@pytest.mark.anyio
async def test_a_loop_that_fails_is_started_again_later_each_time_and_says_so() -> None:
    pauses: list[float] = []
    runs = 0
    seen: list[str] = []

    async def loop() -> None:
        nonlocal runs
        runs += 1
        if runs < 4:
            raise ValueError(f"trouble {runs}")

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:

            async def pause(seconds: float) -> None:
                pauses.append(seconds)
                seen.append(supervisor.states["watch"])

            supervisor = Supervisor(group, sleep=pause)
            supervisor.run("watch", loop)
    assert runs == 4
    assert pauses == [0.5, 1.0, 2.0]
    assert "trouble 2" in seen[1]
    assert supervisor.states == {"watch": "done"}


@pytest.mark.anyio
async def test_a_loop_that_ran_for_long_is_started_again_as_soon_as_at_its_first_failure() -> None:
    pauses: list[float] = []
    lives_s = [1.0, 1.0, 1.0, 600.0, 1.0]
    now_s = 0.0

    async def loop() -> None:
        nonlocal now_s
        if lives_s:
            now_s += lives_s.pop(0)
            raise ValueError("trouble")

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            Supervisor(group, sleep=pause, now=lambda: now_s).run("watch", loop)
    assert pauses == [0.5, 1.0, 2.0, 0.5, 1.0]


@pytest.mark.anyio
async def test_a_loop_that_made_progress_is_started_again_as_soon_as_at_its_first_failure() -> None:
    pauses: list[float] = []
    work = [0, 0, 1, 0, 0]
    done = 0

    async def loop() -> None:
        nonlocal done
        if work:
            done += work.pop(0)
            raise ValueError("trouble")

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            Supervisor(group, sleep=pause).run("watch", loop, progress=lambda: done)
    assert pauses == [0.5, 1.0, 0.5, 1.0, 2.0]


@pytest.mark.anyio
async def test_cancelling_the_group_ends_a_loop_that_would_run_for_ever() -> None:
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            supervisor = Supervisor(group)
            supervisor.run("for-ever", anyio.sleep_forever)
            assert supervisor.states == {"for-ever": "running"}
            group.cancel_scope.cancel()
    assert supervisor.states == {"for-ever": "running"}


pytestmark = pytest.mark.anyio
LONG_S = 60.0


async def test_a_ring_wakes_whoever_waits() -> None:
    wakeup = LoopWakeup()
    with anyio.fail_after(LONG_S / 2) as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(wakeup.wait, LONG_S)
            await anyio.wait_all_tasks_blocked()
            wakeup.notify()
    assert not scope.cancelled_caught


async def test_a_loop_polls_often_while_there_is_work_and_seldom_after_half_a_minute() -> None:
    waits: list[float] = []

    class Watched(LoopWakeup):
        async def wait(self, at_most_s: float) -> None:
            waits.append(at_most_s)

    wakeup = Watched()
    for _ in range(300):
        await wakeup.wait_after(is_empty=True)
    await wakeup.wait_after(is_empty=False)
    assert (waits[0], waits[299], waits[300]) == (0.2, 1.0, 0.2)
    assert waits[:300] == sorted(waits[:300])
    assert 29 <= sum(waits[: waits.index(1.0)]) <= 31


async def test_a_ring_before_the_wait_is_not_lost() -> None:
    wakeup = LoopWakeup()
    wakeup.notify()
    with anyio.fail_after(LONG_S / 2) as scope:
        await wakeup.wait(LONG_S)
    assert not scope.cancelled_caught


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
    waits = 0
    with anyio.fail_after(60):
        for _ in range(3):
            await wakeup.wait(0.001)
            waits += 1
    assert waits == 3


async def test_a_ring_between_two_waits_is_heard_by_the_second() -> None:
    wakeup = LoopWakeup()
    await wakeup.wait(0.001)
    wakeup.notify()
    with anyio.fail_after(LONG_S / 2) as scope:
        await wakeup.wait(LONG_S)
    assert not scope.cancelled_caught
