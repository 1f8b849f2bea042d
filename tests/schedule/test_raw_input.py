"""The bell on Windows behind the calls of user32.dll, as they were recorded."""

import asyncio
import ctypes
import queue
import threading
from datetime import UTC, timedelta
from pathlib import Path

import anyio
import pytest

from metaclaw.config import sleep_range
from metaclaw.schedule.clock import SystemClock
from metaclaw.schedule.decide import Rules
from metaclaw.schedule.habits import Habits
from metaclaw.schedule.signals.asking import Bell, ToldAndAsked
from metaclaw.schedule.signals.inactivity import SignalError
from metaclaw.schedule.signals.raw_input import RawInputBell
from metaclaw.schedule.signals.sleep import SleepHours
from metaclaw.schedule.signals.traffic import Traffic
from metaclaw.schedule.signals.user32 import Handle, Message, RawInputDevice
from metaclaw.schedule.signals.windows_os import windows_input
from metaclaw.schedule.windows import Windows
from tests.schedule.test_bells import listened
from tests.schedule.test_input_sources import following

RECORDINGS = Path(__file__).parent / "recordings"
WINDOW = 0x10020
SINK, REMOVE = 0x100, 0x1
WM_INPUT = 0xFF


class Desktop:
    """user32.dll as scripts/record-last-input found it: it tells of input only while asked to; taking back must name no window."""

    def __init__(self, *, makes_windows: bool = True, refuses_from: int = 1000) -> None:
        self.makes_windows, self.refuses_from = makes_windows, refuses_from
        self.messages: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.asked: list[tuple[int, Handle]] = []
        self.target: Handle = None
        self.finished: list[int] = []
        self.is_destroyed = False
        self.changed = threading.Event()

    def tells(self) -> bool:
        """Whether it would tell of input now."""
        return self.target is not None

    def touch(self) -> None:
        """A key or the mouse, in another program's window."""
        if self.tells():
            self.messages.put(WM_INPUT)

    def CreateWindowExW(  # noqa: N802
        self,
        extended: int,
        kind: str,
        title: str | None,
        style: int,
        x: int,
        y: int,
        width: int,
        height: int,
        parent: Handle,
        menu: Handle,
        instance: Handle,
        extra: Handle,
    ) -> Handle:
        assert (kind, parent) == ("STATIC", -3)  # a kind that is always there, and a window that only gets messages
        return WINDOW if self.makes_windows else None

    def RegisterRawInputDevices(self, devices: ctypes.Array[RawInputDevice], number: int, size: int) -> int:  # noqa: N802
        assert [(one.page, one.usage) for one in devices] == [(1, 2), (1, 6)]  # the mouse, the keyboard
        assert (number, size) == (2, 16)
        (ask,) = {(one.flags, one.target) for one in devices}
        self.asked.append(ask)
        if len(self.asked) > self.refuses_from or ask == (REMOVE, WINDOW):
            return 0
        self.target = ask[1] if ask[0] == SINK else None
        self.changed.set()
        return 1

    def GetMessageW(self, message: Message, window: Handle, first: int, last: int) -> int:  # noqa: N802
        message.window, message.message = WINDOW, self.messages.get(timeout=10)
        return 1 if message.message else -1

    def PostMessageW(self, window: Handle, message: int, word: int, long: int) -> int:  # noqa: N802
        assert window == WINDOW
        self.messages.put(message)
        return 1

    def DefWindowProcW(self, window: Handle, message: int, word: int, long: int) -> int:  # noqa: N802
        self.finished.append(message)
        return 0

    def DestroyWindow(self, window: Handle) -> int:  # noqa: N802
        self.is_destroyed = True
        return 1


async def armed(desktop: Desktop, bell: Bell) -> None:
    """Arm it, and wait until Windows was asked."""
    desktop.changed.clear()
    assert not await bell.rings(0.0)
    assert await anyio.to_thread.run_sync(desktop.changed.wait, 5)


@pytest.mark.skipif(ctypes.sizeof(ctypes.c_void_p) != 8, reason="the recording is of a machine of 64 bits")
def test_raw_input_was_recorded_as_the_bell_uses_it() -> None:
    """Under Wine, with real keys: a background program is told within some milliseconds, and of nothing once it has taken back what
    it asked for, although the mouse moved fifteen times after the first."""
    lines = [
        (word, int(first), int(second))
        for word, first, second in map(str.split, (RECORDINGS / "raw_input.txt").read_text().splitlines())
    ]
    assert ("sizes", ctypes.sizeof(RawInputDevice), ctypes.sizeof(Message)) == lines[0]
    answers = {
        (word, first) for word, first, _ in lines if word in ("window", "refused", "armed", "disarmed", "after", "destroyed")
    }
    assert answers == {("window", 1), ("refused", 0), ("armed", 1), ("disarmed", 1), ("after", 0), ("destroyed", 1)}
    told = [now - last for word, now, last in lines if word == "input"]
    assert len(told) == 3
    assert all(0 <= late_ms < 50 for late_ms in told)  # GetLastInputInfo knows of it as soon as it is told


