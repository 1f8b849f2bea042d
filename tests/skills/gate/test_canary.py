"""The canary: promoted, demoted or left waiting by logged draws alone."""

import random
from collections.abc import Sequence

import pytest

from metaclaw.domain.candidate import Certificate
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.domain.turn import Draw
from metaclaw.domain.verdict import Outcome
from metaclaw.skills.gate import (
    Baseline,
    CanaryDecision,
    CanaryRules,
    LiveTrial,
    after_model_change,
    judge_canary,
    needs_regate,
)


def draws(
    rng: random.Random, turns: int, withheld: float, placed: float, propensities: Sequence[float] = (0.5,), stratum: str = ""
) -> list[LiveTrial]:
    trials = []
    for number in range(turns):
        propensity = propensities[number % len(propensities)]
        is_placed = rng.random() < propensity
        passed = rng.random() < (placed if is_placed else withheld)
        trials.append(LiveTrial(is_placed, propensity, Outcome.PASS if passed else Outcome.FAIL, stratum))
    return trials


def decided(rng: random.Random, runs: int, turns: int, withheld: float, placed: float) -> dict[CanaryDecision, float]:
    found = [judge_canary(draws(rng, turns, withheld, placed)).decision for _ in range(runs)]
    return {decision: found.count(decision) / runs for decision in CanaryDecision}


def test_a_helpful_canary_is_promoted_and_its_certificate_says_why() -> None:
    report = judge_canary(draws(random.Random(1), 300, 0.4, 0.8))
    assert report.decision is CanaryDecision.PROMOTE
    certificate = report.certificate("m")
    assert certificate.stage is SkillState.CANARY
    assert certificate.e_value >= 40
    assert certificate.wins > certificate.losses
    assert certificate.wins + certificate.losses == certificate.probes == report.counts.decided
    assert "withheld" in certificate.notes[0]


def test_a_harmful_canary_is_demoted_for_harm() -> None:
    report = judge_canary(draws(random.Random(2), 300, 0.8, 0.4))
    assert report.decision is CanaryDecision.DEMOTE
    assert report.is_harmful


def test_most_helpful_ones_are_promoted_and_few_useless_ones_at_their_luckiest_moment() -> None:
    rng = random.Random(3)
    assert decided(rng, 60, 400, 0.5, 0.75)[CanaryDecision.PROMOTE] >= 0.9
    assert decided(rng, 150, 150, 0.6, 0.6)[CanaryDecision.PROMOTE] <= 0.05


def test_the_first_decisive_moment_stands() -> None:
    trials = draws(random.Random(1), 300, 0.4, 0.8)
    early = judge_canary(trials)
    assert judge_canary([*trials, *draws(random.Random(9), 300, 0.9, 0.1)]) == early


def test_what_is_not_proven_in_time_is_demoted_and_before_that_waits() -> None:
    trials = draws(random.Random(5), 100, 0.7, 0.7)
    assert judge_canary(trials).decision is CanaryDecision.WAIT
    ended = judge_canary(trials, CanaryRules(most=100))
    assert ended.decision is CanaryDecision.DEMOTE
    assert not ended.is_harmful
    assert "not proven" in ended.reason


def test_propensities_may_change_without_making_a_useless_skill_look_good() -> None:
    """Placed often in good times and seldom in bad ones: a plain comparison of pass rates would be fooled."""
    rng = random.Random(6)
    promoted = 0
    for _ in range(60):
        good, bad = draws(rng, 60, 0.9, 0.9, (0.9,)), draws(rng, 60, 0.3, 0.3, (0.1,))
        promoted += judge_canary([*bad, *good]).decision is CanaryDecision.PROMOTE
    assert promoted <= 5


def test_harm_in_one_kind_of_task_demotes_although_it_helps_elsewhere() -> None:
    rng = random.Random(7)
    helped, harmed = draws(rng, 150, 0.6, 0.64, stratum="write"), draws(rng, 150, 0.95, 0.3, stratum="read")
    trials = [trial for pair in zip(helped, harmed, strict=True) for trial in pair]
    assert judge_canary(trials).is_harmful


