"""Enter the house where only its heavy part is installed: a GPU machine with torch and tokenizers, but not the proxy's libraries.

`metaclaw.engine` and `metaclaw.skills` open with modules that need msgspec and PyYAML. Of those libraries this benchmark uses one
function, JSON out of a tool's schema. Where a library is missing, the packages are entered without running their `__init__`, and a
stand-in with that one function takes its place; every module behind is the product's own.
"""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

import metaclaw

_PACKAGES: Final = ("engine", "skills")


def open_doors() -> tuple[str, ...]:
    """Make the modules this benchmark uses importable, and say which libraries are missing. Call it before importing them."""
    missing = tuple(name for name, _ in _STAND_INS if name not in sys.modules and importlib.util.find_spec(name) is None)
    if missing:
        for name in _PACKAGES:
            _enter_sideways(name)
    for name, make in _STAND_INS:
        if name in missing:
            sys.modules[name] = make(name)
    return missing


def _enter_sideways(name: str) -> None:
    package = ModuleType(f"metaclaw.{name}")
    package.__path__ = [str(Path(metaclaw.__path__[0]) / name)]
    sys.modules.setdefault(package.__name__, package)


class _Inert:
    """Something a module wants to have at its top and this benchmark never uses."""

    def __init__(self, *given: object) -> None:
        pass

    def __init_subclass__(cls, **options: object) -> None:
        pass


def _encode(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _msgspec(name: str) -> ModuleType:
    module = ModuleType(name)
    kinds = {kind: type(kind, (_Inert,), {}) for kind in ("Struct", "Raw")}
    encoding = ModuleType(f"{name}.json")
    vars(encoding).update(encode=_encode, Decoder=_Inert)
    vars(module).update(kinds, DecodeError=ValueError, json=encoding)
    return module


def _yaml(name: str) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(SafeLoader=_Inert, CSafeLoader=_Inert, SafeDumper=_Inert)
    return module


_STAND_INS: Final = (("msgspec", _msgspec), ("yaml", _yaml))
