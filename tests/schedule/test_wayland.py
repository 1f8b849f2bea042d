"""Input under Wayland: a compositor's word as it comes, from a stand-in for what is rare, and from real ones."""

import asyncio
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, timedelta
from pathlib import Path

import anyio
import pytest

from metaclaw.config import sleep_range
from metaclaw.schedule.clock import SystemClock
from metaclaw.schedule.display import WaylandInput, socket_path
from metaclaw.schedule.forecast import Habits
from metaclaw.schedule.input import FallbackSource, InputReport, NotOfferedError, SignalError
from metaclaw.schedule.presence import SleepHours, Traffic, WindowRules
from metaclaw.schedule.training_windows import ScheduledWindows
from tests.schedule.compositor import EXT, KDE, SEAT, standing_in
from tests.schedule.test_input_sources import Heard, following

pytestmark = pytest.mark.anyio
IDLED, RESUMED = 0, 1
Press = Callable[[], None]


@pytest.mark.parametrize("piece", [1, 65_536])
@pytest.mark.parametrize(
    ("offered", "used", "request_", "has_seat_first"),
    [
        ([(EXT, 1)], (EXT, 1), 1, False),
        ([(EXT, 2)], (EXT, 2), 2, False),  # input alone, whatever keeps the screen awake
        ([(EXT, 9)], (EXT, 2), 2, False),
        ([(KDE, 1)], (KDE, 1), 0, True),
        ([(KDE, 1), (EXT, 1)], (EXT, 1), 1, False),
    ],
)
async def test_a_seat_that_falls_idle_and_is_used_is_heard_as_it_is_told(
    tmp_path: Path, offered: list[tuple[str, int]], used: tuple[str, int], request_: int, has_seat_first: bool, piece: int
) -> None:
    async with standing_in(tmp_path / "w", ("wl_compositor", 6), *offered, (SEAT, 9), piece=piece) as compositor:
        async with following(WaylandInput(tmp_path / "w")) as heard:
            (told_by,) = await compositor.until_asked(1)
            seat = next(ours for ours, (interface, _) in compositor.bound.items() if interface == SEAT)
            assert compositor.asked == [(request_, (told_by, *((seat, 1000) if has_seat_first else (1000, seat))))]
            assert sorted(compositor.bound.values()) == sorted([used, (SEAT, 1)])
            await compositor.say(told_by, IDLED)
            await heard.next()
            assert (heard.idles, heard.inputs) == ([1.0], [])
            await compositor.say(seat, 0, struct.pack("=I", 3))  # what a seat can do is of no interest
            await compositor.say(told_by, RESUMED)
            await heard.next()
            assert (len(heard.idles), len(heard.inputs)) == (1, 1)


async def test_nobody_is_there_only_when_every_seat_is_idle(tmp_path: Path) -> None:
    async with standing_in(tmp_path / "w", (EXT, 1), (SEAT, 7)) as compositor:
        async with following(WaylandInput(tmp_path / "w")) as heard:
            (first,) = await compositor.until_asked(1)
            await compositor.seat(8)
            _, second = await compositor.until_asked(2)
            await compositor.say(first, IDLED)
            await compositor.say(second, IDLED)
            await heard.next()
            assert heard.idles == [1.0]
            await compositor.say(second, RESUMED)
            await heard.next()
            assert len(heard.inputs) == 1
            await compositor.say(2, 1, struct.pack("=I", 8))  # the second seat is unplugged
            await compositor.say(first, RESUMED)
            await heard.next()
            assert len(heard.inputs) == 2


async def test_a_seat_that_does_not_fall_idle_is_in_use(tmp_path: Path) -> None:
    async with standing_in(tmp_path / "w", (EXT, 1), (SEAT, 7)) as compositor:
        async with following(WaylandInput(tmp_path / "w", look_every_s=0.02)) as heard:
            await compositor.until_asked(1)
            while len(heard.inputs) < 2:
                await heard.next()
            assert heard.idles == []


