"""Verdicts from signals and votes, and which verdict outranks another."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from metaclaw.domain.ids import TurnId
from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict, Votes, outranks
from metaclaw.outcome import Calibration, Isotonic, fit_isotonic, raw_score, sense, verdict
from tests.outcome.steps import bash, step
from tests.support.cases import each

UNDECIDED = step("who maintains it?", "Kim does.", said="hm")
WRONG = step("make it blue", "It is green.", said="no, that's wrong")
OFFLINE = step(
    "fetch it",
    "Fetching.",
    bash("curl https://x.example", "curl: (6) Could not resolve host: x.example", 6),
)


def votes(passed: int, failed: int, unknown: int = 0) -> Votes:
    return Votes(passed, failed, unknown, "judge", ("because",) if passed + failed else ())


@each(
    ("counted", "outcome"),
    [
        (votes(0, 3), Outcome.FAIL),
        (votes(3, 0), Outcome.PASS),
        (votes(1, 2), Outcome.UNKNOWN),
        (votes(2, 1), Outcome.UNKNOWN),
        (votes(0, 0, 3), Outcome.UNKNOWN),
    ],
)
def test_a_judge_decides_only_with_a_clear_majority(counted: Votes, outcome: Outcome) -> None:
    found = verdict(UNDECIDED, sense(UNDECIDED), counted, Calibration())
    assert found.outcome is outcome
    assert found.votes == counted


def test_a_judge_that_could_not_be_read_leaves_nothing_behind() -> None:
    for missing in (None, votes(0, 0, 3)):
        found = verdict(UNDECIDED, sense(UNDECIDED), missing, Calibration())
        assert (found.outcome, found.source, found.p_fail, found.score) == (
            Outcome.UNKNOWN,
            Source.UNDECIDED,
            None,
            None,
        )


def test_detectors_that_are_sure_need_no_judge() -> None:
    found = verdict(WRONG, sense(WRONG), None, Calibration())
    assert (found.outcome, found.source, found.fault) == (
        Outcome.FAIL,
        Source.DETECTOR,
        Fault.AGENT,
    )
    assert found.signals


def test_feedback_that_proves_detectors_wrong_makes_them_abstain() -> None:
    sensed = sense(WRONG)
    doubted = Calibration(sensed=fit_isotonic([(sensed.p_fail, False), (sensed.p_fail, True)] * 40))
    assert verdict(WRONG, sensed, None, doubted).outcome is Outcome.UNKNOWN


def test_no_calibration_turns_the_environments_fault_into_the_agents() -> None:
    always = Calibration(Isotonic((0.0, 1.0), (1.0, 1.0)), Isotonic((0.0, 1.0), (1.0, 1.0)))
    found = verdict(OFFLINE, sense(OFFLINE), votes(0, 3), always)
    assert found.fault is Fault.ENVIRONMENT
    assert not found.teaches


def test_a_persons_word_outranks_what_was_sensed() -> None:
    found = verdict(WRONG, sense(WRONG), None, Calibration())
    assert outranks(Verdict(WRONG.turn, Outcome.PASS, Source.USER, 0.0), found)
    assert not outranks(found, Verdict(WRONG.turn, Outcome.PASS, Source.USER, 0.0))


@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5))
def test_more_votes_for_failure_never_lower_the_score(
    passed: int, failed: int, unknown: int
) -> None:
    sensed = sense(UNDECIDED)
    fewer, more = (
        raw_score(sensed, votes(passed, failed, unknown)),
        raw_score(sensed, votes(passed, failed + 1, unknown)),
    )
    assert more is not None
    assert fewer is None or fewer <= more


def test_a_pattern_does_not_replace_a_correction_that_was_read() -> None:
    said = Verdict(
        TurnId("t"), Outcome.FAIL, Source.DETECTOR, 1.0, fault=Fault.AGENT, comment="Use uv."
    )
    seen = Verdict(TurnId("t"), Outcome.PASS, Source.DETECTOR, 0.1)
    assert not outranks(seen, said)
    assert outranks(said, seen)
    assert outranks(replace(said, comment="Use uv, always."), said)
    assert outranks(replace(seen, source=Source.USER), said)
