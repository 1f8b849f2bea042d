"""The proxy benchmark: its C tools measure truly, and its goals can be missed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TIME_LIMIT_S = 60

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))),
    reason="needs a C compiler: apt-get install gcc",
)


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.proxy", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=TIME_LIMIT_S
    )


def spread(p50: float) -> dict[str, float]:
    return {"n": 100, "mean": p50, "p50": p50, "p90": p50, "p99": p50, "max": p50}


def slot(
    target: str,
    suite: str,
    *,
    rps: float,
    p50_us: float,
    cpu_us: float,
    foreign: float = 0.0,
    round_: int = 0,
) -> dict[str, object]:
    load = {
        "ok": 100,
        "bad": 0,
        "broken": 0,
        "unfinished": 0,
        "seconds": 1.0,
        "rps": rps,
        "latency_us": spread(p50_us),
    }
    return {
        "target": target,
        "suite": suite,
        "round": round_,
        "load": load,
        "cpu_us": cpu_us,
        "foreign_cores": foreign,
    }


def write_run(path: Path, slots: list[dict[str, object]]) -> Path:
    path.write_text(json.dumps({"facts": {"command": "test"}, "skills": 1000, "slots": slots}))
    return path


def verdicts(output: str) -> dict[str, str]:
    """The word before each goal that was judged."""
    lines = [line for line in output.splitlines() if line.startswith(("yes ", "NO ", "- "))]
    return {line[6:].split("  ")[0].strip(): line.split()[0] for line in lines if line[4:6] == "  "}


@needs_compiler
def test_a_paced_stream_read_straight_from_the_provider_comes_token_by_token(
    tmp_path: Path,
) -> None:
    out = tmp_path / "run.json"
    few = (
        "--peers",
        "none",
        "--rounds",
        "1",
        "--seconds",
        "0.2",
        "--cold-starts",
        "1",
        "--memory-requests",
        "0",
    )
    done = bench(
        "--targets",
        "direct",
        "--suites",
        "short-8,paced-32,messages-paced-32",
        *few,
        "--json",
        str(out),
    )
    assert done.returncode == 0, done.stderr
    run = json.loads(out.read_text())
    loads = {slot["suite"]: slot["load"] for slot in run["slots"]}
    assert loads["short-8"]["ok"] > 100
    for suite in ("paced-32", "messages-paced-32"):
        load = loads[suite]
        assert load["ok"] >= 32
        assert load["bad"] == load["broken"] == load["unfinished"] == 0
        assert load["tokens"] == 64 * load["ok"]
        # 63 pauses of 5 ms lie between the first and the last token: a client that buffered would
        # see the first one late.
        assert load["first_us"]["p50"] < load["latency_us"]["p50"] - 200_000
        assert load["tokens_per_read"]["p50"] == 1


def test_a_missed_goal_fails_the_run_only_when_that_was_asked_for(tmp_path: Path) -> None:
    slow = [
        slot("nginx", "short-8", rps=10_000, p50_us=50, cpu_us=30),
        slot("ours", "short-8", rps=100, p50_us=900, cpu_us=900),
    ]
    path = write_run(tmp_path / "slow.json", slow)
    assert bench("--from-json", str(path)).returncode == 0
    judged = bench("--from-json", str(path), "--assert-goals")
    assert judged.returncode == 1
    words = verdicts(judged.stdout)
    assert words["requests/s with 8 clients ≥ 0.08 × nginx"] == "NO"
    assert words["requests/s with 8 clients ≥ 50 × litellm"] == "-", (
        "a peer that was not measured is not a miss"
    )


def test_a_ratio_compares_slots_of_one_round_and_prefers_the_quiet_ones(tmp_path: Path) -> None:
    slots = [
        slot("nginx", "short-8", rps=10_000, p50_us=50, cpu_us=30),
        slot("ours", "short-8", rps=1_000, p50_us=300, cpu_us=300),
        slot("nginx", "short-8", rps=10_000, p50_us=50, cpu_us=30, round_=1),
        slot("ours", "short-8", rps=10, p50_us=9_000, cpu_us=300, round_=1, foreign=1.9),
    ]
    done = bench(
        "--from-json",
        str(write_run(tmp_path / "run.json", slots)),
        "--assert-goals",
        "--markdown",
        str(tmp_path / "run.md"),
    )
    assert verdicts(done.stdout)["requests/s with 8 clients ≥ 0.08 × nginx"] == "yes"
    assert "| ours | 1,000 | 0.1000 |" in (tmp_path / "run.md").read_text()


def test_an_unknown_target_is_refused_by_name() -> None:
    done = bench("--targets", "nginx,nobody")
    assert done.returncode == 2
    assert "nobody" in done.stderr


@needs_compiler
def test_another_version_that_is_not_there_is_left_out_by_name(tmp_path: Path) -> None:
    few = (
        "--peers",
        "none",
        "--rounds",
        "1",
        "--seconds",
        "0.2",
        "--cold-starts",
        "1",
        "--memory-requests",
        "0",
    )
    done = bench(
        "--targets", "direct", "--suites", "short-8", *few, "--before", str(tmp_path / "metaclaw")
    )
    assert done.returncode == 0, done.stderr
    assert f"before left out: {tmp_path / 'metaclaw'} is missing" in done.stderr


def test_a_run_in_which_ours_never_started_does_not_pass(tmp_path: Path) -> None:
    path = write_run(
        tmp_path / "without.json", [slot("nginx", "short-8", rps=10_000, p50_us=50, cpu_us=30)]
    )
    assert bench("--from-json", str(path), "--assert-goals").returncode == 1
