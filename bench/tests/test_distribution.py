"""Two distributions: what each wheel holds, and that neither reaches into the other."""

import ast
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def wheel_files(project: Path, out: Path) -> list[str]:
    """What is in the project's wheel."""
    pytest.importorskip(
        "hatchling",
        reason="building wheels needs hatchling, which `make install` installs for the tests",
    )
    code = f"from hatchling.build import build_wheel; print(build_wheel({str(out)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=project,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ},
    )
    return zipfile.ZipFile(out / done.stdout.split()[-1]).namelist()


def test_the_products_wheel_has_no_benchmark_in_it(tmp_path: Path) -> None:
    files = wheel_files(ROOT, tmp_path)
    assert "metaclaw/plugin.py" in files
    assert [name for name in files if "bench" in name] == []


def test_the_benchmarks_wheel_adds_the_command_and_has_its_data(tmp_path: Path) -> None:
    files = wheel_files(ROOT / "bench", tmp_path)
    assert {
        "metaclaw_bench/cli.py",
        "metaclaw_bench/defects.json",
        "metaclaw_bench/report/style.css",
    } <= set(files)
    assert not [name for name in files if name.startswith(("metaclaw/", "tests"))]
    entry_points = tomllib.loads((ROOT / "bench" / "pyproject.toml").read_text())["project"][
        "entry-points"
    ]
    assert entry_points == {"metaclaw.commands": {"bench": "metaclaw_bench.cli:bench"}}


def test_the_benchmark_imports_nothing_of_the_product_but_its_public_module() -> None:
    imported = {
        name
        for path in (ROOT / "bench" / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else _names(node))
        if name and name.partition(".")[0] == "metaclaw"
    }
    assert imported == {"metaclaw.plugin"}


def _names(node: ast.AST) -> list[str]:
    return [one.name for one in node.names] if isinstance(node, ast.Import) else []
