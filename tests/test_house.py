"""The house itself: what the base install may import, and that README and docs tell only what is true."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from metaclaw.cli.root import root
from metaclaw.config import build

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_serving_needs_none_of_the_heavy_libraries() -> None:
    heavy = "{'torch', 'transformers', 'numpy', 'jinja2', 'alembic'}"
    code = f"import sys, metaclaw.app, metaclaw.cli; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_a_page_shows_exists(page: Path) -> None:
    shown = re.findall(r"^(?:\.venv/bin/)?metaclaw ([a-z]+)(?: ([a-z]+))?", page.read_text(), re.MULTILINE)
    for noun, verb in shown:
        command = root.get_command(click.Context(root), noun)
        assert command is not None
        if verb and isinstance(command, click.Group):
            assert verb in command.commands


def test_the_readme_is_short_and_its_configuration_loads(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    assert text.count("\n") < 150
    assert "make run" in text
    assert "make test" in text
    blocks = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        assert build(tomllib.loads(block), tmp_path).providers
