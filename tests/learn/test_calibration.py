"""How far verdicts are to be believed: learned from turns of which the truth is known, and shown only when enough are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.domain.ids import TurnId
from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict, Votes
from metaclaw.learn.assessment import CalibrationLoop, Trust
from metaclaw.outcome import Calibration
from metaclaw.outcome.signals import signal

Graded = list[tuple[Verdict, Outcome]]


def sensed(p_fail: float | None = 0.98, *, detector: str = "correction.plain") -> Verdict:
    """What a detector said of a turn."""
    return Verdict(TurnId("t"), Outcome.FAIL, Source.DETECTOR, p_fail, (signal(detector, "x"),), fault=Fault.AGENT)


def judged(failed: int, passed: int, p_fail: float = 0.9) -> Verdict:
    """What a judge voted."""
    votes = Votes(passed, failed, 0, "judge-model")
    return Verdict(TurnId("t"), Outcome.UNKNOWN, Source.JUDGE, p_fail, (), votes)


def refitted(graded: Graded) -> CalibrationLoop:
    calibration = CalibrationLoop(lambda limit: graded[:limit])
    calibration.refit()
    return calibration


def test_before_anything_is_known_every_score_stands_as_it_is() -> None:
    calibration = refitted([])
    assert calibration.trust == Trust(0)
    for score in (0.02, 0.5, 0.98):
        assert calibration.current.sensed.apply(score) == pytest.approx(score, abs=0.03)
        assert calibration.current.judged.apply(score) == pytest.approx(score, abs=0.03)


def test_detectors_that_cry_wolf_are_believed_less_and_the_judge_as_before() -> None:
    wrong = refitted([(sensed(), Outcome.PASS)] * 60)
    right = refitted([(sensed(), Outcome.FAIL)] * 60)
    assert wrong.current.sensed.apply(0.98) < 0.3
    assert right.current.sensed.apply(0.98) > 0.9
    assert wrong.current.judged == Calibration(judged=refitted([]).current.judged).judged


def test_votes_are_calibrated_by_themselves() -> None:
    calibration = refitted([(judged(3, 0), Outcome.PASS)] * 60)
    assert calibration.current.judged.apply(0.8) < 0.3
    assert calibration.current.sensed == refitted([]).current.sensed


def test_votes_of_which_none_could_be_read_teach_nothing() -> None:
    unread = Verdict(TurnId("t"), Outcome.UNKNOWN, Source.JUDGE, None, (), Votes(0, 0, 3, "judge-model"))
    calibration = refitted([(unread, Outcome.FAIL)] * 60)
    assert calibration.trust == Trust(0)
    assert calibration.current == refitted([]).current


@pytest.mark.parametrize(("turns", "is_shown"), [(19, False), (20, True)])
def test_trust_is_shown_once_enough_turns_are_known(turns: int, is_shown: bool) -> None:
    graded: Graded = [(sensed(0.9), Outcome.FAIL), (sensed(0.1), Outcome.PASS)] * 10
    trust = refitted(graded[:turns]).trust
    assert trust.turns == turns
    assert (trust.auroc is not None, trust.ece is not None) == (is_shown, is_shown)


def test_trust_tells_good_verdicts_from_bad_ones() -> None:
    good = refitted([(sensed(0.95), Outcome.FAIL)] * 20 + [(sensed(0.05), Outcome.PASS)] * 20).trust
    bad = refitted([(sensed(0.05), Outcome.FAIL)] * 20 + [(sensed(0.95), Outcome.PASS)] * 20).trust
    assert (good.auroc, bad.auroc) == (1.0, 0.0)
    assert good.ece == pytest.approx(0.05)
    assert bad.ece == pytest.approx(0.95)


def test_where_only_failures_are_known_there_is_no_ranking_to_show() -> None:
    trust = refitted([(sensed(0.9), Outcome.FAIL)] * 30).trust
    assert (trust.auroc, trust.turns) == (None, 30)


def test_a_verdict_without_a_probability_is_not_counted_as_believed() -> None:
    assert refitted([(sensed(None), Outcome.FAIL)] * 30).trust == Trust(0)


scores = st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from([Outcome.PASS, Outcome.FAIL]))


@given(st.lists(scores, max_size=40))
def test_whatever_is_known_a_higher_score_is_never_believed_less(known: list[tuple[int, int, Outcome]]) -> None:
    graded: Graded = [(judged(failed, passed), truth) for failed, passed, truth in known]
    calibration = refitted(graded).current
    believed = [calibration.judged.apply(step / 50) for step in range(51)]
    assert believed == sorted(believed)
    assert all(0 < p_fail < 1 for p_fail in believed)