@pytest.mark.parametrize(
    ("offered", "said", "why"),
    [
        ([(SEAT, 7)], b"", "has no ext-idle-notify"),
        ([(EXT, 1)], b"", "no seat"),
        ([(EXT, 1), (SEAT, 7)], struct.pack("=III", 1, 24 << 16, 1) + struct.pack("=II", 3, 3) + b"no\0\0", r"refuses \(no\)"),
        ([(EXT, 1), (SEAT, 7)], struct.pack("=III", 2, 12 << 16 | 1, 2), "no seat"),
        ([(EXT, 1), (SEAT, 7)], bytes(8), "does not speak Wayland"),
        ([(EXT, 1), (SEAT, 7)], None, "has gone"),
    ],
)
async def test_what_a_compositor_cannot_do_or_does_wrong_is_said_in_words(
    tmp_path: Path, offered: list[tuple[str, int]], said: bytes | None, why: str
) -> None:
    async with standing_in(tmp_path / "w", *offered) as compositor:

        async def speak() -> None:
            await compositor.until_asked(1)
            if said is None:
                assert compositor.writer is not None
                compositor.writer.close()
            else:
                await compositor.speak(said)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                if said != b"":
                    group.start_soon(speak)
                with pytest.raises(SignalError, match=why):
                    await WaylandInput(tmp_path / "w").follow(Heard())


async def test_no_compositor_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SignalError, match="cannot be reached"):
        await WaylandInput(tmp_path / "none").follow(Heard())
    for name in ("WAYLAND_DISPLAY", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SignalError, match="no Wayland compositor"):
        await WaylandInput().follow(Heard())


async def test_the_compositor_of_the_session_is_found_by_name_or_where_it_usually_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert socket_path() is None
    async with standing_in(tmp_path / "wayland-0"):
        assert socket_path() == tmp_path / "wayland-0"
        monkeypatch.setenv("DISPLAY", ":0")
        assert socket_path() is None  # a session of X11: what lies there is another's, or left behind
    for name, path in (("wayland-3", tmp_path / "wayland-3"), ("/run/w", Path("/run/w"))):
        monkeypatch.setenv("WAYLAND_DISPLAY", name)
        assert socket_path() == path


class Scripted:
    """A source that does what it is told."""

    hears_all = True
    tells_after_s = 0.0

    def __init__(self, name: str, error: SignalError | None) -> None:
        self.name, self._error = name, error

    async def follow(self, report: InputReport) -> None:
        if self._error is not None:
            raise self._error
        report.input()


async def test_a_desktop_is_asked_only_where_its_compositor_does_not_tell() -> None:
    missing, gone = NotOfferedError("it has no ext-idle-notify"), SignalError("it has gone")
    for error, inputs, name in ((None, 1, "told"), (missing, 1, "asked")):
        heard, source = Heard(), FallbackSource(Scripted("told", error), Scripted("asked", None))
        await source.follow(heard)
        assert (len(heard.inputs), source.name) == (inputs, name)
    with pytest.raises(SignalError, match="it has gone"):
        await FallbackSource(Scripted("told", gone), Scripted("asked", None)).follow(Heard())
    with pytest.raises(SignalError, match="no ext-idle-notify; it has gone"):
        await FallbackSource(Scripted("told", missing), Scripted("asked", gone)).follow(Heard())


