"""Two conditions compared: the same seeds and runs, differences taken pair by pair, seeds
resampled.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Final

from metaclaw_bench.research.metrics import Metrics, measure
from metaclaw_bench.research.records import ComparisonRecord, RunRecord
from metaclaw_bench.stats import bootstrap

METRICS: Final[Mapping[str, Callable[[Metrics], float | None]]] = {
    "completion": lambda one: one.completion,
    "retry_rate": lambda one: one.retry_rate,
    "refines": lambda one: one.refines,
    "composite": lambda one: one.composite,
}
_At = tuple[int, int]


def compare(runs: Sequence[RunRecord], conditions: Sequence[str]) -> list[ComparisonRecord]:
    """Every condition against the first, over all runs and over those that could use what an
    earlier one taught.

    What has no number under one of both is left out, with its pair, and so is a run that broke off
    for no fault of the model; a metric without any pair is not in the answer. Seeds are drawn, and
    within them runs, which share what was learned: so an interval over one seed says nothing about
    others."""
    last = max((run.run for run in runs), default=0)
    found = (
        _compared(runs, conditions[0], other, metric, from_run)
        for other in conditions[1:]
        for from_run in ((1, 2) if last > 1 else (1,))
        for metric in METRICS
    )
    return [one for one in found if one is not None]


def _compared(
    runs: Sequence[RunRecord], baseline: str, other: str, metric: str, from_run: int
) -> ComparisonRecord | None:
    ours, theirs = (_values(runs, name, metric, from_run) for name in (other, baseline))
    pairs = sorted(ours.keys() & theirs.keys())
    nested: dict[int, dict[str, list[float]]] = {}
    for seed, number in pairs:
        nested.setdefault(seed, {})[str(number)] = [ours[seed, number] - theirs[seed, number]]
    interval = bootstrap(nested)
    if interval is None:
        return None
    return ComparisonRecord(
        metric=metric,
        baseline=baseline,
        other=other,
        from_run=from_run,
        pairs=len(pairs),
        baseline_mean=fmean(theirs[at] for at in pairs),
        other_mean=fmean(ours[at] for at in pairs),
        difference=interval.value,
        low=interval.low,
        high=interval.high,
    )


def _values(
    runs: Sequence[RunRecord], condition: str, metric: str, from_run: int
) -> Mapping[_At, float]:
    values: dict[_At, float] = {}
    for run in runs:
        if run.condition != condition or run.run < from_run or run.ending == "broken":
            continue
        value = METRICS[metric](measure(run))
        if value is not None:
            values[run.seed, run.run] = value
    return values
