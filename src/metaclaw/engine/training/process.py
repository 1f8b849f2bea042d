"""The loop of the trainer process: read a message, do the work, answer. One run is open at a
time.
"""

import gc
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

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
from metaclaw.durable_files import sync_path, write_file
from metaclaw.engine.checkpoint import map_tensors
from metaclaw.engine.frames import Pipe
from metaclaw.engine.training.calls import (
    UNTRAINED,
    FromTrainer,
    Planned,
    Source,
    TrainerAnswer,
    TrainerCall,
)
from metaclaw.engine.training.learner import Learner, describe_memory_error, is_out_of_memory
from metaclaw.engine.training.lora import (
    Adapter,
    Pair,
    Parameters,
    check_modules,
    projection_shapes,
    read_adapter,
    write_adapter,
)
from metaclaw.engine.training.packing import Pairs
from metaclaw.engine.training.plan import make_plan
from metaclaw.engine.training.run_files import RunFiles
from metaclaw.errors import MetaClawError, TrainerMemoryError, TrainingError
from metaclaw.ports import RunPlan

BACKEND: Final = "embedded"
"""The backend of weights that were kept here."""
TRAINING_FILE: Final = "training_state.safetensors"
"""The file next to a kept adapter from which training can continue."""
_GRADIENT: Final = "gradient"

Line: TypeAlias = Pipe[TrainerCall, FromTrainer]


class Run:
    """An open run: a learner, its progress, and the files that survive a crash. `open_run` makes
    one.
    """

    def __init__(self, learner: Learner, files: RunFiles, progress: RunProgress) -> None:
        self._learner = learner
        self._files = files
        self.progress = progress
        """Complete steps of this run, and pieces of the next."""
        self._saved = progress

    def accumulate(self, data: Sequence[Datum], loss: Loss) -> PieceStats:
        """Add a piece's gradient, and write the sum to disk if the last write was long enough
        ago.
        """
        # The distance from the untrained weights is measured once per step, for the gate and for
        # the drift watch.
        stats = self._learner.accumulate(data, loss, measures_kl=self.progress.pieces == 0)
        self.progress = RunProgress(self.progress.steps, self.progress.pieces + 1)
        if self._files.is_due:
            self._flush()
        return stats

    def apply(self, adam: Adam, normaliser: float) -> StepStats:
        """Make one optimiser step, and write it to disk. Steps are counted from the beginning of
        the run.
        """
        stats = self._learner.apply(adam, normaliser)
        self.progress = RunProgress(self.progress.steps + 1, 0)
        self._files.save_step(self.progress.steps, lambda: _step_part(self._learner))
        self._saved = self.progress
        return replace(stats, step=self.progress.steps)

    def close(self, *, discard: bool) -> None:
        """End the run; it can be opened again unless it is discarded."""
        if not discard:
            self._flush()
        self._files.release(discard=discard)

    def abandon(self) -> None:
        """End the run without writing: the files on disk stay as they are."""
        self._files.release(discard=False)

    def _flush(self) -> None:
        if self._saved != self.progress:
            self._files.save_gradient(self.progress, lambda: _gradient_part(self._learner))
            self._saved = self.progress


def open_run(learner: Learner, files: RunFiles, plan: RunPlan, model: str) -> tuple[Run, list[str]]:
    """Continue a run, or begin it; another plan or base model is refused. Also returns notes for
    the owner."""
    identity = asdict(plan) | {"model": model}
    del identity["folder"]
    files.claim(identity)
    recovered = files.recover()
    if recovered is not None:
        _restore(learner, recovered.step, recovered.gradient)
        return Run(learner, files, recovered.progress), recovered.notes
    notes = _begin(learner, plan)
    files.save_step(0, lambda: _step_part(learner))
    return Run(learner, files, RunProgress()), notes


def _begin(learner: Learner, plan: RunPlan) -> list[str]:
    if plan.start is None:
        return []
    adapter = read_adapter(Path(plan.start.adapter))
    if plan.start.training is None or plan.start.backend != BACKEND:
        learner.adopt(adapter)
        return [
            "the weights to continue from have no training state: the optimiser starts from zero"
        ]
    if adapter.rank != plan.rank:
        learner.adopt(adapter)
        return [
            f"the weights to continue from have rank {adapter.rank}, the run {plan.rank}: the"
            " optimiser starts from zero"
        ]
    _restore(learner, _read_training(Path(plan.start.training)), None)
    return []


def _shrink(source: Path, scale: float, folder: Path, base: str) -> None:
    """Write a copy of kept weights with their change multiplied by a scale; the optimiser's moments
    stay as they were.
    """
    whole = read_adapter(source)
    pairs = {module: Pair(a, scale * b) for module, (a, b) in whole.pairs.items()}
    adapter, state = Adapter(whole.rank, whole.alpha, pairs), load(_read_training(source))
    shapes = projection_shapes(map_tensors(Path(base)))
    check_modules(adapter, shapes)
    vector = Parameters(shapes, whole.rank, whole.alpha, torch.device("cpu"))
    vector.adopt(adapter)
    _write_weights(folder, adapter, save(state | {"adapter": vector.values}), base)


def _write_weights(folder: Path, adapter: Adapter, training: bytes, base: str) -> None:
    """Write an adapter and its training state to a folder, atomically, in place of an earlier
    folder of this name.
    """
    making = folder.with_name(f".{folder.name}.tmp")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Remove what a process left that was killed here, or while it wrote the adapter.
        for partial in (making, *folder.parent.glob(f".{making.name}.*.part")):
            shutil.rmtree(partial, ignore_errors=True)
        write_adapter(making, adapter, base)
        write_file(making / TRAINING_FILE, training)
        sync_path(making)
        shutil.rmtree(folder, ignore_errors=True)
        making.rename(folder)
        sync_path(folder.parent)
    except OSError as error:
        raise TrainingError(f"cannot keep weights in {folder}: {error}") from error


