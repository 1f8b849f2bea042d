"""A piece of work that is fallen over again and again is set aside; others, and those that were finished, never are."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

import anyio
import anyio.lowlevel
import pytest

from metaclaw.learn.slate import Slate
from metaclaw.learn.stumbles import Falls, Piece, Stumbles, Workbook

pytestmark = pytest.mark.anyio


async def take(stumbles: Stumbles, item: str, *, falls: bool = False) -> bool:
    """Take an item up, and fall over it or not; whether it could be taken up."""
    try:
        async with stumbles.taking(item) as may:
            if falls and may:
                raise ValueError(item)
    except ValueError:
        return True
    return may


async def test_an_item_that_is_never_finished_is_passed_over_after_three_tries() -> None:
    stumbles = Stumbles("sensing")
    assert [await take(stumbles, "t_1", falls=True) for _ in range(5)] == [True, True, True, False, False]


async def test_an_item_that_is_finished_each_time_is_taken_up_for_ever() -> None:
    stumbles = Stumbles("sensing")
    for _ in range(10):
        assert await take(stumbles, "t_1")


async def test_an_item_that_is_finished_at_last_is_cleared_of_its_falls() -> None:
    stumbles = Stumbles("sensing")
    for falls in (True, True, False, True, True, False):
        assert await take(stumbles, "t_1", falls=falls)


async def test_one_items_falls_say_nothing_of_another_nor_of_another_loop() -> None:
    book = Workbook()
    sensing, fast = Stumbles("sensing", book), Stumbles("fast", book)
    for _ in range(4):
        await take(sensing, "t_1", falls=True)
    assert await take(sensing, "t_2")
    assert await take(fast, "t_1")
    assert book.set_aside == {Piece("sensing", "t_1"): 3}


async def test_who_is_cancelled_has_not_fallen() -> None:
    book = Workbook()
    stumbles = Stumbles("sensing", book)
    for _ in range(5):
        with anyio.move_on_after(0):
            async with stumbles.taking("t_1") as may:
                assert may
                await anyio.sleep_forever()
    assert await take(stumbles, "t_1")


def after(deaths: Sequence[frozenset[Piece]]) -> Falls:
    falls = Falls()
    for in_hand in deaths:
        falls = Falls(in_hand, falls.counts).after_death()
    return falls


async def test_what_was_in_hand_at_three_deaths_is_set_aside_and_deaths_with_empty_hands_count_for_nothing() -> None:
    deadly, other = Piece("judging", "t_1"), Piece("judging", "t_2")
    idle: frozenset[Piece] = frozenset()
    book = Workbook(after([frozenset({deadly, other}), idle, frozenset({deadly}), idle, idle, frozenset({deadly})]))
    judging = Stumbles("judging", book)
    assert not await take(judging, "t_1")
    assert await take(judging, "t_2")
    assert book.set_aside == {deadly: 3}


async def test_of_those_that_were_in_hand_when_something_died_one_is_done_at_a_time() -> None:
    suspects = [Piece("judging", f"t_{number}") for number in range(4)]
    noted: list[Falls] = []
    book = Workbook(after([frozenset(suspects)]), noted.append)
    judging = Stumbles("judging", book)

    async def judge(item: str) -> None:
        async with judging.taking(item):
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        for piece in suspects:
            group.start_soon(judge, piece.item)
        group.start_soon(judge, "t_of_good_repute")
    assert max(len(falls.in_hand & set(suspects)) for falls in noted) == 1
    assert max(len(falls.in_hand) for falls in noted) == 2
    assert noted[-1] == Falls()


def test_what_was_in_hand_is_on_the_slate_when_its_process_is_killed() -> None:
    program = """
import os, signal, sys
from metaclaw.learn.slate import Slate
from metaclaw.learn.stumbles import Stumbles, Workbook
slate = Slate(int(sys.argv[1]))
stumbles = Stumbles("sensing", Workbook(slate.read(), slate.write))
with stumbles.taking_now("done"):
    pass
with stumbles.taking_now("deadly"):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    with Slate() as slate:
        command = [sys.executable, "-c", program, str(slate.handle)]
        for deaths in (1, 2, 3):
            killed = subprocess.run(command, pass_fds=(slate.handle,), timeout=60)
            assert killed.returncode == -signal.SIGKILL
            assert slate.read().in_hand == {Piece("sensing", "deadly")}
            slate.write(slate.read().after_death())
            assert slate.read() == Falls(frozenset(), {Piece("sensing", "deadly"): deaths})


def test_a_slate_nobody_wrote_on_says_nothing_and_is_closed() -> None:
    with Slate() as slate:
        assert slate.read() == Falls()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(slate.handle)
