"""A library whose process is killed while it publishes."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_killed_at_any_moment_of_a_publication_the_next_start_finds_all_of_it_or_none(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    command = [sys.executable, "-m", "tests.skills.killing", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 20, "too few moments to have tried them all"
