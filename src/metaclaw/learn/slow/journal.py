"""What a run has drawn and scored so far, on disk, so that nothing is drawn twice: one file for each piece of a step.

A file appears whole or not at all. What was drawn by weights that have changed since is of no more use, and goes.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from metaclaw.domain.batch import Rollout
from metaclaw.domain.ids import TurnId
from metaclaw.errors import TrainingError


class Drawn(msgspec.Struct, frozen=True, array_like=True):
    """One rollout as it is kept; the reward is None where nobody could say."""

    tokens: list[int]
    logprobs: list[float]
    text: str
    is_whole: bool
    reward: float | None


class Group(msgspec.Struct, frozen=True, array_like=True):
    """The rollouts of one turn's prompt."""

    turn: str
    drawn: list[Drawn]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Group])


class Journal:
    """The pieces of one run in one folder. Blocks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, step: int, piece: int) -> list[Group] | None:
        """What was drawn for this piece, or None where it has not been; a file that cannot be read counts as none."""
        try:
            return _decoder.decode(self._path(step, piece).read_bytes())
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        except OSError as error:
            raise TrainingError(f"cannot read what was drawn: {error}") from error

    def write(self, step: int, piece: int, groups: Sequence[Group]) -> None:
        """Keep a piece; it is on disk when this returns."""
        path = self._path(step, piece)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_suffix(".tmp")
            with unfinished.open("wb") as file:
                file.write(_encoder.encode(list(groups)))
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except OSError as error:
            raise TrainingError(f"cannot keep what was drawn in {self._folder}: {error}") from error

    def forget_before(self, step: int) -> None:
        """Drop the pieces of earlier steps."""
        for path in self._folder.glob("step-*-piece-*.msgpack"):
            if int(path.name.split("-")[1]) < step:
                path.unlink(missing_ok=True)

    def mark_empty(self, step: int) -> None:
        """This step gave nothing to learn from: the optimiser was not moved."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / f"step-{step:05d}-empty").touch()

    def next_step(self, applied: int) -> int:
        """The first step that is not done, where the optimiser has been moved so many times."""
        step = 0
        while applied or (self._folder / f"step-{step:05d}-empty").exists():
            applied -= not (self._folder / f"step-{step:05d}-empty").exists()
            step += 1
        return step

    def _path(self, step: int, piece: int) -> Path:
        return self._folder / f"step-{step:05d}-piece-{piece:05d}.msgpack"


def group_of(turn: TurnId, rollouts: Sequence[Rollout], rewards: Sequence[float | None]) -> Group:
    """Rollouts and rewards as they are kept."""
    drawn = [
        Drawn(list(one.tokens_T), list(one.logprobs_T), one.text, one.is_whole, reward)
        for one, reward in zip(rollouts, rewards, strict=True)
    ]
    return Group(turn, drawn)


def rollouts_of(group: Group) -> list[Rollout]:
    """The rollouts of a group that was kept."""
    return [Rollout(tuple(one.tokens), tuple(one.logprobs), one.text, one.is_whole) for one in group.drawn]
