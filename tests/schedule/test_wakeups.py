"""Bells: a ring is a question, and the answer decides. And the one on macOS, behind the calls of libSystem."""

import asyncio
import ctypes
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.schedule.assembly import try_inputs
from metaclaw.schedule.input import InputWakeup, PolledSource, SignalError
from metaclaw.schedule.macos import PowerdWakeup, mac_input
from tests.schedule.stage import Stage
from tests.schedule.test_input_sources import following

RINGS_AFTER_S = 310.0
"""powerd's five minutes, and a little for noticing."""


@asynccontextmanager
async def listened(wakeup: InputWakeup) -> AsyncIterator[None]:
    with anyio.fail_after(60):
        await wakeup.begin()
        try:
            yield
        finally:
            wakeup.end()


class LibSystem:
    """notify(3) with a real pipe: a token is written to it in the order of the network whenever the name is posted."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.names: list[bytes] = []
        self.cancelled: list[int] = []
        self.reader, self.writer = -1, -1

    def post(self) -> None:
        os.write(self.writer, (7).to_bytes(4, "big"))

    def notify_register_file_descriptor(self, name: bytes, descriptor: ctypes.c_int, flags: int, token: ctypes.c_int) -> int:
        self.names.append(name)
        if self.status == 0:
            self.reader, self.writer = os.pipe()
            descriptor.value, token.value = self.reader, 7
        return self.status

    def notify_cancel(self, token: int) -> int:
        self.cancelled.append(token)
        os.close(self.reader)
        os.close(self.writer)
        return 0


@pytest.mark.anyio
async def test_on_macos_what_powerd_posts_rings_once() -> None:
    system = LibSystem()
    wakeup = PowerdWakeup(system)
    async with listened(wakeup):
        assert system.names == [b"com.apple.system.powermanagement.useractivity2"]
        assert not await wakeup.fires(0.0)
        system.post()
        system.post()
        assert await wakeup.fires(5.0)
        assert not await wakeup.fires(0.05)
    assert (system.cancelled, wakeup.is_heard) == ([7], False)


@pytest.mark.anyio
async def test_on_macos_what_is_posted_while_somebody_is_there_does_not_ring_later() -> None:
    system = LibSystem()
    wakeup = PowerdWakeup(system)
    async with listened(wakeup):
        assert not await wakeup.fires(0.0)
        wakeup.disarm()
        system.post()
        await asyncio.sleep(0.05)  # the loop takes it
        assert not await wakeup.fires(0.05)


@pytest.mark.anyio
async def test_on_macos_that_posts_no_more_the_source_says_that_it_is_asked() -> None:
    system = LibSystem()
    wakeup = PowerdWakeup(system)
    await wakeup.begin()
    os.close(system.writer)
    system.writer = os.open(os.devnull, os.O_RDONLY)
    with anyio.fail_after(60):
        assert not await wakeup.fires(0.05)
    assert not wakeup.is_heard
    with pytest.raises(SignalError, match="notify status 1000000"):
        await PowerdWakeup(LibSystem(status=1_000_000)).begin()


@pytest.mark.anyio
async def test_where_there_is_no_such_system_there_is_no_bell() -> None:
    with pytest.raises(SignalError, match="not a Mac"):
        await PowerdWakeup().begin()


class Quiet:
    """A wakeup that is heard and never rings."""

    is_heard = False

    async def begin(self) -> None:
        self.is_heard = True

    async def fires(self, within_s: float) -> bool:
        await asyncio.sleep(within_s)
        return False

    def disarm(self) -> None: ...

    def end(self) -> None:
        self.is_heard = False


@pytest.mark.anyio
async def test_a_ring_is_a_question_and_only_the_answer_says_whether_somebody_is_there() -> None:
    idle_s, system = 300.0, LibSystem()
    rang: list[bool] = []

    class Noted(PowerdWakeup):
        async def fires(self, within_s: float) -> bool:
            rang.append(await super().fires(within_s))
            return rang[-1]

    async def ask() -> float:
        return idle_s

    source = PolledSource("macOS", ask, Noted(system), reports_after_s=RINGS_AFTER_S)
    with anyio.fail_after(60):
        async with following(source) as heard:
            await heard.next()
            assert source.name == "input (macOS)"
            for idle_s in (300.0, 0.0):
                rang.clear()
                while True not in rang:
                    system.post()  # again, where it was not armed before the next question
                    await heard.next()
                assert heard.idles[-1] == idle_s
    assert heard.inputs == []  # that something rang is not yet input


def test_doctor_names_what_tells_and_what_is_asked() -> None:
    async def ask() -> float:
        return 3.0

    told, asked = PolledSource("a system", ask, Quiet()), PolledSource("macOS", ask, PowerdWakeup(LibSystem(status=1)))
    assert try_inputs([told, asked]) == [("input (a system)", None), ("input (macOS, asked)", None)]


@given(
    silences=st.lists(st.floats(min_value=1.0, max_value=900.0), min_size=1, max_size=6),
    idle_minutes=st.floats(min_value=0.2, max_value=30.0),
)
def test_no_window_is_open_in_a_silence_whose_end_the_system_would_not_tell(silences: list[float], idle_minutes: float) -> None:
    stage = Stage(sleep=["00:00-24:00"], idle_minutes=idle_minutes, cooldown_minutes=0, tells_after_s=RINGS_AFTER_S)
    for silence_s in silences:
        stage.keyboard.input()
        assert not stage.is_open
        early_s = min(silence_s, RINGS_AFTER_S - 1.0)
        assert not stage.go(seconds=early_s)
        if silence_s > RINGS_AFTER_S + 5.0:
            assert stage.go(seconds=silence_s - early_s)


@pytest.mark.anyio
async def test_a_mac_that_tells_is_waited_for_and_one_that_does_not_costs_no_windows() -> None:
    async def print_idle(_command: Sequence[str]) -> bytes:
        return b'"HIDIdleTime" = 20000000000'

    for status, tells_after_s in ((0, RINGS_AFTER_S), (1, 0.0)):
        source = mac_input(print_idle, wakeup=PowerdWakeup(LibSystem(status=status)))
        async with following(source) as heard:
            await heard.next()
            assert heard.idles == [20.0]
            assert source.tells_after_s == tells_after_s
