"""Tables of cases inside one test. Each test item costs every worker of the suite its collection and
a home folder; a row of a table does not."""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from types import TracebackType
from typing import Any, TypeAlias

import pytest

Test: TypeAlias = Callable[..., Any]


def each(
    names: str | tuple[str, ...],
    rows: Iterable[Any],
    *,
    ids: Collection[str] | Callable[[Any], str] = (),
) -> Callable[[Test], Test]:
    """Run a test once for each row, as `pytest.mark.parametrize` does, but as one test: all rows
    are run, and all that fail are reported, each by its name.

    For tests whose fixtures, if any, may serve all rows: they are made once."""
    parameters = (names,) if isinstance(names, str) else names
    cases = list(_named(parameters, list(rows), ids))
    if not cases:
        raise ValueError("a table without rows tests nothing")

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)
        rest = [one for one in signature.parameters.values() if one.name not in parameters]

        def run(**fixtures: Any) -> None:
            failures = _Failures()
            for name, arguments in cases:
                with failures.of(name):
                    test(**fixtures, **arguments)
            failures.report(len(cases))

        async def run_async(**fixtures: Any) -> None:
            failures = _Failures()
            for name, arguments in cases:
                with failures.of(name):
                    await test(**fixtures, **arguments)
            failures.report(len(cases))

        table = wraps(test)(run_async if inspect.iscoroutinefunction(test) else run)
        table.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        return table

    return decorate


def _named(
    names: tuple[str, ...], rows: list[Any], ids: Collection[str] | Callable[[Any], str]
) -> Iterable[tuple[str, Mapping[str, Any]]]:
    given = [ids(row) for row in rows] if callable(ids) else list(ids)
    for row, name in zip(rows, given or map(repr, rows), strict=True):
        values = row if len(names) > 1 else (row,)
        yield name, dict(zip(names, values, strict=True))


class _Failures:
    """What failed, each with the name of its row."""

    def __init__(self) -> None:
        self._found: list[Exception] = []
        self._name = ""

    def of(self, name: str) -> "_Failures":
        self._name = name
        return self

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if isinstance(error, pytest.fail.Exception):
            error = AssertionError(str(error)).with_traceback(traceback)
        if not isinstance(error, Exception):
            return False
        error.add_note(f"in the row {self._name}")
        self._found.append(error)
        return True

    def report(self, rows: int) -> None:
        if self._found:
            raise ExceptionGroup(f"{len(self._found)} of {rows} rows", self._found)
