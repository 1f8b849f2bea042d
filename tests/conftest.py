"""Shared fixtures: an isolated home folder, the event loop, and where recorded captures may lie."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.depth import IS_NIGHTLY


def pytest_configure() -> None:
    """Trust a single certificate, which nobody uses.

    An HTTP client loads everything it trusts when it is made: 50 ms with the system's list, and `httpx.get` makes one per call.
    """
    os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "support" / "unused_authority.pem")
    # A limit of wall-clock time on each example fails on a busy machine.
    settings.register_profile("metaclaw", deadline=None)
    settings.load_profile("metaclaw")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only `make nightly` runs. Long files first, the whole program's before others: spread over processes, the
    short ones fill what is left at the end."""
    if not IS_NIGHTLY:
        left_out = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    long = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in long, "e2e" not in item.path.parts))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a home folder of its own and sees none of the developer's settings."""
    folder = tmp_path / "home"
    for name in [
        name for name in os.environ if name.startswith("METACLAW_") and name not in ("METACLAW_SHARED", "METACLAW_TEST_CACHE")
    ]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("METACLAW_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def shared() -> Path:
    """Recorded requests of real clients and benchmark data, whose words are not ours to publish; tests skip without them."""
    default = Path(__file__).resolve().parents[2] / "shared"
    folder = Path(os.environ.get("METACLAW_SHARED", default))
    if not folder.is_dir():
        pytest.skip(f"needs recorded requests of real clients in {folder}/captures: docs/captures.md tells how to record them")
    return folder
