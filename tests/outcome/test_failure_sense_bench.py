"""The labelled turns and the benchmark on them: its goals hold, and its splits are kept apart."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.failure_sense import Facts, Judged, SimulatedJudge, calibrated, measure, missed, run
from benchmarks.failure_sense_cases.cases import Case, load
from metaclaw.outcome import Calibration

ROOT = Path(__file__).parents[2]
DETECTORS = {
    *(
        "tool_error",
        "exit",
        "exception",
        "schema",
        "tests",
        "environment",
        "repeat",
        "correction",
        "redo",
    ),
    *("interrupt", "undone", "apology", "ending", "accepted", "progress"),
}


@pytest.fixture(scope="module")
def train() -> list[Case]:
    return load("train")


@pytest.fixture(scope="module")
def held_out() -> list[Case]:
    return load("test")


@pytest.fixture(scope="module")
def judged(held_out: list[Case]) -> list[Judged]:
    judge = SimulatedJudge()
    return run(held_out, judge, calibrated(judge))


@pytest.fixture(scope="module")
def facts(judged: list[Judged]) -> Facts:
    return measure(judged, rounds=20)


def test_the_goals_hold_on_turns_that_nothing_was_fitted_to(facts: Facts) -> None:
    assert missed(facts) == []


def test_the_detectors_alone_are_good_without_any_judge(facts: Facts) -> None:
    assert facts.auroc_alone is not None
    assert facts.auroc_alone.value >= 0.9
    assert facts.wrong is not None
    assert facts.wrong.value <= 0.06


def test_the_environments_faults_are_not_blamed_on_the_agent(judged: list[Judged]) -> None:
    outside = [one for one in judged if one.case.row.label == "environment"]
    assert len(outside) >= 20
    assert sum(one.verdict.teaches for one in outside) <= 0.05 * len(outside)


def test_a_judge_that_guesses_makes_verdicts_unknown_and_not_wrong(held_out: list[Case]) -> None:
    guessing = SimulatedJudge(accuracy=0.5, agreement=0.5)
    found = measure(run(held_out, guessing, Calibration()), rounds=5)
    silent = measure(run(held_out, SimulatedJudge(unreadable=1.0), Calibration()), rounds=5)
    assert silent.unknown == pytest.approx(silent.judged.value if silent.judged else 0.0)
    assert found.unknown > 0


def test_no_family_of_turns_is_in_both_splits_and_no_turn_twice(
    train: list[Case], held_out: list[Case]
) -> None:
    assert not {case.row.family for case in train} & {case.row.family for case in held_out}
    ids = [case.row.id for case in (*train, *held_out)]
    assert len(ids) == len(set(ids)) >= 600


def test_every_label_is_defended_and_every_detector_covered_on_both_sides(
    train: list[Case], held_out: list[Case]
) -> None:
    for cases in (train, held_out):
        assert all(len(case.row.why) > 10 for case in cases)
        expected = {name for case in cases for name in case.row.expect}
        assert expected >= DETECTORS
        labels = [case.row.label for case in cases]
        assert min(labels.count("pass"), labels.count("fail")) >= 100
        assert len({case.row.client for case in cases}) >= 7


def test_what_went_wrong_is_shown_for_training_turns_only() -> None:
    command = [sys.executable, "-m", "benchmarks.failure_sense", "--errors"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert "training turns only" in done.stderr


def test_a_missed_goal_is_named(facts: Facts, held_out: list[Case]) -> None:
    few = measure(run(held_out[:30], SimulatedJudge(), Calibration()), rounds=5)
    assert few.turns == 30
    blind = Facts(**{**{name: getattr(facts, name) for name in Facts.__slots__}, "auroc": None})
    assert missed(blind) == ["auroc >= 0.9: None"]
