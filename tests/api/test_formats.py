"""Numbers in words, as the pages say them."""

import pytest

from metaclaw.api.web.formats import followed, least_followed, signal
from metaclaw.outcome.detectors import WEIGHTS
from tests.support.cases import each


def counts(followed: int, broken: int, held: int = 0) -> dict[str, int]:
    return {
        "applied": followed + broken,
        "followed": followed,
        "broken": broken,
        "held": held,
        "unknown": 0,
    }


def test_held_calls_are_no_failures() -> None:
    by_agent = {"claude-code": counts(0, 2, 2), "codex": counts(10, 5, 3), "unknown": counts(0, 0)}
    assert (
        followed(counts(10, 7, 5), by_agent)
        == "followed in 10 of 12 turns; 5 held back (codex 3, claude-code 2)"
    )
    assert followed(by_agent["claude-code"]) == "2 held back"
    assert least_followed({**by_agent, "opencode": counts(3, 0)}) == "codex in 10 of 12"


@pytest.mark.parametrize(
    ("by_agent", "words"),
    [
        (
            {"codex": counts(11, 3), "opencode": counts(30, 0), "idle": counts(0, 0)},
            "codex in 11 of 14",
        ),
        ({"codex": counts(0, 2), "opencode": counts(0, 1)}, ""),
        ({"codex": counts(1, 2), "idle": counts(0, 0)}, ""),
        ({}, ""),
        (None, ""),
    ],
)
def test_the_agent_that_follows_a_rule_least_is_named(
    by_agent: dict[str, dict[str, int]] | None, words: str
) -> None:
    assert least_followed(by_agent) == words


@each("detector", [*WEIGHTS.signals, "check"])
def test_every_signal_is_shown_in_words(detector: str) -> None:
    words = signal(detector)
    assert " " in words
    assert ": " not in words, "the fallback shows the name of the detector"
