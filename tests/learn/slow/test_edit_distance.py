"""How alike texts are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.learn.slow.edit_distance import edit_distance, similarity


def slowly(one: str, two: str) -> int:
    """Cell by cell."""
    row = list(range(len(two) + 1))
    for at, sign in enumerate(one, 1):
        before, row = row, [at]
        for place, other in enumerate(two, 1):
            row.append(min(before[place] + 1, row[-1] + 1, before[place - 1] + (sign != other)))
    return row[-1]


@given(st.text("abc", max_size=90), st.text("abc", max_size=90))
def test_the_distance_is_the_same_as_cell_by_cell(one: str, two: str) -> None:
    assert edit_distance(one, two) == slowly(one, two)


@pytest.mark.parametrize(
    ("one", "two", "alike"),
    [("", "", 1.0), ("abc", "", 0.0), ("", "abc", 0.0), ("2051-03-07", "2051-03-07/nb", 10 / 13), ("abc", "xyz", 0.0)],
)
def test_similarity_is_the_share_that_stays(one: str, two: str, alike: float) -> None:
    assert similarity(one, two) == pytest.approx(alike)
