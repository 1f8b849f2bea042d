"""Properties of all detectors: they never raise, never take long, and every signal has a weight."""

import json
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.failure_sense_cases.fit import BELIEFS, _regress
from metaclaw.domain.turn import Step, TurnEnd
from metaclaw.domain.verdict import Fault, Outcome, Signal
from metaclaw.outcome import sense, verdicts
from metaclaw.outcome.detectors import DETECTORS, WEIGHTS, signal
from metaclaw.outcome.phrases import content_words, likeness, spoken
from metaclaw.outcome.verdicts import MARGIN, fuse, is_sure, sigmoid
from tests.outcome.steps import past, ran, step
from tests.support.cases import each
from tests.support.depth import tries

TEXTS = st.text(max_size=300) | st.sampled_from(
    [
        "no, wrong",
        "Exit code 1\nx",
        '{"exit_code": 1}',
        '{"error": {"a": 1}}',
        "thanks!",
        "不对",
        "Error: x",
        "{",
        "git checkout x",
    ]
)


@given(TEXTS, TEXTS, TEXTS, TEXTS, st.none() | TEXTS, st.sampled_from(list(TurnEnd)), st.booleans())
@settings(max_examples=tries(100, nightly=1500), deadline=None)
def test_any_step_is_sensed_without_an_error(
    task: str,
    answer: str,
    arguments: str,
    output: str,
    said: str | None,
    end: TurnEnd,
    is_error: bool,
) -> None:
    run = ran("Bash", arguments, output, is_error=is_error)
    one = step(task, answer, run, said=said, end=end, history=past(ran("Bash", arguments, output)))
    sensed = sense(one, one)
    assert 0.0 < sensed.p_fail < 1.0
    if sensed.verdict is None:
        return
    if sensed.verdict.fault is Fault.ENVIRONMENT:
        assert sensed.verdict.p_fail is None
    else:
        assert abs(sensed.verdict.score or 0.0) >= MARGIN
        assert (sensed.verdict.outcome is Outcome.FAIL) == (sensed.p_fail > 0.5)


def test_every_signal_that_is_believed_in_has_a_fitted_weight() -> None:
    assert BELIEFS.keys() <= WEIGHTS.signals.keys()


@pytest.mark.parametrize(
    "one", [step("Add a test.", "Done.", said="Now write the docs."), step("Add a test.", "Done.")]
)
def test_a_new_detector_changes_no_verdict_before_its_signal_is_fitted(
    one: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sense(one)
    monkeypatch.setattr(
        verdicts, "DETECTORS", (*DETECTORS, lambda observed: (signal("new.kind", "a quote"),))
    )
    after = sense(one)
    assert "new.kind" in {found.detector for found in after.signals}
    assert after.p_fail == before.p_fail
    assert (after.verdict is None) == (before.verdict is None)


def test_a_signal_without_a_belief_is_fitted_from_the_turns() -> None:
    failed, passed = (frozenset({"new.kind"}), True), (frozenset({"progress.next"}), False)
    _, weights = _regress([failed, passed] * 5)
    assert weights["new.kind"] > 0 > weights["progress.next"]


def test_evidence_keeps_its_sign_through_fitting() -> None:
    turned = {
        name
        for name, belief in BELIEFS.items()
        if abs(belief) >= 1.0 and belief * WEIGHTS.signals[name] <= 0
    }
    assert not turned


def test_more_evidence_of_failure_never_lowers_the_probability() -> None:
    against = [Signal(name, weight, "") for name, weight in WEIGHTS.signals.items() if weight > 0]
    found = [fuse(tuple(against[:count])) for count in range(len(against) + 1)]
    assert found == sorted(found)


@given(st.floats(-1e6, 1e6))
def test_the_sigmoid_stays_between_0_and_1_and_turns_over_in_the_middle(value: float) -> None:
    assert 0.0 <= sigmoid(value) <= 1.0
    assert sigmoid(value) + sigmoid(-value) == pytest.approx(1.0)


@each(("p_fail", "sure"), [(0.81, True), (0.19, True), (0.75, False), (0.5, False)])
def test_a_probability_is_acted_on_only_with_a_margin(p_fail: float, sure: bool) -> None:
    assert is_sure(p_fail) is sure


@given(st.text(max_size=400))
def test_words_are_the_same_however_often_they_are_taken_out(text: str) -> None:
    once = spoken(text)
    assert once.startswith(" ")
    assert once.endswith(" ")
    assert "  " not in once.strip()


@given(st.text(alphabet="abc 一二", max_size=60), st.text(alphabet="abc 一二", max_size=60))
def test_likeness_counts_what_was_kept_lost_and_added(one: str, other: str) -> None:
    like = likeness(one, other)
    assert like.lost + round(like.kept * like.size) == like.size == len(content_words(one))
    assert like.added == len(content_words(other) - content_words(one))
    assert not (like.says_the_same and like.is_about_another)


HOSTILE = {
    "spaces": " ",
    "lines": "\n",
    "quotes": '"a ',
    "ticks": "`",
    "braces": "{",
    "errors": "error ",
    "failures": "1 failed ",
    "frames": "   at x (a:1:1)\n",
    "denials": "no, not ",
    "dots": "a.",
    "wide": "不是",
    "commands": "git checkout ; ",
}


def _seconds(work: Callable[[], object]) -> float:
    begun = time.thread_time()
    work()
    return time.thread_time() - begun


@each("name", HOSTILE)
def test_hostile_text_takes_no_longer_for_being_long(name: str) -> None:
    piece = HOSTILE[name]
    for size in (20_000, 1_000_000):
        text = (piece * (size // len(piece) + 1))[:size]
        shell = json.dumps({"command": text})
        failed = step("do it", "Doing.", ran("Bash", shell, text, is_error=True))
        spoken_to = step(text, text, ran("Bash", {"command": "ls"}, "ok"), said=text)
        for one in (failed, spoken_to):
            fastest = min(_seconds(lambda one=one: sense(one)) for _ in range(3))  # type: ignore[misc]
            assert fastest < 0.05, f"{name} of {size} characters took {fastest:.3f} s"


def test_a_signal_that_has_not_been_fitted_weighs_nothing() -> None:
    assert signal("new.detector", "words").evidence == 0.0
