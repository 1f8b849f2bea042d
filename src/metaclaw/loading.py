"""Names of a package that are imported when they are first used, because their modules bring much
along: the start of the program would wait for what it does not need.
"""

from collections.abc import Callable, Mapping
from importlib import import_module


def loaded_on_use(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """The `__getattr__` of a package: `modules` gives the module of each name."""

    def load(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    return load
