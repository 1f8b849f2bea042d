"""Sources of input against the real thing: an X server with real keys, a terminal."""

import asyncio
import os
import pty
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, timedelta
from pathlib import Path

import anyio
import pytest

from metaclaw.config import sleep_range
from metaclaw.schedule.clock import SystemClock
from metaclaw.schedule.forecast import Habits, Patience
from metaclaw.schedule.input import Inactivity, InputSource, SignalError, TtyInput
from metaclaw.schedule.presence import SleepHours, Traffic, WindowThresholds
from metaclaw.schedule.training_windows import ScheduledWindows
from metaclaw_desktop.screen import x11_input
from tests.schedule.stage import NOON, HandClock, Objector


class Heard:
    """A report that lets a test wait."""

    def __init__(self) -> None:
        self.idles: list[float] = []
        self.inputs: list[float] = []
        self.locks: list[bool] = []
        self.changed = asyncio.Event()

    def input(self) -> None:
        self.inputs.append(time.monotonic())
        self.changed.set()

    def idle(self, seconds: float) -> None:
        self.idles.append(seconds)
        self.changed.set()

    def lock(self, is_locked: bool) -> None:
        self.locks.append(is_locked)
        self.changed.set()

    def ask_again_s(self) -> float:
        return 0.3

    async def next(self) -> None:
        with anyio.fail_after(60):
            await self.changed.wait()
        self.changed.clear()


@asynccontextmanager
async def following(source: InputSource) -> AsyncIterator[Heard]:
    heard = Heard()
    async with anyio.create_task_group() as group:
        group.start_soon(source.follow, heard)
        yield heard
        group.cancel_scope.cancel()


def press(display: str) -> None:
    subprocess.run(
        ["xdotool", "key", "a"], env={**os.environ, "DISPLAY": display}, check=True, timeout=60
    )


@pytest.mark.anyio
async def test_under_x11_a_key_is_heard_within_a_second_by_event(display: str) -> None:
    async with following(x11_input({"DISPLAY": display})) as heard:
        await heard.next()
        quiet_s = heard.idles[0]
        await anyio.sleep(
            0.4
        )  # the server itself must have been idle for a moment: a real clock cannot be turned
        pressed = time.monotonic()
        await anyio.to_thread.run_sync(press, display)
        while heard.idles[-1] >= quiet_s:
            await heard.next()
        assert time.monotonic() - pressed < 4  # sooner than it prints without an event
        assert heard.idles[-1] < 1.0


@pytest.mark.anyio
async def test_an_x_server_that_goes_away_ends_the_source_and_not_the_program(
    server: tuple[str, "subprocess.Popen[bytes]"],
) -> None:
    heard, (display, process) = Heard(), server
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:

            async def leave() -> None:
                await heard.next()
                process.terminate()

            group.start_soon(leave)
            with pytest.raises(SignalError, match=r"X server|X connection"):
                await x11_input({"DISPLAY": display}).follow(heard)


@pytest.mark.anyio
@pytest.mark.parametrize("display_name", ["", "nonsense", ":98765"])
async def test_no_x_server_is_said_in_words(display_name: str) -> None:
    with pytest.raises(SignalError, match="the X display cannot be reached"):
        await x11_input({"DISPLAY": display_name}).follow(Heard())


@pytest.mark.anyio
async def test_on_a_terminal_what_is_typed_is_heard_at_once(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    try:
        devices = tmp_path / "dev"
        (devices / "pts").mkdir(parents=True)
        (devices / "pts" / "7").symlink_to(os.ttyname(slave))
        async with following(TtyInput(devices)) as heard:
            await heard.next()
            assert heard.inputs == []
            typed = time.monotonic()
            os.write(master, b"ls\n")
            os.read(slave, 10)  # as a shell does
            while not heard.inputs:
                await heard.next()
            assert heard.inputs[0] - typed < 1.0
    finally:
        os.close(master)
        os.close(slave)


@pytest.mark.anyio
async def test_without_a_terminal_nobody_is_logged_in(tmp_path: Path) -> None:
    with pytest.raises(SignalError, match="no user is logged in"):
        await TtyInput(tmp_path).follow(Heard())


@pytest.mark.anyio
async def test_a_source_that_fails_is_begun_again_later_each_time() -> None:
    class Broken:
        name, hears_all, is_screen = "broken", True, True

        async def follow(self, report: object) -> None:
            raise SignalError("there is no X display")

    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 12:
            raise TimeoutError

    signal = Inactivity(
        Broken(),
        clock=HandClock(),
        patience=lambda: Patience(300, 1800),
        hear=lambda ago_s: None,
        sleep=sleep,
    )
    with pytest.raises(TimeoutError):
        await signal.follow()
    assert pauses[:3] == [2.0, 4.0, 8.0]
    assert max(pauses) == 300.0
    reading = signal.read(NOON)
    assert (reading.presence.value, reading.why) == ("unknown", "there is no X display")
    assert not signal.knows


@pytest.mark.anyio
async def test_a_real_key_shuts_a_running_window_within_a_second(display: str) -> None:
    clock = SystemClock()
    windows = ScheduledWindows(
        habits=Habits(idle_s=0.6, least_s=60, clock=clock),
        traffic=Traffic(),
        sources=[x11_input({"DISPLAY": display})],
        sleep=SleepHours([sleep_range("00:00-24:00")], lambda: UTC),
        machine_load=Objector(),
        rules=WindowThresholds(timedelta(0), timedelta(0)),
        clock=clock,
        announce=lambda kind, facts: None,
    )
    shut = asyncio.Event()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(windows.run)
            while not windows.inputs[0].knows:
                await anyio.sleep(0.01)  # until the X server has answered
            await windows.until_open()
            windows.on_change(lambda window: shut.set() if window is None else None)
            pressed = time.monotonic()
            group.start_soon(anyio.to_thread.run_sync, press, display)
            await shut.wait()
            assert time.monotonic() - pressed < 5
            assert windows.shut_because.startswith("input")
            group.cancel_scope.cancel()
