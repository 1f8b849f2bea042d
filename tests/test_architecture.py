"""docs/architecture.md names modules that exist; front doors open, modules do not import each other
in a circle, a class name means one thing, and conditional expressions are not nested.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "metaclaw"
PACKAGES = {folder.name for folder in SOURCE.iterdir() if folder.is_dir()}


def named_modules(page: str) -> set[str]:
    """Paths such as `store/ledger` in backticks, whose first part is a package."""
    found = re.findall(
        r"`([a-z_]+(?:/[a-z_]+)+)/?(?:\.[A-Za-z]+)?`", (ROOT / "docs" / page).read_text()
    )
    return {path for path in found if path.split("/")[0] in PACKAGES}


def test_every_module_that_the_architecture_names_exists() -> None:
    named = named_modules("architecture.md")
    assert len(named) > 20
    assert {
        path
        for path in named
        if not (SOURCE / f"{path}.py").is_file() and not (SOURCE / path).is_dir()
    } == set()


@pytest.mark.parametrize("package", ["app", "engine", "learn", "training"])
def test_what_a_front_door_loads_on_use_is_what_type_checkers_see(package: str) -> None:
    tree = ast.parse((SOURCE / package / "__init__.py").read_text("utf-8"))
    (checked,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    front_door = import_module(f"metaclaw.{package}")
    assert set(front_door._LOADED_ON_USE) == seen
    assert all(hasattr(front_door, name) for name in seen)


def test_a_public_class_name_means_one_thing() -> None:
    places = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path.relative_to(SOURCE).as_posix())
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(path: Path, modules: Mapping[str, Path]) -> set[str]:
    """The program's modules that a file imports, anywhere in it, also for type checkers only."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            package = (node.module or "").removeprefix("metaclaw").removeprefix(".")
            inner = {f"{package}.{alias.name}".removeprefix(".") for alias in node.names}
            found |= inner if inner & modules.keys() else {package}
    return found & modules.keys() - {module_name(path)}


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    modules = {module_name(path): path for path in SOURCE.rglob("*.py")}
    graph = {name: set(imported_modules(path, modules)) for name, path in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(reversed(error.args[1])))


def test_a_conditional_expression_is_never_nested_in_another() -> None:
    folders = ["src", "tests", "benchmarks", "bench", "plugins"]
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.IfExp)
        and any(isinstance(inner, ast.IfExp) for inner in (node.body, node.orelse, node.test))
    ]
    assert found == []


def test_no_file_of_tests_imports_a_client_library_before_a_test_needs_it() -> None:
    """Every worker imports all files to collect their tests; these libraries take seconds each."""
    slow = {"anthropic", "google", "openai", "transformers"}
    found = {
        path.relative_to(ROOT).as_posix(): name
        for folder in ("tests", "bench/tests", "plugins")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", None) or node.names[0].name]
        if name.partition(".")[0] in slow
    }
    assert found == {}
