"""One open run: a learner, how far it is, and what of that is on disk."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from metaclaw.domain.policy import Weights
from metaclaw.domain.training import Adam, Datum, Drawing, Loss, PieceStats, Rollout, RunProgress, StepStats
from metaclaw.engine.training.lora import Adapter, Pair
from metaclaw.engine.training.peft import read_adapter, write_adapter
from metaclaw.engine.training.run_files import Pieces, sync_folder
from metaclaw.errors import TrainingError

BACKEND: Final = "embedded"
"""Who made weights that were kept here."""
TRAINING_FILE: Final = "training_state.safetensors"
"""Beside a kept adapter: what training goes on from."""
_GRADIENT: Final = "gradient"


class Teachable(Protocol):
    """What a run needs of a learner: `Learner`, or the one for any other causal model."""

    def sample(
        self, prompts: Sequence[Sequence[int]], drawing: Drawing, check: Callable[[], None] = ...
    ) -> list[list[Rollout]]: ...
    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[float, ...]]: ...
    def accumulate(self, data: Sequence[Datum], loss: Loss, *, measures_kl: bool = False) -> PieceStats: ...
    def apply(self, adam: Adam, normaliser: float) -> StepStats: ...
    def adopt(self, adapter: Adapter | None) -> None: ...
    def adapter(self) -> Adapter: ...
    def state(self) -> dict[str, Tensor]: ...
    def restore(self, state: Mapping[str, Tensor]) -> None: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is: the same plan goes on with it, another one is refused. `model` tells one base model from another."""

    name: str
    start: Weights | None
    rank: int
    seed: int
    model: str


class Run:
    """Accumulates and applies, and keeps on disk what must survive. `open_run` makes one."""

    def __init__(self, learner: Teachable, pieces: Pieces, progress: RunProgress) -> None:
        self._learner = learner
        self._pieces = pieces
        self._progress = progress
        self._saved = progress

    @property
    def progress(self) -> RunProgress:
        """Whole steps of this run, and pieces towards the next."""
        return self._progress

    def accumulate(self, data: Sequence[Datum], loss: Loss) -> PieceStats:
        """Add a piece's gradient, and put the sum on disk if that is worth its time."""
        # How far the weights are from where they began is looked at once a step: the gate and the watch over drift ask for it.
        stats = self._learner.accumulate(data, loss, measures_kl=self._progress.pieces == 0)
        self._progress = RunProgress(self._progress.steps, self._progress.pieces + 1)
        if self._pieces.is_due:
            self.flush()
        return stats

    def apply(self, adam: Adam, normaliser: float) -> StepStats:
        """One optimiser step, on disk when this returns. Steps are counted from the run's beginning."""
        stats = self._learner.apply(adam, normaliser)
        self._progress = RunProgress(self._progress.steps + 1, 0)
        self._pieces.save_step(self._progress.steps, lambda: _step_part(self._learner))
        self._saved = self._progress
        return replace(stats, step=self._progress.steps)

    def flush(self) -> None:
        """Put on disk what is not there yet."""
        if self._saved != self._progress:
            self._pieces.save_gradient(self._progress, lambda: _gradient_part(self._learner))
            self._saved = self._progress

    def close(self, *, discard: bool) -> None:
        """End the run; it can be opened again unless it is discarded."""
        if not discard:
            self.flush()
        self._pieces.let_go(discard=discard)

    def abandon(self) -> None:
        """End the run as a crash would: what is on disk stays, and nothing is added."""
        self._pieces.let_go(discard=False)


def open_run(learner: Teachable, pieces: Pieces, plan: Plan) -> tuple[Run, list[str]]:
    """Go on where the run was, or begin it; and what a person should know about that."""
    pieces.claim(asdict(plan))
    found = pieces.recover()
    if found is not None:
        _restore(learner, found.step, found.gradient)
        return Run(learner, pieces, found.progress), found.notes
    notes = _begin(learner, plan)
    pieces.save_step(0, lambda: _step_part(learner))
    return Run(learner, pieces, RunProgress()), notes


def _begin(learner: Teachable, plan: Plan) -> list[str]:
    if plan.start is None:
        return []
    adapter = read_adapter(Path(plan.start.adapter))
    if plan.start.training is None or plan.start.backend != BACKEND:
        learner.adopt(adapter)
        return ["the weights to go on from have no training state of ours: the optimiser begins afresh"]
    if adapter.rank != plan.rank:
        learner.adopt(adapter)
        return [f"the weights to go on from have rank {adapter.rank}, the run {plan.rank}: the optimiser begins afresh"]
    _restore(learner, _read_training(Path(plan.start.training)), None)
    return []


def keep(learner: Teachable, folder: Path, base: str) -> None:
    """Write the present weights and what training goes on from; the folder appears whole, and replaces one of that name."""
    _write_weights(folder, learner.adapter(), _step_part(learner), base)


def shrink(learner: Teachable, source: Path, scale: float, folder: Path, base: str) -> None:
    """Write kept weights once more, with their change multiplied by a scale; the optimiser's moments stay as they were."""
    whole = read_adapter(source)
    adapter = Adapter(whole.rank, whole.alpha, {module: Pair(a, scale * b) for module, (a, b) in whole.pairs.items()})
    state = load(_read_training(source))
    with wearing(learner, adapter):
        values = learner.state()["adapter"]
    if values.shape != state["adapter"].shape:
        raise TrainingError(f"the weights in {source} are not of this run: their training state has another size")
    _write_weights(folder, adapter, save(state | {"adapter": values}), base)


def _write_weights(folder: Path, adapter: Adapter, training: bytes, base: str) -> None:
    making = folder.with_name(f".{folder.name}.tmp")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # What was left by a process that was killed here, or in the adapter's writer.
        for torn in (making, *folder.parent.glob(f".{making.name}.*.part")):
            shutil.rmtree(torn, ignore_errors=True)
        write_adapter(making, adapter, base)
        with (making / TRAINING_FILE).open("wb") as file:
            file.write(training)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(making)
        shutil.rmtree(folder, ignore_errors=True)
        making.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise TrainingError(f"cannot keep weights in {folder}: {error}") from error


@contextmanager
def wearing(learner: Teachable, adapter: Adapter | None) -> Iterator[None]:
    """Other weights for as long as a block runs: an adapter's, or the untrained model's."""
    present = learner.adapter()
    learner.adopt(adapter)
    try:
        yield
    finally:
        learner.adopt(present)


def _step_part(learner: Teachable) -> bytes:
    return save({name: tensor.cpu().contiguous() for name, tensor in learner.state().items() if not name.startswith(_GRADIENT)})


def _gradient_part(learner: Teachable) -> bytes:
    """The gradient, and the counters that accumulating moves; weights and moments are in the step's file."""
    state = learner.state().items()
    return save({name: tensor.cpu().contiguous() for name, tensor in state if name.startswith(_GRADIENT) or tensor.numel() == 1})


def _restore(learner: Teachable, step: bytes, gradient: bytes | None) -> None:
    none = {name: torch.zeros_like(tensor) for name, tensor in learner.state().items() if name.startswith(_GRADIENT)}
    learner.restore(none | load(step) | ({} if gradient is None else load(gradient)))


def _read_training(folder: Path) -> bytes:
    try:
        body = (folder / TRAINING_FILE).read_bytes()
        load(body)
    except (OSError, SafetensorError) as error:
        raise TrainingError(f"the training state in {folder} cannot be read: {error}") from error
    return body
