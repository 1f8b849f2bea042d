"""The retrieval benchmark: it runs, its quality goals hold at a small size, and they can be
missed.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.retrieval", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )


def test_the_benchmark_meets_its_goals_at_a_small_size_and_says_so() -> None:
    done = bench("--sizes", "100", "--json", "--assert-goals")
    assert done.returncode == 0, done.stderr
    (facts,) = json.loads(done.stdout)["results"]
    assert facts["skills"] == 100
    assert facts["recall_made_up"] >= 0.95
    assert facts["recall_by_hand"] >= 0.7
    assert facts["wrong_placement"] <= 0.1
    assert {
        "query_p99_cpu_ms",
        "add_p99_cpu_ms",
        "remove_p99_cpu_ms",
        "index_mb",
        "load_cpu_ms",
    } <= facts.keys()
    assert done.stderr.count("yes ") == 3
    assert "NO " not in done.stderr


def test_a_goal_that_is_missed_is_a_failure() -> None:
    script = (
        "from benchmarks import retrieval as r;facts = {'skills': 100, 'recall_made_up': 0.5,"
        " 'recall_by_hand': 0.9, 'wrong_placement': 0.2};print(r.judge([facts], out=print))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    *lines, verdict = done.stdout.splitlines()
    assert [line[:3] for line in lines] == ["NO ", "yes", "NO "]
    assert verdict == "False"
