"""A table of cases inside one test runs every row and reports every one that fails."""

import pytest

from tests.support.cases import each


def test_every_row_that_fails_is_reported_by_its_name() -> None:
    run: list[int] = []

    @each("number", [1, 2, 3, 4], ids=lambda number: f"number {number}")
    @each(("less", "more"), [(0, 1), (1, 0)])
    def table(number: int, less: int, more: int) -> None:
        run.append(number)
        if number == 3:
            pytest.fail("three")
        assert number != 2 or less < more

    with pytest.raises(ExceptionGroup) as caught:
        table()
    assert run == [1, 1, 2, 2, 3, 3, 4, 4]
    two, three = caught.value.exceptions
    assert (two.__notes__, three.__notes__) == (["in the row number 2"], ["in the row number 3"])
    assert isinstance(two, ExceptionGroup)
    assert [inner.__notes__ for inner in two.exceptions] == [["in the row (1, 0)"]]
    assert isinstance(three, ExceptionGroup)
    assert len(three.exceptions) == 2


@pytest.mark.anyio
async def test_rows_may_be_awaited() -> None:
    @each("number", [1, 2])
    async def table(number: int) -> None:
        assert number < 2

    with pytest.raises(ExceptionGroup, match="1 of 2 rows"):
        await table()


def test_a_table_without_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="tests nothing"):
        each("number", [])