def _step_part(learner: Learner) -> bytes:
    return save({name: part for name, part in learner.state().items() if name != _GRADIENT})


def _gradient_part(learner: Learner) -> bytes:
    """The gradient alone; the rest is in the file of the step."""
    return save({_GRADIENT: learner.state()[_GRADIENT]})


def _restore(learner: Learner, step: bytes, gradient: bytes | None) -> None:
    none = {_GRADIENT: torch.zeros_like(learner.state()[_GRADIENT])}
    learner.restore(none | load(step) | ({} if gradient is None else load(gradient)))


def _read_training(folder: Path) -> bytes:
    try:
        body = (folder / TRAINING_FILE).read_bytes()
        load(body)
    except (OSError, SafetensorError) as error:
        raise TrainingError(f"the training state in {folder} cannot be read: {error}") from error
    return body


class Trainer:
    """Does the work of each message with one learner. `make` creates it for a rank and a seed;
    `model` is the base model's hash.
    """

    def __init__(self, make: Callable[[int, int], Learner], model: str, base: str) -> None:
        self._make = make
        self._model = model
        self._base = base
        self._learner: Learner | None = None
        self._run: Run | None = None
        self._plan: RunPlan | None = None

    def serve(self, pipe: Line) -> None:
        """TrainerAnswer until the pipe ends."""
        while True:
            pipe.send(self.answer(pipe.wait()))

    def answer(self, call: TrainerCall) -> FromTrainer:
        """Do a call; return its value or its error."""
        try:
            return TrainerAnswer(getattr(self, call.method)(*call.arguments))
        except TrainingError as error:
            return error
        except MetaClawError as error:
            return TrainingError(str(error))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return TrainerMemoryError(describe_memory_error(error))

    def open(self, plan: RunPlan) -> tuple[RunProgress, list[str]]:
        """Begin or continue a run; returns its progress, and notes for the owner."""
        if self._run is not None and plan == self._plan:
            return self._run.progress, []
        self.close(discard=False)
        files = RunFiles(plan.folder)
        try:
            # A new learner, because the old one may be trained, even if it has the same rank and
            # seed.
            learner = self._new_learner(plan.rank, plan.seed)
            self._run, notes = open_run(learner, files, plan, self._model)
        except MetaClawError:
            files.release(discard=False)
            raise
        self._plan = plan
        return self._run.progress, notes

    def sample(
        self, prompts: Sequence[Sequence[int]], drawing: Drawing, source: Source
    ) -> list[list[Rollout]]:
        """Draw rollouts, in the order of their prompts."""
        with self._weights(source) as learner:
            return learner.sample(prompts, drawing)

    def score(self, pairs: Pairs, source: Source) -> list[tuple[float, ...]]:
        """Log-probabilities of each second part after its first."""
        with self._weights(source) as learner:
            return learner.score(pairs)

    def accumulate(self, data: Sequence[Datum], loss: Loss) -> PieceStats:
        """Add one piece's gradient."""
        with self._training() as run:
            return run.accumulate(data, loss)

    def apply(self, adam: Adam, normaliser: float) -> StepStats:
        """Make one optimiser step, and write it to disk."""
        with self._training() as run:
            return run.apply(adam, normaliser)

    def keep(self, folder: Path) -> None:
        """Write the current weights into a folder, atomically."""
        with self._weights(None) as learner:
            _write_weights(folder, learner.adapter(), _step_part(learner), self._base)

    def shrink(self, adapter: Path, scale: float, folder: Path) -> None:
        """Write kept weights into another folder, with their change multiplied by a scale."""
        _shrink(adapter, scale, folder, self._base)

    def plan(self, device: str, rank: int, slots: int) -> Planned:
        """Measure what the model needs and how fast it is. `slots` are the requests that are served
        at once."""
        self.close(discard=False)
        make = partial(self._new_learner, rank, 0)
        return make_plan(Path(self._base), device, rank, slots, make)

    def close(self, discard: bool) -> None:
        """End the run. Unless it is discarded, its state is written to disk first."""
        run, self._run = self._run, None
        if run is not None:
            run.close(discard=discard)

    @contextmanager
    def _training(self) -> Iterator[Run]:
        run = self._open_run()
        before = run.progress
        try:
            yield run
        except MetaClawError:
            if run.progress != before:
                # The change could not be written to disk. Opening the run again returns to the
                # state on disk.
                self._run = None
                run.abandon()
            raise

    def _open_run(self) -> Run:
        if self._run is None:
            raise TrainingError("no run is open")
        return self._run

    @contextmanager
    def _weights(self, source: Source) -> Iterator[Learner]:
        """The learner, with the weights of this source while the block runs."""
        if source is None:
            self._open_run()
            assert self._learner is not None
            yield self._learner
            return
        adapter = None if source == UNTRAINED else read_adapter(Path(source))
        learner = self._learner or self._new_learner(adapter.rank if adapter else 1, 0)
        with learner.using(adapter):
            yield learner

    def _new_learner(self, rank: int, seed: int) -> Learner:
        # Its memory is needed for the next one, and parts of it refer to each other.
        self._learner = None
        gc.collect()
        self._learner = self._make(rank, seed)
        return self._learner
