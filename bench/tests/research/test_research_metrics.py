"""The metrics of research runs at known values, and the comparison of conditions."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.plugin import MetaClawError
from metaclaw_bench.research.comparing import compare
from metaclaw_bench.research.metrics import MOST_REFINES, Metrics, composite, measure
from metaclaw_bench.research.records import (
    ComparisonRecord,
    RunRecord,
    append_records,
    read_research,
)
from tests.support.cases import each

shares = st.floats(0, 1)
cycles = st.integers(0, MOST_REFINES)


def run(
    condition: str = "baseline",
    *,
    seed: int = 1,
    number: int = 1,
    completed: int | None = 23,
    attempts: int | None = 40,
    retries: int | None = 10,
    refines: int | None = 0,
    ending: str = "completed",
) -> RunRecord:
    made = {
        "pipeline": "own",
        "condition": condition,
        "seed": seed,
        "run": number,
        "simulated": True,
        "topic": "t",
        "scorable": 23,
    }
    counted = {
        "completed": completed,
        "attempts": attempts,
        "retries": retries,
        "refines": refines,
        "rollbacks": 0,
        "ending": ending,
    }
    return RunRecord(**{**made, **counted})  # type: ignore[arg-type]


def found(comparisons: list[ComparisonRecord], metric: str, from_run: int = 1) -> ComparisonRecord:
    (one,) = [one for one in comparisons if one.metric == metric and one.from_run == from_run]
    return one


def test_a_run_without_a_fault_is_worth_one_and_one_without_anything_right_nothing() -> None:
    assert composite(1.0, 0.0, 0) == pytest.approx(1.0)
    assert composite(0.0, 1.0, 2) == 0.0


def test_the_published_table_gives_on_our_scale_what_the_module_says() -> None:
    assert composite(18 / 19, 0.105, 2.0) == pytest.approx(0.647, abs=5e-4)
    assert composite(19 / 19, 0.079, 1.2) == pytest.approx(0.796, abs=5e-4)


def test_each_term_has_its_weight() -> None:
    assert composite(0.5, 0.0, 0) == pytest.approx(0.4 * 0.5 + 0.3 + 0.3)
    assert composite(1.0, 0.25, 0) == pytest.approx(0.4 + 0.3 * 0.75 + 0.3)
    assert composite(1.0, 0.0, 1) == pytest.approx(0.4 + 0.3 + 0.3 * 0.5)


@settings(deadline=None)
@given(shares, shares, shares, cycles, cycles)
def test_it_lies_between_nothing_and_one_and_better_is_more(
    done: float, one: float, other: float, few: int, many: int
) -> None:
    low, high = sorted((one, other))
    assert 0 <= composite(done, low, few) <= 1 + 1e-12
    assert composite(done, low, min(few, many)) >= composite(done, high, max(few, many)) - 1e-12


@each("values", [(1.1, 0.0, 0), (1.0, -0.1, 0), (1.0, 0.0, 3), (-0.1, 0.5, 0)])
def test_what_is_off_the_scale_is_an_error(values: tuple[float, float, int]) -> None:
    with pytest.raises(ValueError, match="not on the scale"):
        composite(*values)


def test_a_run_is_measured_by_its_counts() -> None:
    measured = measure(run(completed=20, attempts=30, retries=6, refines=1))
    assert measured.completion == pytest.approx(20 / 23)
    assert measured.retry_rate == pytest.approx(0.2)
    assert measured.composite == pytest.approx(composite(20 / 23, 0.2, 1))


def test_a_run_that_ends_before_the_decision_earns_nothing_for_not_refining() -> None:
    died = measure(run(completed=14, attempts=40, retries=0, refines=0, ending="failed"))
    finished = measure(run(completed=23, attempts=40, retries=6, refines=1))
    assert died.composite == pytest.approx(0.4 * 14 / 23 + 0.3)
    assert finished.composite == pytest.approx(0.4 + 0.3 * 34 / 40 + 0.15), "which is more"
    in_second_cycle = measure(run(completed=15, attempts=40, retries=0, refines=1, ending="failed"))
    assert in_second_cycle.composite == pytest.approx(0.4 * 15 / 23 + 0.3)


def test_attempts_that_nobody_counted_are_unknown_and_not_perfect() -> None:
    measured = measure(run(attempts=None, retries=None))
    assert measured.retry_rate is None
    assert measured.composite is None


def test_a_part_that_is_unknown_leaves_the_others_and_no_composite() -> None:
    assert measure(run(completed=None, retries=10, attempts=40, refines=1)) == Metrics(
        None, 0.25, 1, None
    )
    assert measure(run(completed=23, retries=10, attempts=40, refines=None)) == Metrics(
        1.0, 0.25, None, None
    )


def test_a_metric_that_one_of_both_does_not_have_is_not_compared() -> None:
    compared = compare([run(refines=None), run("skills", refines=1)], ["baseline", "skills"])
    assert {one.metric for one in compared} == {"completion", "retry_rate"}


def test_conditions_are_compared_pair_by_pair() -> None:
    runs = []
    for seed in range(6):
        runs += [run(seed=seed, retries=20), run("skills", seed=seed, retries=20)]
        runs += [
            run(seed=seed, number=2, retries=20),
            run("skills", seed=seed, number=2, retries=seed),
        ]
    compared = compare(runs, ["baseline", "skills"])
    later = found(compared, "retry_rate", from_run=2)
    assert later.baseline_mean == pytest.approx(0.5)
    assert later.other_mean == pytest.approx(2.5 / 40)
    assert later.difference == pytest.approx(2.5 / 40 - 0.5)
    assert later.low < later.difference < later.high < 0
    assert found(compared, "retry_rate").pairs == 12
    assert found(compared, "completion").difference == 0


def test_a_pair_of_which_one_run_broke_off_is_left_out() -> None:
    runs = [
        run(retries=20),
        run("skills", retries=0),
        run(seed=2, ending="broken"),
        run("skills", seed=2, retries=40),
    ]
    assert found(compare(runs, ["baseline", "skills"]), "retry_rate").pairs == 1


def test_one_condition_alone_is_compared_with_nothing() -> None:
    assert compare([run()], ["baseline"]) == []


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "research.jsonl"
    compared = compare([run(), run("skills")], ["baseline", "skills"])
    append_records(path, [run()])
    append_records(path, [run("skills"), *compared])
    assert read_research(path) == [run(), run("skills"), *compared]
    path.write_text('{"type": "run"}\n')
    with pytest.raises(MetaClawError, match="no record of a research run"):
        read_research(path)
