"""A library whose process is killed while it publishes, or while it writes out what the store
has.
"""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["publish", "join"])
def test_killed_at_any_moment_of_a_publication_or_of_joining_the_next_start_finds_all_of_it_or_none(
    tmp_path: Path, what: str
) -> None:
    (tmp_path / "base").mkdir()
    command = [sys.executable, "-m", "tests.skills.killing", what, str(tmp_path)]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 20, "too few moments to have tried them all"
