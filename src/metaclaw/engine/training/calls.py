"""The messages between the program and its trainer process: calls of the methods of `Trainer`, each
with one answer, which is an `TrainerAnswer` or a TrainingError.

They are pickled. Both ends are the same program, on pipes of their own, so pickle is safe."""

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from metaclaw.errors import TrainingError


class TrainerCall(NamedTuple):
    """TrainerCall a method of the `Trainer`."""

    method: str
    arguments: tuple[object, ...]


class TrainerAnswer(NamedTuple):
    """What the method returned; the first answer says that the process is ready."""

    value: object


FromTrainer: TypeAlias = TrainerAnswer | TrainingError

Source: TypeAlias = str | None
"""Which weights: those of the adapter in this folder, of the untrained model, or of the open run as
they are now (None).
"""
UNTRAINED: Final = ""


@dataclass(frozen=True, slots=True)
class Planned:
    """What the model needs, at least, and tokens drawn and learned per second; these are zero where
    the memory is too small.
    """

    device: str
    parameters: int
    serving_bytes: int
    training_bytes: int
    free_bytes: int
    drawn_per_s: float
    learned_per_s: float
