"""The package: what the base install may import, and that README and docs say only what is true."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from metaclaw.config import build

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_serving_needs_none_of_the_heavy_libraries() -> None:
    heavy = "{'torch', 'transformers', 'numpy', 'jinja2', 'alembic'}"
    code = f"import sys, metaclaw.app, metaclaw.cli; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_readme_is_short_and_has_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 700
    assert "make run" in text
    assert "make test" in text


def test_the_configuration_by_hand_loads(tmp_path: Path) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "agents.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        assert build(tomllib.loads(block), tmp_path).providers
