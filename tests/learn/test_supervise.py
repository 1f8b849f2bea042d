"""Background loops stay alive and say how they are."""

import anyio
import pytest

from metaclaw.learn import Supervisor


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
