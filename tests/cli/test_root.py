"""Commands of other distributions: found by entry points; a missing or broken one is explained and
breaks nothing else.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.cli.program import Done, program

MAIN = (
    "import sys; sys.path[:] = {paths!r}; from metaclaw.cli import main;"
    " sys.exit(main(sys.argv[1:]))"
)


def installed(folder: Path, name: str, value: str, source: str | None = None) -> dict[str, str]:
    """The environment of a program beside a distribution that adds the command `name`."""
    dist = folder / f"{name}_plugin-1.0.dist-info"
    dist.mkdir(parents=True)
    (dist / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-plugin\nVersion: 1.0\n")
    (dist / "entry_points.txt").write_text(f"[metaclaw.commands]\n{name} = {value}\n")
    if source is not None:
        (folder / f"{name}_plugin.py").write_text(source)
    return {**os.environ, "PYTHONPATH": str(folder)}


def without_bench(folder: Path, *arguments: str) -> Done:
    """Run the program where everything is installed but metaclaw-bench."""
    paths = []
    for number, path in enumerate(map(Path, filter(None, sys.path))):
        if not (path / "click").is_dir() and not list(path.glob("metaclaw_bench*")):
            paths.append(str(path))
            continue
        linked = folder / f"packages-{number}"
        linked.mkdir(parents=True)
        for entry in path.iterdir():
            if not entry.name.lstrip("_").startswith("metaclaw_bench"):
                (linked / entry.name).symlink_to(entry)
        paths.append(str(linked))
    command = [sys.executable, "-S", "-c", MAIN.format(paths=paths), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


def test_a_distribution_adds_a_command(tmp_path: Path) -> None:
    source = (
        "import click\n@click.command(help='Says hello.')\ndef hello():\n    click.echo('hello from"
        " outside')\n"
    )
    env = installed(tmp_path, "hello", "hello_plugin:hello", source)
    assert "Says hello." in program("--help", env=env).out
    assert program("hello", env=env).out == "hello from outside\n"


def test_a_plugin_that_cannot_be_loaded_is_named_and_everything_else_works(tmp_path: Path) -> None:
    env = installed(tmp_path, "hello", "hello_plugin:hello", "import no_such_module\n")
    shown = program("--help", env=env)
    assert shown.code == 0
    assert "Cannot be run" in shown.out
    done = program("hello", "--any", "words", env=env)
    assert done.code == 2
    assert "hello-plugin cannot be loaded (No module named 'no_such_module')" in done.err
    assert program("config", "check", env=env).code == 0


def test_a_plugin_does_not_replace_a_command_of_the_program(tmp_path: Path) -> None:
    source = "import click\n@click.command()\ndef status():\n    click.echo('not the status')\n"
    env = installed(tmp_path, "status", "status_plugin:status", source)
    assert "not the status" not in program("status", env=env).out


def test_without_the_benchmark_its_command_says_what_to_install(tmp_path: Path) -> None:
    done = without_bench(tmp_path, "bench", "workdays", "--part", "tiny")
    assert done.code == 2
    assert "metaclaw-bench is not installed" in done.err
    assert "pip install ./bench" in done.err
    assert "bench" not in without_bench(tmp_path / "again", "--help").out
