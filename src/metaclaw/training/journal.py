"""The journal of a run on disk: what it has drawn, scored, done and found. Nothing is drawn twice,
and every decision can be made again.

A file appears whole or not at all. What was drawn by weights that have changed since is deleted;
what is left of a step is its record. The learning curve of a run, the mean reward of each step, is
kept after the run's own files are deleted."""

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from anyio.to_thread import run_sync

from metaclaw.domain.policy import Weights
from metaclaw.durable_files import BY_UMASK, replace_file
from metaclaw.errors import TrainingError
from metaclaw.training.records import StepRecord

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_encoder = msgspec.msgpack.Encoder()


class Journal:
    """What one run has drawn, done and found: values by name in one folder. What was drawn for a
    step is named `step-…`, its record `record-…`, weights that the backend keeps `weights-…`. Every
    method raises TrainingError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def find(self, name: str, kind: type[_T]) -> _T | None:
        """What is kept under this name; None where there is nothing, or it cannot be read."""
        return await run_sync(self.read, name, kind)

    async def keep(self, name: str, what: object) -> None:
        """Keep a value; it is on disk when this returns."""
        await run_sync(self._keep, name, what)

    async def forget(self, name: str) -> None:
        """Drop what is kept under this name."""
        await run_sync(lambda: self._path(name).unlink(missing_ok=True))

    async def once(self, name: str, kind: type[_T], make: Callable[[], Awaitable[_T]]) -> _T:
        """What is kept under this name, or what is made now and kept."""
        found = await self.find(name, kind)
        if found is None:
            found = await make()
            await self.keep(name, found)
        return found

    async def records(self) -> list[StepRecord]:
        """The records of all finished steps, in order."""
        return await run_sync(self.read_records)

    def read_records(self) -> list[StepRecord]:
        """The same; blocks."""
        found: list[StepRecord] = []
        while (record := self.read(record_name(len(found)), StepRecord)) is not None:
            found.append(record)
        return found

    async def drop_records(self, first: int) -> None:
        """Forget this record and those behind it."""
        await run_sync(self._drop, "record", lambda step: step >= first)

    async def forget_before(self, step: int) -> None:
        """Drop what was drawn for earlier steps. Their records stay."""
        await run_sync(self._drop, "step", lambda earlier: earlier < step)

    async def all_weights(self) -> list[Weights]:
        """All weights that were ever kept in this run."""
        names = sorted(path.stem for path in self._folder.glob("weights-*.msgpack"))
        found = [await self.find(name, Weights) for name in names]
        return [weights for weights in found if weights is not None]

    def _drop(self, kind: str, which: Callable[[int], bool]) -> None:
        for path in self._folder.glob(f"{kind}-*.msgpack"):
            if which(int(path.stem.split("-")[1])):
                path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.msgpack"

    def read(self, name: str, kind: type[_T]) -> _T | None:
        """What `find` finds; blocks."""
        try:
            return msgspec.msgpack.decode(self._path(name).read_bytes(), type=kind)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        except OSError as error:
            raise TrainingError(f"cannot read the run's journal: {error}") from error

    def _keep(self, name: str, what: object) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            replace_file(self._path(name), _encoder.encode(what), mode=BY_UMASK)
        except OSError as error:
            raise TrainingError(
                f"cannot keep the run's journal in {self._folder}: {error}"
            ) from error


def record_name(step: int) -> str:
    """The name of a step's record."""
    return f"record-{step:05d}"


async def keep_curve(folder: Path, run: Path) -> None:
    """Keep the curve of a run that is over. A curve that cannot be kept is logged."""
    try:
        await Journal(folder / "curves").keep("newest", await run_sync(_rewards, run))
    except TrainingError as error:
        log.warning("curve_not_kept run=%s reason=%s", run.name, error)


def newest_curve(folder: Path) -> list[float]:
    """The rewards of the run that goes on, or of the last one. Blocks."""
    runs = sorted((folder / "runs").glob("[0-9]*"))
    try:
        rewards = _rewards(runs[-1]) if runs else []
        return rewards or Journal(folder / "curves").read("newest", list[float]) or []
    except TrainingError:
        return []


def _rewards(run: Path) -> list[float]:
    records = Journal(run / "drawn").read_records()
    return [record.reward for record in records if record.reward is not None]


class StaleError(TrainingError):
    """There is nothing left in this run to learn from: all its turns were made with other rules or
    skills, or are gone.
    """


class DriftError(TrainingError):
    """The weights drifted before a checkpoint was kept; the run is dropped."""