def test_in_a_python_for_windows_the_bell_was_heard_as_here() -> None:
    """Recorded by scripts/record-raw-input: our own modules under Wine, keys and the mouse in another program's window. After each
    ring stands how long ago the input then was, in seconds; Wine and Python were emulated, on a busy machine."""
    lines = [line.split() for line in (RECORDINGS / "raw_input_python.txt").read_text().splitlines()]
    pressed = [what for word, what, *_ in (line for line in lines if line[0] == "press")]
    assert pressed == ["key", "mouse", "key", "nothing", "mouse", "nothing"]  # the second mouse while it was disarmed
    assert [line[0] for line in lines if line[0] in ("rang", "silent")] == ["rang"] * 3 + ["silent"] * 2
    assert all(float(line[1]) < 0.5 for line in lines if line[0] == "rang")
    assert ["threads"] in lines  # none was left
    assert [" ".join(line[1:]) for line in lines if line[0] == "named"] == ["input (Windows)", "input (Windows, asked)"]


@pytest.mark.anyio
async def test_on_windows_the_first_input_rings_once_and_nothing_is_asked_for_any_more() -> None:
    desktop = Desktop()
    bell = RawInputBell(desktop)
    async with listened(bell):
        assert not desktop.tells()  # nothing is asked for before it is armed
        await armed(desktop, bell)
        assert desktop.tells()
        for _ in range(50):
            desktop.touch()
        assert await bell.rings(5.0)
        assert not desktop.tells()
        await armed(desktop, bell)
        assert not await bell.rings(0.05)  # of those fifty, the others were told before it was armed again
        desktop.touch()
        assert await bell.rings(5.0)
    assert (desktop.is_destroyed, desktop.tells(), bell.is_heard) == (True, False, False)
    assert desktop.finished.count(WM_INPUT) == 51  # and each was freed
    assert not [one for one in threading.enumerate() if one.name == "raw-input"]


@pytest.mark.anyio
async def test_on_windows_a_bell_that_is_armed_is_taken_back_when_somebody_is_there_and_when_it_ends() -> None:
    desktop = Desktop()
    bell = RawInputBell(desktop)
    async with listened(bell):
        await armed(desktop, bell)
        desktop.changed.clear()
        bell.disarm()
        assert await anyio.to_thread.run_sync(desktop.changed.wait, 5)
        assert desktop.asked[-1] == (REMOVE, None)
        await armed(desktop, bell)
    assert desktop.asked[-1] == (REMOVE, None)


@pytest.mark.anyio
@pytest.mark.parametrize("desktop", [Desktop(makes_windows=False), Desktop(refuses_from=0)])
async def test_on_windows_that_refuses_input_is_only_asked_for(desktop: Desktop) -> None:
    async def ask() -> float:
        return 3.0

    source = ToldAndAsked("Windows", ask, RawInputBell(desktop))
    async with following(source) as heard:
        await heard.next()
        assert source.name == "input (Windows, asked)"
    assert heard.idles[0] == 3.0
    with pytest.raises(SignalError, match="does not let this program be told"):
        await RawInputBell(desktop).begin()


@pytest.mark.anyio
async def test_on_windows_that_refuses_later_the_source_says_that_it_is_asked() -> None:
    desktop = Desktop(refuses_from=2)  # to ask and to take back once works
    bell = RawInputBell(desktop)
    async with listened(bell):
        assert not await bell.rings(0.0)
        while bell.is_heard:  # what is waited for comes from a thread, within the time that `listened` gives
            await anyio.sleep(0.001)
        assert desktop.asked == [(SINK, WINDOW), (REMOVE, None), (SINK, WINDOW)]


@pytest.mark.anyio
async def test_on_windows_that_takes_the_window_away_the_source_says_that_it_is_asked() -> None:
    desktop = Desktop()
    bell = RawInputBell(desktop)
    async with listened(bell):
        await armed(desktop, bell)
        desktop.messages.put(0)
        while bell.is_heard:  # as above
            await anyio.sleep(0.001)
    assert (desktop.is_destroyed, desktop.tells()) == (True, False)


@pytest.mark.anyio
async def test_a_touch_on_windows_shuts_a_running_window_and_a_ring_for_nothing_leaves_it_open() -> None:
    clock, desktop, shut = SystemClock(), Desktop(), asyncio.Event()
    ticks = [0, 300_000]  # the last input, and now

    windows = Windows(
        habits=Habits(idle_s=0.6, least_s=60, zone=lambda: UTC, clock=clock),
        traffic=Traffic(),
        sources=[windows_input(lambda: (ticks[0], ticks[1]), bell=RawInputBell(desktop))],
        sleep=SleepHours([sleep_range("00:00-24:00")], lambda: UTC),
        rules=Rules(timedelta(0), timedelta(0)),
        clock=clock,
        announce=lambda kind, facts: None,
    )
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(windows.run)
            while not windows.inputs[0].knows:
                await anyio.sleep(0.01)  # until the first answer
            await windows.until_open()
            windows.on_change(lambda window: shut.set() if window is None else None)
            while not desktop.tells():
                await anyio.sleep(0.01)  # until its thread has armed it
            desktop.touch()
            while desktop.tells():
                await anyio.sleep(0.01)  # until its thread has heard it
            while not desktop.tells():
                await anyio.sleep(0.01)
            assert windows.window is not None  # asked, and nobody was there
            ticks[0] = ticks[1]
            desktop.touch()
            await shut.wait()
            assert windows.inputs[0].name == "input (Windows)"
            assert windows.shut_because.startswith("input")
            group.cancel_scope.cancel()
    assert desktop.is_destroyed
