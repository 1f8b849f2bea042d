"""Shared fixtures: an isolated home folder, the event loop, and where recorded captures may lie."""

import gc
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from tests.support import forks
from tests.support.depth import IS_NIGHTLY


def pytest_configure() -> None:
    """Trust a single certificate, which nobody uses.

    An HTTP client loads everything it trusts when it is made: 50 ms with the system's list, and
    `httpx.get` makes one per call."""
    os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "support" / "unused_authority.pem")
    # Models in miniature are computed faster by one thread; several would spin while they wait for
    # each other.
    os.environ["OMP_NUM_THREADS"] = "1"
    # A limit of wall-clock time on each example fails on a busy machine. The same examples each
    # time, so that a failure belongs to the change it is found with; each night looks for new ones.
    settings.register_profile("usual", deadline=None, max_examples=15, derandomize=True)
    settings.register_profile("nightly", deadline=None, max_examples=500)
    settings.load_profile("nightly" if IS_NIGHTLY else "usual")
    if not IS_NIGHTLY:
        # Examples would also be drawn from the constants of all modules that are loaded, and so
        # depend on which tests are run, and on which ran before.
        providers._get_local_constants = lambda: providers._local_constants
    forks.fork_engines()
    _keep_files_in_memory()
    # Importing makes a million objects that stay: looking through them again and again would take
    # seconds in each process.
    gc.disable()


_MEMORY: Final = "/dev/shm"
_ROOM_BYTES: Final = 4 << 30


def _keep_files_in_memory() -> None:
    """Make temporary folders in memory where there is room for them: on a disk every commit of a
    database and every folder that is removed waits for milliseconds, on a busy one much longer."""
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK):
        return
    is_executable = not os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC
    if is_executable and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES:
        os.environ["TMPDIR"] = tempfile.tempdir = _MEMORY


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only another make target runs. Long files first, the whole program's before
    others: spread over processes, the short ones fill what is left at the end."""
    left_out = {item for item in items if _is_of_another_target(item)}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]
    long = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in long, "e2e" not in item.path.parts))


def _is_of_another_target(item: pytest.Item) -> bool:
    of_target = item.get_closest_marker("of_target")
    return (of_target is not None and not of_target.args[1]) or (
        not IS_NIGHTLY and item.get_closest_marker("nightly") is not None
    )


def pytest_collection_finish() -> None:
    """Spare the garbage collector what stays to the end, the imported modules and the tests, and
    let it work again.
    """
    gc.freeze()
    gc.enable()


def pytest_report_header() -> str:
    """Say where the tests are that are left out."""
    return (
        "run by make targets of their own: test-agents, test-browser, test-openclaw, test-tinker,"
        " test-vllm, test-wheel, nightly"
    )


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a home folder of its own and sees none of the developer's settings."""
    folder = tmp_path / "home"
    for name in [
        name
        for name in os.environ
        if name.startswith("METACLAW_") and name not in ("METACLAW_SHARED", "METACLAW_TEST_CACHE")
    ]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("METACLAW_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def shared() -> Path:
    """Recorded requests of real clients and benchmark data, whose words are not ours to publish;
    tests skip without them.
    """
    default = Path(__file__).resolve().parents[2] / "shared"
    folder = Path(os.environ.get("METACLAW_SHARED", default))
    if not folder.is_dir():
        pytest.skip(
            f"needs recorded requests of real clients in {folder}/captures: docs/captures.md tells"
            " how to record them"
        )
    return folder
