"""A hold of training for as long as a block runs."""

from collections.abc import Iterator
from contextlib import contextmanager

from metaclaw.engine import TrainingPause


@contextmanager
def holding(pause: TrainingPause, reason: str) -> Iterator[None]:
    """Hold while the block runs."""
    pause.hold(reason)
    try:
        yield
    finally:
        pause.release(reason)
