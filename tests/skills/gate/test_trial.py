"""Live trials end, soon if a skill helps or does harm, with the stated error rates."""

import random

import pytest

from benchmarks.gate import simulate_trials
from metaclaw.domain.candidate import Certificate, Probe, ProbeKind, ReplayResult
from metaclaw.domain.ids import TurnId
from metaclaw.domain.skill import SkillState
from metaclaw.domain.verdict import Belief, Outcome, PassRate
from metaclaw.skills import (
    LiveTask,
    TaskCounts,
    TrialDecision,
    is_harmful,
    judge_trial,
    measure_uplift,
    trial_prior,
)
from metaclaw.skills.gate.evidence import MOST_DECIDED, MOST_TASKS

P, F, U = Outcome.PASS, Outcome.FAIL, Outcome.UNKNOWN


def task(placed: bool, outcome: Outcome, share: float = 0.67) -> LiveTask:
    return LiveTask(placed, share, outcome)


def alternating(times: int, with_skill: Outcome, without: Outcome) -> list[LiveTask]:
    return [one for _ in range(times) for one in (task(True, with_skill), task(False, without))]


def test_a_skill_that_helps_is_promoted_in_a_few_tasks() -> None:
    report = judge_trial(alternating(20, P, F))
    assert report.decision is TrialDecision.PROMOTE
    assert report.counts.decided <= 10
    assert report.reason.startswith("it helps: with it ")


def test_a_skill_that_does_harm_is_withdrawn_in_fewer() -> None:
    report = judge_trial(alternating(20, F, P))
    assert report.decision is TrialDecision.WITHDRAW
    assert report.counts.decided <= 6
    assert report.reason.startswith("it does harm: with it 0 of")


def test_what_came_after_the_decision_does_not_matter() -> None:
    bad, good = alternating(6, F, P), alternating(30, P, F)
    assert judge_trial([*bad, *good]) == judge_trial(bad)


def test_a_trial_continues_while_little_is_known() -> None:
    assert judge_trial([]).decision is TrialDecision.CONTINUE
    assert judge_trial(alternating(1, P, F)).decision is TrialDecision.CONTINUE


@pytest.mark.parametrize("outcome", [P, F])
def test_a_skill_that_makes_no_difference_ends_its_trial_too(outcome: Outcome) -> None:
    report = judge_trial(alternating(50, outcome, outcome))
    assert report.decision is not TrialDecision.CONTINUE
    assert report.counts.decided <= MOST_DECIDED


def test_a_trial_of_which_no_outcome_is_known_ends_as_well() -> None:
    tasks = [task(True, U)] * MOST_TASKS
    assert judge_trial(tasks[:-1]).decision is TrialDecision.CONTINUE
    assert judge_trial(tasks).decision is TrialDecision.WITHDRAW
    fixed = Belief(PassRate(passed=0.5), PassRate(failed=0.5))
    assert judge_trial(tasks, fixed).decision is TrialDecision.PROMOTE


def test_tasks_on_which_nothing_was_left_to_chance_tell_nothing() -> None:
    assert TaskCounts.of([task(True, P, 1.0)] * 30).decided == 0


def test_replays_count_as_half_a_task() -> None:
    replays = tuple(
        ReplayResult(Probe(TurnId("f0"), ProbeKind.FAILING), outcome) for outcome in (P, P, F, P)
    )
    certificate = Certificate(SkillState.SHADOW, 1, 3, 0, 1, 0, 0, 100, "m", replays=replays)
    assert trial_prior(certificate) == Belief(PassRate(0.375, 0.125), PassRate(0.0, 0.5))
    assert trial_prior(None) == Belief()


def test_a_live_skill_is_harmful_only_after_it_was_seen_often_with_and_without() -> None:
    assert is_harmful(TaskCounts(4, 20, 5, 0), Belief())
    assert not is_harmful(TaskCounts(4, 20, 2, 0), Belief())
    assert not is_harmful(TaskCounts(1, 9, 5, 0), Belief())
    assert not is_harmful(TaskCounts(12, 12, 3, 2), Belief())


def test_a_live_skill_that_is_as_good_as_none_is_seldom_called_harmful() -> None:
    rng, called, runs = random.Random(3), 0, 200
    for _ in range(runs):
        counts = TaskCounts()
        for _ in range(200):
            counts = counts.plus(task(rng.random() < 0.95, P if rng.random() < 0.7 else F))
            if is_harmful(counts, Belief()):
                called += 1
                break
    assert called / runs <= 0.1


def test_uplift_is_the_difference_with_its_interval() -> None:
    uplift = measure_uplift([*alternating(20, P, F), task(True, U)])
    assert (uplift.estimate, uplift.placed, uplift.withheld, uplift.unknown) == (1.0, 20, 20, 1)
    assert uplift.interval is not None
    assert 0.5 < uplift.interval.low < uplift.interval.high <= 1.0
    assert measure_uplift([task(True, P)]).estimate is None


def test_the_losses_of_keeping_and_withdrawing_differ_by_the_effect() -> None:
    belief = Belief(PassRate(8, 2), PassRate(3, 7))
    assert belief.loss_if_withdrawn - belief.loss_if_kept == pytest.approx(belief.difference)
    assert 0 < belief.loss_if_kept < 0.02 < 0.3 < belief.loss_if_withdrawn


def test_the_stated_error_rates_hold() -> None:
    """The small version of `python -m benchmarks.gate`: the goals at the mean of all baselines."""
    worse, better = (simulate_trials(effect, seeds=150, judge_error=0.05) for effect in (-0.3, 0.3))
    assert worse.kept <= 0.10
    assert worse.median_withdrawn <= 12
    assert better.kept >= 0.80
    assert better.median_tasks <= 20
    assert simulate_trials(0.0, seeds=50).longest <= MOST_DECIDED
