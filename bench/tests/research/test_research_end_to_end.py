"""Research through the real proxy: what one run is told, the next one does."""

from collections.abc import Callable
from pathlib import Path

import pytest

from metaclaw.plugin import ConfigError
from metaclaw_bench.research import Habits, ResearchSettings, RunRecord, read_research, run_research
from metaclaw_bench.research.records import AttemptRecord
from metaclaw_bench.running.plan import Patience

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

QUICK = Patience(calm_s=1.0, most_s=400.0)


def by_run(runs: tuple[RunRecord, ...], value: Callable[[RunRecord], object]) -> dict[tuple[str, int], object]:
    return {(run.condition, run.run): value(run) for run in runs}


async def test_with_skills_the_second_run_is_told_nothing_twice_and_without_them_everything_again(tmp_path: Path) -> None:
    # A researcher who keeps exactly the rules that stand in its prompt: what must happen is known in advance.
    settings = ResearchSettings(tmp_path / "out", seeds=(1,), runs=2, habits=Habits(told=1.0, untold=0.0), patience=QUICK)
    result = await run_research(settings)
    assert {(run.ending, run.unlearned) for run in result.runs} == {("completed", ())}
    assert all(run.simulated for run in result.runs)
    assert by_run(result.runs, lambda run: (run.retries, run.refines)) == {
        ("baseline", 1): (23, 1),
        ("baseline", 2): (23, 1),
        ("skills", 1): (23, 1),
        ("skills", 2): (0, 0),
    }
    attempts = [one for one in read_research(result.records) if isinstance(one, AttemptRecord)]
    assert not any(one.skills for one in attempts if one.condition == "baseline")
    assert all(one.skills for one in attempts if (one.condition, one.run) == ("skills", 2))
    (later,) = [one for one in result.comparisons if one.metric == "retry_rate" and one.from_run == 2]
    assert (later.baseline_mean, later.other_mean) == (23 / 47, 0.0)
    with pytest.raises(ConfigError, match="is there already"):
        await run_research(settings)