@pytest.fixture
def sway(tmp_path: Path) -> Iterator[tuple[Path, Press]]:
    """A real compositor without a screen (wlroots), which has KDE's protocol; it runs for nobody but root under another name."""
    for tool in ("sway", "wtype"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed: apt-get install sway wtype")
    runtime = Path("/tmp", f"metaclaw-sway-{os.getpid()}")  # a socket's path must be short, and another user's folder open to them
    runtime.mkdir(mode=0o700)
    user = 65534 if os.getuid() == 0 else None
    if user is not None:
        os.chown(runtime, user, user)
    settings = {"WLR_BACKENDS": "headless", "WLR_LIBINPUT_NO_DEVICES": "1", "WLR_RENDERER": "pixman"}
    surroundings = {**os.environ, **settings, "XDG_RUNTIME_DIR": str(runtime), "HOME": str(runtime)}
    surroundings.pop("WAYLAND_DISPLAY", None)
    command = ["sway", "--config", "/dev/null"]
    process = subprocess.Popen(command, env=surroundings, stderr=subprocess.DEVNULL, user=user, group=user, cwd="/")
    path = runtime / "wayland-1"

    def press() -> None:
        subprocess.run(["wtype", "x"], env={**surroundings, "WAYLAND_DISPLAY": str(path)}, check=True, timeout=10)

    try:
        _until(path.is_socket, process)
        yield path, press
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(runtime)


@pytest.fixture
def kwin(tmp_path: Path, display: str) -> Iterator[tuple[Path, Press]]:
    """KDE's compositor in a window of a real X server, whose keys and mouse it hears; it has ext-idle-notify."""
    program = shutil.which("kwin_wayland")
    if program is None:
        pytest.skip("kwin_wayland is not installed: scripts/test-tools kde")
    ours = shutil.copyfile(
        program, tmp_path / "kwin_wayland"
    )  # without the right to set its priority, which not everybody may give
    Path(ours).chmod(0o700)
    path, folder = Path("/tmp", f"metaclaw-kwin-{os.getpid()}"), tmp_path / "home"
    folder.mkdir(mode=0o700)
    surroundings = {**os.environ, "DISPLAY": display, "KWIN_COMPOSE": "Q", "XDG_RUNTIME_DIR": str(folder), "HOME": str(folder)}
    command = [str(ours), "--x11-display", display, "--width", "320", "--height", "240", "--no-lockscreen", "--socket", str(path)]
    process = subprocess.Popen(command, env=surroundings, stderr=subprocess.DEVNULL)

    def do(*what: str) -> None:
        subprocess.run(["xdotool", *what], env=surroundings, check=True, timeout=10)

    try:
        _until(path.is_socket, process)
        do("mousemove", "100", "100")  # keys go to the window under the pointer
        yield path, lambda: do("key", "a")
    finally:
        process.terminate()
        process.wait(10)
        path.unlink(missing_ok=True)
        Path(f"{path}.lock").unlink(missing_ok=True)


def _until(is_there: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    for _ in range(3000):
        if is_there():
            return
        assert process.poll() is None, "the compositor has ended"
        time.sleep(0.01)  # until it listens; nothing tells
    raise AssertionError("the compositor does not come up")


@pytest.mark.parametrize("compositor", ["sway", "kwin"])
async def test_a_real_key_under_a_real_compositor_is_heard_within_a_second_by_event(
    compositor: str, request: pytest.FixtureRequest
) -> None:
    path, press = request.getfixturevalue(compositor)
    async with following(WaylandInput(path, idle_after_s=0.2)) as heard:
        while not heard.idles:
            await heard.next()
        assert heard.idles == [0.2]
        heard.inputs.clear()
        pressed = time.monotonic()
        await anyio.to_thread.run_sync(press)
        while not heard.inputs:
            await heard.next()
        assert heard.inputs[0] - pressed < 5
        while len(heard.idles) < 2:
            await heard.next()


@pytest.mark.parametrize("compositor", ["sway", "kwin"])
async def test_a_real_key_under_wayland_shuts_a_running_window_within_a_second(
    compositor: str, request: pytest.FixtureRequest
) -> None:
    path, press = request.getfixturevalue(compositor)
    clock = SystemClock()
    windows = ScheduledWindows(
        habits=Habits(idle_s=0.6, least_s=60, zone=lambda: UTC, clock=clock),
        traffic=Traffic(),
        sources=[WaylandInput(path, idle_after_s=0.2)],
        sleep=SleepHours([sleep_range("00:00-24:00")], lambda: UTC),
        rules=WindowRules(timedelta(0), timedelta(0)),
        clock=clock,
        announce=lambda kind, facts: None,
    )
    shut = asyncio.Event()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(windows.run)
            while not windows.inputs[0].knows:
                await anyio.sleep(0.01)  # until the compositor has answered
            await windows.until_open()
            windows.on_change(lambda window: shut.set() if window is None else None)
            pressed = time.monotonic()
            group.start_soon(anyio.to_thread.run_sync, press)
            await shut.wait()
            assert time.monotonic() - pressed < 5
            assert windows.shut_because.startswith("input")
            group.cancel_scope.cancel()


async def test_a_compositor_that_goes_ends_the_source_and_not_the_program(sway: tuple[Path, Press]) -> None:
    heard, (path, _) = Heard(), sway
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:

            async def leave() -> None:
                await heard.next()
                command = ["swaymsg", "--socket", str(next(path.parent.glob("sway-ipc*"))), "exit"]
                await anyio.run_process(command, check=False)

            group.start_soon(leave)
            with pytest.raises(SignalError, match="has gone"):
                await WaylandInput(path, idle_after_s=0.1).follow(heard)
