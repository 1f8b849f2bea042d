"""Work in small steps, so that answers can be made in between."""

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""Work in steps of a few milliseconds each; its value is what came of it."""


def finish(steps: Steps[T]) -> T:
    """All steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            value: T = done.value
            return value
