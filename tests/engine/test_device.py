"""Which device the trainer will use, as far as the main process can tell."""

import ctypes
from collections.abc import Iterator
from importlib import metadata

import pytest

from metaclaw.engine import trainer


class Driver:
    """A CUDA driver with so many devices."""

    def __init__(self, devices: int, error: int = 0) -> None:
        self._devices, self._error = devices, error

    def cuInit(self, flags: int) -> int:  # noqa: N802 (the driver's name)
        return self._error

    def cuDeviceGetCount(self, devices: ctypes.c_int) -> int:  # noqa: N802
        devices.value = self._devices
        return 0


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    trainer._has_cuda.cache_clear()
    yield
    trainer._has_cuda.cache_clear()


@pytest.mark.parametrize(
    ("torch", "driver", "is_gpu"),
    [
        ("2.9.0", Driver(1), True),
        ("2.9.0", Driver(0), False),
        ("2.9.0", Driver(1, error=100), False),
        ("2.9.0", None, False),
        ("2.9.0+cpu", Driver(1), False),
        (None, Driver(1), False),
    ],
)
def test_auto_is_a_gpu_where_driver_and_torch_have_one(
    torch: str | None, driver: Driver | None, is_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if torch is None:
            raise metadata.PackageNotFoundError(name)
        return torch

    def load(name: str) -> Driver:
        if driver is None:
            raise OSError(name)
        return driver

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(ctypes, "byref", lambda number: number)
    assert trainer.is_gpu("auto") is is_gpu


def test_a_named_device_is_believed() -> None:
    assert trainer.is_gpu("cuda")
    assert trainer.is_gpu("cuda:1")
    assert not trainer.is_gpu("cpu")
