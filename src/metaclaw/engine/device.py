"""Whether training would run on a GPU, answered without importing torch."""

import ctypes
import sys
from functools import cache
from importlib import metadata


def is_gpu(device: str) -> bool:
    """Whether the trainer process computes on a GPU when it is given this device: "auto", "cpu", "cuda" or "cuda:1"."""
    return device.startswith("cuda") or (device == "auto" and _has_cuda())


@cache
def _has_cuda() -> bool:
    """Whether the CUDA driver has a device for us and the installed torch can use one."""
    try:
        if metadata.version("torch").endswith("+cpu"):
            return False
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        devices = ctypes.c_int(0)
        return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(devices)) == 0 and devices.value > 0
    except (metadata.PackageNotFoundError, OSError, AttributeError):
        return False
