"""Research through the real proxy: what one run is told, the next one does; and the command that
compares.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from metaclaw.plugin import ConfigError
from metaclaw_bench.research import Habits, ResearchSettings, RunRecord, read_research, run_research
from metaclaw_bench.research.mistakes import SlipChances
from metaclaw_bench.research.records import AttemptRecord
from metaclaw_bench.running.plan import Patience
from tests.cli.program import metaclaw

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_proxies")]

WORDS = ("skills.retrieval=words",)
QUICK = Patience(calm_s=1.0, most_s=400.0)


def by_run(
    runs: tuple[RunRecord, ...], value: Callable[[RunRecord], object]
) -> dict[tuple[str, int], object]:
    return {(run.condition, run.run): value(run) for run in runs}


@pytest.mark.anyio
async def test_with_skills_the_second_run_is_told_nothing_twice_and_without_them_everything_again(
    tmp_path: Path,
) -> None:
    # A researcher who keeps exactly the rules that stand in its prompt: what must happen is known
    # in advance.
    settings = ResearchSettings(
        tmp_path / "out",
        seeds=(1,),
        runs=2,
        habits=Habits(told=1.0, untold=0.0),
        patience=QUICK,
        sets=WORDS,
    )
    result = await run_research(settings)
    assert {(run.ending, run.unlearned) for run in result.runs} == {("completed", ())}
    assert all(run.simulated for run in result.runs)
    told = by_run(result.runs, lambda run: (run.retries, run.refines))
    # On a slow machine lessons may be in force before the run that taught them ends, and spare that
    # run some retries.
    assert told.pop(("skills", 1)) in {(20, 1), (21, 1), (22, 1), (23, 1)}
    assert told == {("baseline", 1): (23, 1), ("baseline", 2): (23, 1), ("skills", 2): (0, 0)}
    attempts = [one for one in read_research(result.records) if isinstance(one, AttemptRecord)]
    assert not any(one.skills for one in attempts if one.condition == "baseline")
    assert all(one.skills for one in attempts if (one.condition, one.run) == ("skills", 2))
    (later,) = [
        one for one in result.comparisons if one.metric == "retry_rate" and one.from_run == 2
    ]
    assert (later.baseline_mean, later.other_mean) == (23 / 47, 0.0)
    with pytest.raises(ConfigError, match="--resume"):
        await run_research(settings)
    again = await run_research(settings, resume=True)
    assert again.runs == result.runs, "what is done is not run again"


@pytest.mark.nightly  # lessons of failed calls: tests/e2e/test_lessons.py, too
@pytest.mark.anyio
async def test_what_the_pipeline_refused_becomes_lessons_and_later_runs_are_refused_less(
    tmp_path: Path,
) -> None:
    # No rule is ever stated: the failed calls, and what worked instead, are all there is to learn
    # from. In front of a lesson the mistake is never made.
    settings = ResearchSettings(
        tmp_path / "out",
        seeds=(1,),
        runs=3,
        mistakes=SlipChances(first=0.5, again=0.0, thin=0.0, left=0.0),
        patience=QUICK,
        sets=WORDS,
    )
    result = await run_research(settings)
    assert {run.ending for run in result.runs} == {"completed"}
    retries = {(run.condition, run.run): run.retries or 0 for run in result.runs}
    assert retries["skills", 3] <= retries["baseline", 3] / 2, retries


@pytest.mark.nightly
def test_a_killed_comparison_resumes_and_its_results_can_be_scored_and_reported(
    tmp_path: Path,
) -> None:
    words = (
        "bench research --simulated --conditions baseline,skills --seeds 1 --runs 2 --parallel 2"
        " --price 1 2"
    )
    command = [
        sys.executable,
        "-m",
        "metaclaw",
        *words.split(" "),
        "--set",
        *WORDS,
        "--out",
        str(tmp_path),
    ]
    records = tmp_path / "research.jsonl"
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as killed:
        assert killed.stderr is not None
        seen = set[str]()
        for line in killed.stderr:
            seen.add(line.split()[0])
            if records.exists() and "research-skills-1-2" in line:
                break
        os.kill(killed.pid, signal.SIGKILL)
    assert {
        "research-baseline-1-1",
        "research-skills-1-1",
    } <= seen, "both conditions ran side by side"
    before = read_research(records)
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "research-skills-1-1" not in done.stderr, "a finished run is not run again"
    assert re.search(r"^[1-3] of 4 runs to do, about 0\.\d\d US dollars", done.stderr, re.MULTILINE)
    assert re.search(
        r"^4 of 4 runs done, about 0 s left, \d+\.\d\d US dollars so far$",
        done.stderr,
        re.MULTILINE,
    )
    runs = [one for one in read_research(records) if isinstance(one, RunRecord)]
    assert sorted((one.condition, one.run) for one in runs) == [
        (name, run) for name in ("baseline", "skills") for run in (1, 2)
    ]
    assert {one for one in before if isinstance(one, RunRecord)} <= set(runs)
    assert all(
        one.cost and one.cost == (one.tokens_in + 2 * one.tokens_out) / 1e6
        for one in runs
        if one.tokens_in and one.tokens_out
    )

    scored = metaclaw("bench", "score", str(tmp_path), "--json").facts["research"]
    assert {one["condition"] for one in scored["runs"]} == {"baseline", "skills"}
    assert {one["metric"] for one in scored["comparisons"]} >= {"completion", "composite"}
    table = metaclaw("bench", "score", str(tmp_path)).out
    assert table.startswith("SIMULATED")
    assert "COMPOSITE" in table
    page, markdown = metaclaw("bench", "report", str(tmp_path)).out.split()
    assert "no model has answered any of this" in Path(page).read_text()
    assert "| baseline | 1 | 1 | " in Path(markdown).read_text()
