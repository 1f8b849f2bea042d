"""Ablations through the real program: they tell a good evolver from a useless one, and learned
skills are placed.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Over a minute of processor time; `test_bench_runs.py` shows the same on a miniature for every
# change.
pytestmark = pytest.mark.nightly


def test_a_garbage_evolver_scores_worse_than_a_strong_one_whose_skills_are_placed(
    tmp_path: Path,
) -> None:
    command = [
        sys.executable,
        "-m",
        "metaclaw",
        "bench",
        "ablations",
        "--seeds",
        "0",
        "--only",
        "evolver=garbage",
        "--json",
    ]
    done = subprocess.run(
        [*command, "--out", str(tmp_path), "--parallel", "3"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    baseline, strong, garbage = json.loads(done.stdout)["rows"]
    assert strong["learned_skills_placed"] > 0, (
        "the evolver's own skills are placed, not only what the person laid down"
    )
    assert strong["skills_learned"] > 0
    # A skill is on trial before it stays, so early days differ little; on held-out days the
    # intervals lie apart.
    assert strong["held_out"]["low"] > garbage["held_out"]["high"]
    assert strong["held_out"]["value"] > garbage["held_out"]["value"] + 0.1
    assert strong["held_out"]["value"] > baseline["held_out"]["value"]