def test_unknown_outcomes_are_counted_and_not_guessed() -> None:
    unknown = [LiveTrial(bool(number % 2), 0.5, Outcome.UNKNOWN) for number in range(500)]
    report = judge_canary(unknown)
    assert report.decision is CanaryDecision.WAIT
    assert report.helps == pytest.approx(1.0)
    assert (report.counts.unknown_placed, report.counts.unknown_withheld) == (250, 250)


def always(passes: int, failures: int) -> list[LiveTrial]:
    trials = [LiveTrial(True, 1.0, Outcome.PASS)] * passes + [LiveTrial(True, 1.0, Outcome.FAIL)] * failures
    random.Random(0).shuffle(trials)
    return trials


def test_an_instruction_that_is_always_placed_settles_where_no_harm_is_seen() -> None:
    baseline = Baseline(40, 50)
    assert judge_canary(always(20, 5), baseline=baseline).decision is CanaryDecision.WAIT
    settled = judge_canary(always(40, 10), baseline=baseline)
    assert settled.decision is CanaryDecision.PROMOTE
    assert "no harm" in settled.reason


def test_an_instruction_after_which_far_fewer_turns_pass_is_demoted() -> None:
    report = judge_canary(always(4, 20), baseline=Baseline(45, 50))
    assert report.decision is CanaryDecision.DEMOTE
    assert report.is_harmful
    assert "before it" in report.reason


def test_without_a_time_before_an_instruction_is_never_called_harmful() -> None:
    assert not judge_canary(always(4, 40)).is_harmful
    assert not judge_canary(always(4, 40), baseline=Baseline(0, 0)).is_harmful


def test_a_harmless_instruction_is_called_harmful_in_at_most_one_run_of_twenty() -> None:
    rng = random.Random(8)
    wrong = 0
    for _ in range(300):
        baseline = Baseline(sum(rng.random() < 0.8 for _ in range(30)), 30)
        trials = [LiveTrial(True, 1.0, Outcome.PASS if rng.random() < 0.8 else Outcome.FAIL) for _ in range(50)]
        wrong += judge_canary(trials, baseline=baseline).is_harmful
    assert wrong / 300 <= 0.05


def test_another_canary_of_the_same_skill_needs_more_evidence() -> None:
    trials = draws(random.Random(1), 600, 0.4, 0.8)
    first, third = judge_canary(trials), judge_canary(trials, CanaryRules(attempt=3))
    assert third.helps > first.helps
    assert third.counts.decided > first.counts.decided


def test_a_draw_becomes_a_trial() -> None:
    assert LiveTrial.of(Draw(SkillName("s"), True, 0.5), Outcome.PASS, "read") == LiveTrial(True, 0.5, Outcome.PASS, "read")
    with pytest.raises(ValueError, match="baseline"):
        Baseline(3, 2)


def certificate(model: str) -> Certificate:
    return Certificate(SkillState.CANARY, 10, 8, 1, 0, 1, 0, 50.0, 0, model)


def test_another_model_sends_what_was_learned_back_to_the_canary_but_not_what_a_person_wrote() -> None:
    learned = Skill(SkillName("s"), "When it rains", "Take it.", author=Authorship.EVOLVER)
    assert needs_regate(certificate("old"), "new")
    assert not needs_regate(certificate("new"), "new")
    assert after_model_change(learned, certificate("old"), "new") is SkillState.CANARY
    assert after_model_change(learned, certificate("new"), "new") is SkillState.LIVE
    assert after_model_change(learned, None, "new") is SkillState.CANARY
    written = Skill(SkillName("s"), "When it rains", "Take it.", author=Authorship.PERSON)
    assert after_model_change(written, None, "new") is SkillState.LIVE
