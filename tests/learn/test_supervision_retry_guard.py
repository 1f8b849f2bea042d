"""A work item at which every attempt fails is set aside; others, and those that were finished,
never are.
"""

import errno
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from metaclaw.errors import StoreError
from metaclaw.learn.supervision import AttemptLog, CrashRecord, RetryGuard, WorkAttempts, WorkItem

pytestmark = pytest.mark.anyio


async def take(guard: RetryGuard, item: str, *, failures: bool = False) -> bool:
    """Take an item up, and fall over it or not; whether it could be taken up."""
    try:
        async with guard.attempt(item) as may:
            if failures and may:
                raise ValueError(item)
    except ValueError:
        return True
    return may


async def test_an_item_that_is_never_finished_is_passed_over_after_three_tries() -> None:
    guard = RetryGuard("sensing")
    assert [await take(guard, "t_1", failures=True) for _ in range(5)] == [
        True,
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    "fault",
    [
        OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.ENOSPC, "No space left on device"),
        MemoryError(),
        RuntimeError("can't start new thread"),
        "sqlite",
    ],
    ids=str,
)
async def test_no_item_is_passed_over_for_a_fault_of_the_machine(
    fault: Exception | str, tmp_path: Path
) -> None:
    guard = RetryGuard("listening")

    async def fail() -> None:
        async with guard.attempt("m_1") as may:
            assert may
            try:
                if isinstance(fault, Exception):
                    raise fault
                sqlite3.connect(tmp_path / "none" / "ledger.db")
            except Exception as error:
                raise StoreError("reading failed") from error

    for _ in range(5):
        with pytest.raises(StoreError):
            await fail()


async def test_an_item_that_is_finished_each_time_is_taken_up_for_ever() -> None:
    guard = RetryGuard("sensing")
    for _ in range(10):
        assert await take(guard, "t_1")


async def test_an_item_that_is_finished_at_last_is_cleared_of_its_falls() -> None:
    guard = RetryGuard("sensing")
    for failures in (True, True, False, True, True, False):
        assert await take(guard, "t_1", failures=failures)


async def test_one_items_falls_say_nothing_of_another_nor_of_another_loop() -> None:
    attempt_log = AttemptLog()
    outcomes, fast = RetryGuard("sensing", attempt_log), RetryGuard("fast", attempt_log)
    for _ in range(4):
        await take(outcomes, "t_1", failures=True)
    assert await take(outcomes, "t_2")
    assert await take(fast, "t_1")
    assert attempt_log.set_aside == {WorkItem("sensing", "t_1"): 3}


async def test_who_is_cancelled_has_not_fallen() -> None:
    attempt_log = AttemptLog()
    guard = RetryGuard("sensing", attempt_log)
    for _ in range(5):
        with anyio.move_on_after(0):
            async with guard.attempt("t_1") as may:
                assert may
                await anyio.sleep_forever()
    assert await take(guard, "t_1")


def after(deaths: Sequence[frozenset[WorkItem]]) -> WorkAttempts:
    failures = WorkAttempts()
    for in_hand in deaths:
        failures = WorkAttempts(in_hand, failures.counts).after_crash()
    return failures


async def test_what_was_in_hand_at_three_deaths_is_set_aside_and_deaths_with_empty_hands_count_for_nothing() -> (
    None
):
    deadly, other = WorkItem("judging", "t_1"), WorkItem("judging", "t_2")
    idle: frozenset[WorkItem] = frozenset()
    attempt_log = AttemptLog(
        after(
            [frozenset({deadly, other}), idle, frozenset({deadly}), idle, idle, frozenset({deadly})]
        )
    )
    judging = RetryGuard("judging", attempt_log)
    assert not await take(judging, "t_1")
    assert await take(judging, "t_2")
    assert attempt_log.set_aside == {deadly: 3}


async def test_of_those_that_were_in_hand_when_something_died_one_is_done_at_a_time() -> None:
    suspects = [WorkItem("judging", f"t_{number}") for number in range(4)]
    noted: list[WorkAttempts] = []
    attempt_log = AttemptLog(after([frozenset(suspects)]), noted.append)
    judging = RetryGuard("judging", attempt_log)

    async def judge(item: str) -> None:
        async with judging.attempt(item):
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        for item in suspects:
            group.start_soon(judge, item.item)
        group.start_soon(judge, "t_of_good_repute")
    assert max(len(failures.in_hand & set(suspects)) for failures in noted) == 1
    assert max(len(failures.in_hand) for failures in noted) == 2
    assert noted[-1] == WorkAttempts()


def test_what_was_in_hand_is_on_the_slate_when_its_process_is_killed() -> None:
    program = """
import os, signal, sys
from metaclaw.learn.supervision import CrashRecord
from metaclaw.learn.supervision import RetryGuard, AttemptLog
record = CrashRecord(int(sys.argv[1]))
guard = RetryGuard("sensing", AttemptLog(record.read(), record.write))
with guard.attempt_now("done"):
    pass
with guard.attempt_now("deadly"):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    with CrashRecord() as crash_record:
        command = [sys.executable, "-c", program, str(crash_record.handle)]
        for deaths in (1, 2, 3):
            killed = subprocess.run(command, pass_fds=(crash_record.handle,), timeout=60)
            assert killed.returncode == -signal.SIGKILL
            assert crash_record.read().in_hand == {WorkItem("sensing", "deadly")}
            crash_record.write(crash_record.read().after_crash())
            assert crash_record.read() == WorkAttempts(
                frozenset(), {WorkItem("sensing", "deadly"): deaths}
            )


def test_a_slate_nobody_wrote_on_says_nothing_and_is_closed() -> None:
    with CrashRecord() as crash_record:
        assert crash_record.read() == WorkAttempts()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(crash_record.handle)
