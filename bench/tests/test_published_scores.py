"""The published formulas to the letter, the words of feedback, and totals over what was planned."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.tests.small_benchmark import choice, files, write
from metaclaw.plugin import ConfigError
from metaclaw_bench.data import read_benchmark
from metaclaw_bench.questions import (
    KEEP_IN_MIND,
    Benchmark,
    ChoiceCheck,
    Feedback,
    FileCheck,
    Round,
)
from metaclaw_bench.scoring import (
    NO_BOX,
    RoundScore,
    boxed,
    comment,
    message,
    score_broken,
    score_choice,
    score_files,
)
from metaclaw_bench.totals import (
    Rate,
    first_seen,
    forgetting,
    forward_transfer,
    per_day,
    per_tag,
    rolling,
    totals,
)
from tests.support.cases import each

FOUR = ChoiceCheck(("A", "B", "C", "D"), frozenset("AC"))


@each(
    ("answer", "letters"),
    [
        (r"\bbox{X} or rather \bbox{B}", "X"),
        (r"\bbox{} \bbox{B}", None),
        (r"\bbox{A and B}", "ABDN"),
        (r"\bbox{None}", "ENO"),
        (r"\bbox{\text{A}}", "AETX"),
        (r"\bbox {A}", None),
        ("bbox{A}", None),
        (r"\Bbox{A}", None),
        (r"\\bbox{A}", "A"),
        (r"\boxed{a, c}", "AC"),
        (r"\bbox{A", None),
        ("\\bbox{A,\nB}", "AB"),
        (r"\bbox{1, 2}", None),
        (r"\bbox{ß, ſ, ı, A}", "A"),
        ("", None),
    ],
)
def test_only_the_first_box_counts_and_every_letter_in_it(answer: str, letters: str | None) -> None:
    assert boxed(answer) == (frozenset(letters) if letters is not None else None)


@each(
    ("ticked", "score"),
    [
        ("AC", 1.0),
        ("A", 0.75),
        ("ABC", 0.75),
        ("BD", 0.0),
        ("ABCD", 0.5),
        ("ACZ", 0.75),
        ("ABCDEFGHIJKLMNOPQRSTUVWXYZ", -5.0),
    ],
)
def test_credit_is_partial_and_has_no_floor(ticked: str, score: float) -> None:
    assert score_choice("d", "r", FOUR, rf"\bbox{{{ticked}}}").score == score


def test_without_a_box_the_score_is_nothing_and_the_comparison_is_absent() -> None:
    scored = score_choice("d", "r", FOUR, "It is A and C.")
    assert scored == RoundScore("d", "r", 0.0, passed=False, exact=False)
    assert scored.ticks is None


letters = st.sets(st.sampled_from("ABCDEFGHXYZ"), min_size=1)


@given(st.integers(1, 8), st.data(), letters)
def test_the_score_is_one_less_the_share_of_wrong_letters(
    count: int, data: st.DataObject, ticked: set[str]
) -> None:
    options = "ABCDEFGH"[:count]
    right = data.draw(st.sets(st.sampled_from(options), min_size=1))
    scored = score_choice(
        "d", "r", ChoiceCheck(tuple(options), frozenset(right)), rf"\bbox{{{','.join(ticked)}}}"
    )
    wrong = sum((letter in ticked) != (letter in right) for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    assert scored.score == 1 - wrong / count
    assert scored.passed == scored.exact == (wrong == 0) == (scored.score == 1)
    assert scored.ticks is not None
    assert 0 <= scored.ticks.iou <= min(scored.ticks.precision, scored.ticks.recall)
    assert min(scored.ticks.precision, scored.ticks.recall) - 1e-12 <= scored.ticks.f1
    assert scored.ticks.f1 <= max(scored.ticks.precision, scored.ticks.recall) + 1e-12


@given(letters)
def test_ticking_the_complement_is_worth_nothing(right: set[str]) -> None:
    options = tuple("ABCDEFGHXYZ")
    rest = set(options) - right
    if rest:
        assert (
            score_choice(
                "d", "r", ChoiceCheck(options, frozenset(right)), rf"\bbox{{{''.join(rest)}}}"
            ).score
            == 0
        )


ASKED = Round(
    "r1", "Which?", FOUR, Feedback("Right.", options={"A": "yes", "B": "no", "C": "yes too"})
)


def test_the_comment_names_what_was_missed_and_then_what_was_wrong() -> None:
    said = comment(ASKED, r"\bbox{B, Z, A}", passed=False)
    assert said.splitlines() == [
        "You missed option C: yes too",
        "You incorrectly selected option B: no",
        "You incorrectly selected option Z: ",
        KEEP_IN_MIND,
    ]


def test_the_comment_on_a_right_answer_is_its_own_and_on_none_a_note() -> None:
    assert comment(ASKED, r"\bbox{AC}", passed=True) == "Right."
    assert comment(ASKED, "no idea", passed=False) == NO_BOX
    assert NO_BOX.startswith(
        r"Note: your previous response did not include a \bbox{X} answer (e.g. \bbox{A} for a"
        r" single option, or \bbox{A,B}"
    )


def test_the_comment_on_files_is_what_the_data_says() -> None:
    asked = Round("r1", "Make it.", FileCheck("true"), Feedback("Good.", "Not so."))
    assert comment(asked, "", passed=True) == "Good."
    assert comment(asked, "", passed=False) == f"Not so.\n{KEEP_IN_MIND}"
    assert (
        comment(Round("r1", "Make it.", FileCheck("true"), Feedback("Good.")), "", passed=False)
        == ""
    )


def test_a_message_carries_the_last_comment_before_its_question() -> None:
    assert message("", "Which?") == "Which?"
    assert message("Good.", "Which?") == "[Previous Feedback] Good.\n\nWhich?"
    assert message("Good.", None) == "[Previous Feedback] Good."


@pytest.fixture
def benchmark(tmp_path: Path) -> Benchmark:
    days = {
        f"day{number}": [choice("r1", "ABCD", "AC"), files("r2", "true"), files("r3", "true")]
        for number in range(1, 5)
    }
    tags = {
        "day1": ["times"],
        "day2": ["times"],
        "day3": ["times", "names"],
        "day4": ["times", "names"],
    }
    return read_benchmark(write(tmp_path, days, tags))


def perfect(day: str) -> list[RoundScore]:
    return [
        score_choice(day, "r1", FOUR, r"\bbox{A,C}"),
        score_files(day, "r2", True),
        score_files(day, "r3", True),
    ]


def test_a_round_that_never_ran_stays_in_the_denominator(benchmark: Benchmark) -> None:
    found = totals(benchmark, perfect("day1"))
    assert (found.planned, found.scored) == (12, 3)
    assert found.accuracy == 3 / 12
    assert (found.choices, found.files) == (Rate(1, 4), Rate(2, 8))


def test_the_papers_denominator_does_not_reach_one(benchmark: Benchmark) -> None:
    found = totals(benchmark, [score for day in benchmark.days for score in perfect(day.id)])
    assert found.accuracy == found.files.share == found.choices.share == 1
    assert found.files_over_all == 8 / 12


def test_what_broke_scores_nothing_and_is_counted(benchmark: Benchmark) -> None:
    broken = score_broken("day1", benchmark.days[0].rounds[1], "the checker is not there")
    found = totals(benchmark, [broken])
    assert (found.broken, found.scored, found.score) == (1, 1, 0)


def test_nothing_planned_is_unknown_and_not_nought(benchmark: Benchmark) -> None:
    everything = {(day.id, asked.id) for day in benchmark.days for asked in day.rounds}
    found = totals(benchmark, [], without=everything)
    assert (found.accuracy, found.choices.share, found.files_over_all) == (None, None, None)


def test_scores_of_something_else_or_twice_are_refused(benchmark: Benchmark) -> None:
    with pytest.raises(ConfigError, match="day9/r1 was not planned"):
        totals(benchmark, [score_files("day9", "r1", True)])
    with pytest.raises(ConfigError, match="day1/r2 is scored twice"):
        totals(benchmark, [score_files("day1", "r2", True)] * 2)


def test_days_tags_and_windows_of_three_days(benchmark: Benchmark) -> None:
    scores = [*perfect("day2"), *perfect("day4")]
    assert [found.accuracy for found in per_day(benchmark, scores).values()] == [0, 1, 0, 1]
    by_tag = {tag: found.accuracy for tag, found in per_tag(benchmark, scores).items()}
    assert by_tag == {"arc A": 0.5, "times": 0.5, "names": 0.5}
    windows = {day: found.accuracy for day, found in rolling(benchmark, scores).items()}
    assert windows == {"day3": 1 / 3, "day4": 2 / 3}


def test_forgetting_is_what_was_lost_between_then_and_now() -> None:
    then = perfect("day1")
    again = [score_choice("day1", "r1", FOUR, r"\bbox{A}"), score_files("day1", "r2", False)]
    assert forgetting(then, again) == (0.25 + 1) / 2
    assert forgetting(then, []) is None
    with pytest.raises(ConfigError, match="day2/r1"):
        forgetting(then, perfect("day2"))


def test_forward_transfer_looks_at_the_first_rounds_of_a_rule_only(benchmark: Benchmark) -> None:
    by_day = first_seen(benchmark)
    assert by_day == {("day3", "r1"), ("day3", "r2"), ("day3", "r3")}
    assert forward_transfer(perfect("day3"), perfect("day4"), by_day) == 1
    by_round = first_seen(
        benchmark, {("day1", "r2"): ["a"], ("day2", "r2"): ["a", "b"], ("day4", "r3"): ["b"]}
    )
    assert by_round == {("day2", "r2")}
    assert forward_transfer([], perfect("day2"), by_round) == -1
    assert forward_transfer([], [], []) is None
