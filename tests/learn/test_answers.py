"""Unusable answers: counted in a row for each role and model, shown when there are enough, forgotten after a usable one."""

import pytest

from metaclaw.learn.models import EVOLVER, JUDGE, UnusableAnswers


@pytest.mark.parametrize(("role", "least"), [(JUDGE, 3), (EVOLVER, 1)])
def test_they_are_shown_from_so_many_in_a_row_and_a_usable_answer_ends_it(role: str, least: int) -> None:
    found = UnusableAnswers()
    answered = found.of(role)
    for _ in range(least - 1):
        answered("world/tiny", "no verdict")
    assert found.facts == []
    answered("world/tiny", "still no verdict")
    (one,) = found.facts
    shown = {"role": role, "model": "world/tiny", "answers": least, "reason": "still no verdict"}
    assert isinstance(one, dict)
    assert {key: value for key, value in one.items() if key != "at"} == shown
    answered("world/other", None)
    assert len(found.facts) == 1
    answered("world/tiny", None)
    assert found.facts == []
