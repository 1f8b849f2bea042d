"""A run that was killed, continued by another process."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from metaclaw.plugin import find
from metaclaw_bench.records import RoundRecord, read_records

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
"""test_bench_runs.py goes on with a killed run, too, without the command."""

RUN = (
    "bench",
    "workdays",
    "--part",
    "tiny",
    "--simulated",
    "--agent",
    "direct",
    "--conditions",
    "baseline",
    "--price",
    "1",
    "2",
)


def command(out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "metaclaw", *RUN, "--out", str(out), *more]


def test_a_killed_run_resumes_in_a_new_process_where_it_stopped(tmp_path: Path) -> None:
    # Sets have another order in a process with another hash seed, which must not make it another
    # run.
    with subprocess.Popen(
        command(tmp_path),
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "1"},
    ) as killed:
        assert killed.stderr is not None
        first = next(killed.stderr)
        assert re.match(
            r"30 rounds to run in 1 runs; about [\d,]+ tokens in and [\d,]+ out, 0\.\d\d US"
            r" dollars",
            first,
        )
        seen = next(line for line in killed.stderr if "day02/" in line)
        os.kill(killed.pid, signal.SIGSTOP)
        second = subprocess.run(
            command(tmp_path, "--resume"), capture_output=True, text=True, check=False
        )
        assert second.returncode != 0
        assert "another process is writing to" in second.stderr, (
            "a run that goes on is not disturbed"
        )
        os.kill(killed.pid, signal.SIGKILL)
    assert "day02/r1" in seen
    folder = tmp_path / "baseline" / "seed-0"
    deadline = time.monotonic() + 30
    while find(folder / "home") is not None:
        assert time.monotonic() < deadline, "the proxy outlives the run that started it"
        time.sleep(0.05)
    other = subprocess.run(
        command(tmp_path, "--resume", "--evolver", "garbage"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert other.returncode != 0
    assert "evolver" in other.stderr, "a run goes on only with the writer it began with"
    done = subprocess.run(
        command(tmp_path, "--resume"),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "2"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    progress = re.findall(
        r"^(\d+)/30 \S+ (\S+) \S+ \(about .* left, 0\.\d\d US dollars so far\)$",
        done.stderr,
        re.MULTILINE,
    )
    assert progress[0][1] == "day02/r1", "the first day is not run again"
    assert [int(number) for number, _ in progress] == list(range(31 - len(progress), 31))
    rounds = [one for one in read_records(folder / "rounds.jsonl") if isinstance(one, RoundRecord)]
    assert len(rounds) == len({one.place for one in rounds}) == 30
