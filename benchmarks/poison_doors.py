"""Enter the gate where anyio is not installed: what this benchmark uses of it is arithmetic, its package opens with what waits."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

import metaclaw

_PACKAGE: Final = "metaclaw.skills.gate"


def open_gate() -> bool:
    """Make `metaclaw.train.gate` and `metaclaw.train.live` importable; True where a stand-in was needed."""
    if _PACKAGE in sys.modules or importlib.util.find_spec("anyio") is not None:
        return False
    package = ModuleType(_PACKAGE)
    package.__path__ = [str(Path(metaclaw.__path__[0]) / "skills" / "gate")]
    sys.modules[_PACKAGE] = package
    vars(package)["Baseline"] = importlib.import_module(f"{_PACKAGE}.canary").Baseline
    return True
