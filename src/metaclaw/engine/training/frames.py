"""The messages between the program and its trainer process: each request has one answer."""

from typing import Final, TypeAlias

import msgspec

from metaclaw.domain.policy import Weights
from metaclaw.domain.training import (
    Adam,
    Datum,
    Drawing,
    Loss,
    PieceStats,
    Rollout,
    RunProgress,
    StepStats,
)
from metaclaw.engine.frames import pack as pack


class Base(msgspec.Struct, tag="base", frozen=True):
    """The untrained model."""


class Present(msgspec.Struct, tag="present", frozen=True):
    """The open run's weights as they are now."""


class Kept(msgspec.Struct, tag="kept", frozen=True):
    """Kept weights, by the folder of their adapter."""

    adapter: str


Source: TypeAlias = Base | Present | Kept


class Open(msgspec.Struct, tag="open", frozen=True):
    """Begin or continue a run."""

    name: str
    start: Weights | None
    rank: int
    seed: int
    folder: str


class Sample(msgspec.Struct, tag="sample", frozen=True):
    """Draw rollouts."""

    prompts: list[list[int]]
    drawing: Drawing
    source: Source


class Score(msgspec.Struct, tag="score", frozen=True):
    """Log-probabilities of each second part after its first."""

    pairs: list[tuple[list[int], list[int]]]
    source: Source


class Accumulate(msgspec.Struct, tag="accumulate", frozen=True):
    """Add one piece's gradient."""

    data: list[Datum]
    loss: Loss


class Apply(msgspec.Struct, tag="apply", frozen=True):
    """Make one optimiser step, and write it to disk before answering."""

    adam: Adam
    normaliser: float


class Keep(msgspec.Struct, tag="keep", frozen=True):
    """Write the current weights into a folder, atomically."""

    folder: str


class Shrink(msgspec.Struct, tag="shrink", frozen=True):
    """Write kept weights into another folder, with their change multiplied by a scale."""

    adapter: str
    scale: float
    folder: str


class Close(msgspec.Struct, tag="close", frozen=True):
    """End the run. Unless it is discarded, its state is written to disk first."""

    discard: bool


class Plan(msgspec.Struct, tag="plan", frozen=True):
    """Measure what the model needs and how fast it is. `slots` are the requests that are served at
    once.
    """

    device: str
    rank: int
    slots: int


class Planned(msgspec.Struct, tag="planned", frozen=True):
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


class TrainerReady(msgspec.Struct, tag="ready", frozen=True):
    """The trainer has started and takes messages."""

    device: str
    dtype: str


class Preparing(msgspec.Struct, tag="preparing", frozen=True):
    """The progress of the conversion of the model."""

    share: float


class Opened(msgspec.Struct, tag="opened", frozen=True):
    """The progress of the run, and notes for the owner."""

    progress: RunProgress
    notes: list[str]


class Sampled(msgspec.Struct, tag="sampled", frozen=True):
    """Rollouts, in the order of their prompts."""

    groups: list[list[Rollout]]


class Scored(msgspec.Struct, tag="scored", frozen=True):
    """Log-probabilities, in the order of their pairs."""

    logprobs: list[tuple[float, ...]]


class Accumulated(msgspec.Struct, tag="accumulated", frozen=True):
    """A piece is in the gradient."""

    stats: PieceStats


class Applied(msgspec.Struct, tag="applied", frozen=True):
    """A step is done and on disk."""

    stats: StepStats


class Done(msgspec.Struct, tag="done", frozen=True):
    """The request is done."""


class RequestFailed(msgspec.Struct, tag="failed", frozen=True):
    """The request failed and changed nothing. `needs_package`: a package must be installed;
    `needs_memory`: a new process with more memory is needed."""

    message: str
    needs_package: bool = False
    needs_memory: bool = False


ToTrainer: TypeAlias = Open | Sample | Score | Accumulate | Apply | Keep | Shrink | Close | Plan
FromTrainer: TypeAlias = (
    TrainerReady
    | Preparing
    | Opened
    | Planned
    | Sampled
    | Scored
    | Accumulated
    | Applied
    | Done
    | RequestFailed
)

to_trainer: Final = msgspec.msgpack.Decoder(ToTrainer)
from_trainer: Final = msgspec.msgpack.Decoder(FromTrainer)
