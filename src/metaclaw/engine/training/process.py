"""The trainer process: one message read, its work done, one answered; it ends when the program ends."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias, assert_never

from metaclaw.engine.pipe import Pipe
from metaclaw.engine.training import frames
from metaclaw.engine.training.memory import in_words, is_out_of_memory
from metaclaw.engine.training.peft import read_adapter
from metaclaw.engine.training.run import Plan, Run, Teachable, keep, open_run, shrink, wearing
from metaclaw.engine.training.run_files import Pieces
from metaclaw.errors import MetaClawError, MissingPackageError, TrainerMemoryError, TrainingError

_LOOK_S: Final = 0.02


Line: TypeAlias = Pipe[frames.ToTrainer, frames.FromTrainer]


class Trainer:
    """What the program asks for, done with one learner. `make` loads one by rank and seed; `model` tells one base from others."""

    def __init__(self, make: Callable[[int, int], Teachable], model: str, base: str, flag: Path | None = None) -> None:
        self._make = make
        self._model = model
        self._base = base
        self._flag = flag
        self._learner: Teachable | None = None
        self._run: Run | None = None
        self._asked: frames.Open | None = None

    def serve(self, pipe: Line) -> None:
        """Answer until the pipe ends."""
        while True:
            message = pipe.wait()
            self._stand()
            pipe.send(self.answer_safely(message))

    def answer_safely(self, message: frames.ToTrainer) -> frames.FromTrainer:
        """Do what a message asks for, or say why it was not done."""
        try:
            return self.answer(message)
        except MetaClawError as error:
            return frames.RequestFailed(str(error), isinstance(error, MissingPackageError), isinstance(error, TrainerMemoryError))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return frames.RequestFailed(in_words(error), needs_memory=True)

    def answer(self, message: frames.ToTrainer) -> frames.FromTrainer:
        """Do what a message asks for. Raises MetaClawError."""
        match message:
            case frames.Open():
                return self._open(message)
            case frames.Sample():
                with self._weights(message.source) as learner:
                    return frames.Sampled(learner.sample(message.prompts, message.drawing, self._stand))
            case frames.Score():
                with self._weights(message.source) as learner:
                    return frames.Scored(learner.score(message.pairs))
            case frames.Accumulate():
                with self._teaching() as run:
                    return frames.Accumulated(run.accumulate(message.data, message.loss))
            case frames.Apply():
                with self._teaching() as run:
                    return frames.Applied(run.apply(message.adam, message.normaliser))
            case frames.Keep():
                self._opened()
                keep(self._present(), Path(message.folder), self._base)
                return frames.Done()
            case frames.Shrink():
                with self._weights(frames.Kept(message.adapter)) as learner:
                    shrink(learner, Path(message.adapter), message.scale, Path(message.folder), self._base)
                return frames.Done()
            case frames.Close():
                self._close(discard=message.discard)
                return frames.Done()
            case _:
                assert_never(message)

    def _open(self, message: frames.Open) -> frames.Opened:
        if self._run is not None and message == self._asked:
            return frames.Opened(self._run.progress, [])
        self._close(discard=False)
        plan = Plan(message.name, message.start, message.rank, message.seed, self._model)
        pieces = Pieces(Path(message.folder))
        try:
            # A learner that was taught is not a fresh one, even if it was made for the same rank and seed.
            self._run, notes = open_run(self._new_learner(plan.rank, plan.seed), pieces, plan)
        except MetaClawError:
            pieces.let_go(discard=False)
            raise
        self._asked = message
        return frames.Opened(self._run.progress, notes)

    def _close(self, *, discard: bool) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.close(discard=discard)

    @contextmanager
    def _teaching(self) -> Iterator[Run]:
        run = self._opened()
        before = run.progress
        try:
            yield run
        except MetaClawError:
            if run.progress != before:
                # It was learned and could not be put on disk. What the disk has is the truth: opening goes back to it.
                self._run = None
                run.abandon()
            raise

    def _opened(self) -> Run:
        if self._run is None:
            raise TrainingError("no run is open")
        return self._run

    def _present(self) -> Teachable:
        assert self._learner is not None
        return self._learner

    @contextmanager
    def _weights(self, source: frames.Source) -> Iterator[Teachable]:
        if isinstance(source, frames.Present):
            self._opened()
            yield self._present()
            return
        adapter = read_adapter(Path(source.adapter)) if isinstance(source, frames.Kept) else None
        learner = self._learner or self._new_learner(adapter.rank if adapter else 1, 0)
        with wearing(learner, adapter):
            yield learner

    def _new_learner(self, rank: int, seed: int) -> Teachable:
        self._learner = None  # its memory is needed for the next
        self._learner = self._make(rank, seed)
        return self._learner

    def _stand(self) -> None:
        """Where there are no signals to stop us: stand still for as long as the program's flag is up."""
        while self._flag is not None and self._flag.exists():
            time.sleep(_LOOK_S)
