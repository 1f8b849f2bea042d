"""Input under Wayland: swayidle under real compositors, and programs that print as it does."""

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, timedelta
from pathlib import Path

import anyio
import pytest

from metaclaw.config import sleep_range
from metaclaw.schedule.clock import SystemClock
from metaclaw.schedule.forecast import Habits
from metaclaw.schedule.input import SignalError
from metaclaw.schedule.presence import SleepHours, Traffic, WindowThresholds
from metaclaw.schedule.training_windows import ScheduledWindows
from metaclaw_desktop.screen import PrintedInput, swayidle_input
from tests.schedule.stage import Objector
from tests.schedule.test_input_sources import Heard, following

pytestmark = pytest.mark.anyio
Press = Callable[[], None]


async def test_a_compositor_that_is_not_there_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(SignalError, match=r"(?i)wayland|display|swayidle is not installed"):
        await swayidle_input({"WAYLAND_DISPLAY": str(tmp_path / "none")}).follow(Heard())


async def test_without_swayidle_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "sh").symlink_to(shutil.which("sh") or "/bin/sh")
    with pytest.raises(SignalError, match="swayidle is not installed"):
        await swayidle_input({"PATH": str(tmp_path)}).follow(Heard())


async def test_input_that_does_not_end_is_heard_again_and_again() -> None:
    async with following(
        PrintedInput("toy", ["sh", "-c", "echo 0; read _"], look_every_s=0.02)
    ) as heard:
        while len(heard.idles) < 3:
            await heard.next()
        assert set(heard.idles) == {0.0}


async def test_a_program_that_prints_no_numbers_is_no_source() -> None:
    with pytest.raises(SignalError, match="its program has ended"):
        await PrintedInput("toy", ["sh", "-c", "echo hello"]).follow(Heard())


@pytest.fixture
def sway(tmp_path: Path) -> Iterator[tuple[Path, Press]]:
    """A real compositor without a screen (wlroots), which has KDE's protocol; it runs for nobody
    but root under another name.
    """
    for tool in ("sway", "swayidle", "wtype"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed: apt-get install sway swayidle wtype")
    runtime = Path(
        "/tmp", f"metaclaw-sway-{os.getpid()}"
    )  # a socket's path must be short, and another user's folder open to them
    runtime.mkdir(mode=0o700)
    user = 65534 if os.getuid() == 0 else None
    if user is not None:
        os.chown(runtime, user, user)
    settings = {
        "WLR_BACKENDS": "headless",
        "WLR_LIBINPUT_NO_DEVICES": "1",
        "WLR_RENDERER": "pixman",
    }
    surroundings = {**os.environ, **settings, "XDG_RUNTIME_DIR": str(runtime), "HOME": str(runtime)}
    surroundings.pop("WAYLAND_DISPLAY", None)
    command = ["sway", "--config", "/dev/null"]
    process = subprocess.Popen(
        command, env=surroundings, stderr=subprocess.DEVNULL, user=user, group=user, cwd="/"
    )
    path = runtime / "wayland-1"

    def press() -> None:
        subprocess.run(
            ["wtype", "x"],
            env={**surroundings, "WAYLAND_DISPLAY": str(path)},
            check=True,
            timeout=10,
        )

    try:
        _until(path.is_socket, process)
        yield path, press
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(runtime)


@pytest.fixture
def kwin(tmp_path: Path, display: str) -> Iterator[tuple[Path, Press]]:
    """KDE's compositor in a window of a real X server, whose keys and mouse it hears; it has
    ext-idle-notify.
    """
    program = shutil.which("kwin_wayland")
    if program is None or shutil.which("swayidle") is None:
        pytest.skip("kwin_wayland or swayidle is not installed: scripts/test-tools kde")
    ours = shutil.copyfile(
        program, tmp_path / "kwin_wayland"
    )  # without the right to set its priority, which not everybody may give
    Path(ours).chmod(0o700)
    path, folder = Path("/tmp", f"metaclaw-kwin-{os.getpid()}"), tmp_path / "home"
    folder.mkdir(mode=0o700)
    surroundings = {
        **os.environ,
        "DISPLAY": display,
        "KWIN_COMPOSE": "Q",
        "XDG_RUNTIME_DIR": str(folder),
        "HOME": str(folder),
    }
    command = [
        str(ours),
        "--x11-display",
        display,
        "--width",
        "320",
        "--height",
        "240",
        "--no-lockscreen",
        "--socket",
        str(path),
    ]
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
async def test_a_real_key_under_a_real_compositor_is_heard_by_event(
    compositor: str, request: pytest.FixtureRequest
) -> None:
    path, press = request.getfixturevalue(compositor)
    async with following(swayidle_input({"WAYLAND_DISPLAY": str(path)})) as heard:
        while 1.0 not in heard.idles:
            await heard.next()
        heard.idles.clear()
        pressed = time.monotonic()
        await anyio.to_thread.run_sync(press)
        while not heard.idles:
            await heard.next()
        assert heard.idles[0] == 0.0
        assert time.monotonic() - pressed < 5
        while 1.0 not in heard.idles:
            await heard.next()


@pytest.mark.parametrize("compositor", ["sway", "kwin"])
async def test_a_real_key_under_wayland_shuts_a_running_window_within_a_second(
    compositor: str, request: pytest.FixtureRequest
) -> None:
    path, press = request.getfixturevalue(compositor)
    clock = SystemClock()
    windows = ScheduledWindows(
        habits=Habits(idle_s=1.5, least_s=60, clock=clock),
        traffic=Traffic(),
        sources=[swayidle_input({"WAYLAND_DISPLAY": str(path)})],
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
                await anyio.sleep(0.01)  # until the compositor has answered
            await windows.until_open()
            windows.on_change(lambda window: shut.set() if window is None else None)
            pressed = time.monotonic()
            group.start_soon(anyio.to_thread.run_sync, press)
            await shut.wait()
            assert time.monotonic() - pressed < 5
            assert windows.shut_because.startswith("input")
            group.cancel_scope.cancel()


async def test_a_compositor_that_goes_ends_the_source_and_not_the_program(
    sway: tuple[Path, Press],
) -> None:
    heard, (path, _) = Heard(), sway
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:

            async def leave() -> None:
                await heard.next()
                command = ["swaymsg", "--socket", str(next(path.parent.glob("sway-ipc*"))), "exit"]
                await anyio.run_process(command, check=False)

            group.start_soon(leave)
            with pytest.raises(SignalError):
                await swayidle_input({"WAYLAND_DISPLAY": str(path)}).follow(heard)
