"""A training backend in plain Python (ports.TrainingBackend), for tests of everything around it:
its reward really rises.

A run's file is replaced after every piece and every step, so a run goes on exactly where it was.
"""

import asyncio
import pickle
import random
from collections.abc import Sequence
from pathlib import Path
from typing import cast

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
from metaclaw.errors import TrainingError
from metaclaw.ports import Abilities, RunPlan
from metaclaw.training.backends.service import check_data
from tests.support.softmax import END, Sampler, Softmax, decode

_FILE = "toy.pickle"


class ToyBackend:
    """One run at a time, all of it in this process. `folder` is where kept weights lie."""

    def __init__(self, folder: Path, name: str = "toy") -> None:
        self.name = name
        self._folder = folder
        self._run: RunPlan | None = None
        self._policy = Softmax()

    @property
    def abilities(self) -> Abilities:
        """All losses and the KL term."""
        return Abilities(yields=False, scales=True)

    async def open(self, run: RunPlan) -> RunProgress:
        """Begin this run, or go on with it where it was, pieces included."""
        path = run.folder / _FILE
        if path.exists():
            self._policy = _read(path)
        else:
            self._policy = _read(self._training(run.start)).copy() if run.start else Softmax()
        self._run = run
        return RunProgress(self._policy.steps, self._policy.pieces)

    async def sample(
        self, prompts: Sequence[Sequence[int]], drawing: Drawing, weights: Weights | None = None
    ) -> list[list[Rollout]]:
        """For each prompt `drawing.count` rollouts; each depends only on the seed and its own
        numbers.
        """
        return _draw(self._of(weights), prompts, drawing)

    async def sample_base(
        self, prompts: Sequence[Sequence[int]], drawing: Drawing
    ) -> list[list[Rollout]]:
        """The same from the untrained policy."""
        return _draw(Softmax(), prompts, drawing)

    async def score(
        self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], weights: Weights | None = None
    ) -> list[tuple[float, ...]]:
        """Log-probabilities of each pair's second part after its first."""
        policy = self._of(weights)
        return [policy.score(prompt, tokens) for prompt, tokens in pairs]

    async def score_base(
        self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]
    ) -> list[tuple[float, ...]]:
        """The same under the untrained policy."""
        return [Softmax().score(prompt, tokens) for prompt, tokens in pairs]

    async def accumulate(self, data: Sequence[Datum], loss: Loss) -> PieceStats:
        """Add one piece's gradient; it is on disk when this returns."""
        run = self._open_run()
        check_data(data, loss)
        tokens = sum(len(datum.tokens_T) for datum in data)
        self._policy.learn(data, loss)
        await asyncio.to_thread(_write, run.folder / _FILE, self._policy)
        return PieceStats(tokens)

    async def apply(self, adam: Adam, normaliser: float) -> StepStats:
        """One optimiser step; on disk when this returns."""
        run = self._open_run()
        if not self._policy.pieces or not normaliser > 0.0:
            raise TrainingError(
                f"cannot apply {self._policy.pieces} pieces divided by {normaliser}"
            )
        norm = self._policy.step(adam, normaliser)
        await asyncio.to_thread(_write, run.folder / _FILE, self._policy)
        return StepStats(self._policy.steps, norm)

    async def keep(self, label: str) -> Weights:
        """The present weights in a file of their own."""
        self._open_run()
        path = self._folder / f"{label}.pickle"
        await asyncio.to_thread(_write, path, self._policy)
        return Weights(self.name, str(path), str(path))

    async def shrink(self, weights: Weights, scale: float, label: str) -> Weights:
        """Kept weights, multiplied by a scale, in another file."""
        policy = _read(Path(self._ours(weights).adapter))
        policy.weights = {key: scale * row for key, row in policy.weights.items()}
        path = self._folder / f"{label}.pickle"
        await asyncio.to_thread(_write, path, policy)
        return Weights(self.name, str(path), str(path))

    async def discard(self, weights: Weights) -> None:
        """Remove their file."""
        await asyncio.to_thread(Path(self._ours(weights).adapter).unlink, missing_ok=True)

    async def close(self, *, discard: bool) -> None:
        """End the run; with `discard` its file goes, too."""
        if self._run is not None and discard:
            (self._run.folder / _FILE).unlink(missing_ok=True)
        self._run = None

    async def aclose(self) -> None:
        """Nothing is held but memory."""
        self._run = None

    def _of(self, weights: Weights | None) -> Softmax:
        if weights is not None:
            return _read(Path(self._ours(weights).adapter))
        self._open_run()
        return self._policy

    def _training(self, weights: Weights) -> Path:
        if self._ours(weights).training is None:
            raise TrainingError(
                f"the weights {weights.adapter} hold nothing that training could go on from"
            )
        return Path(weights.training or "")

    def _ours(self, weights: Weights) -> Weights:
        if weights.backend != self.name:
            raise TrainingError(
                f"weights of backend {weights.backend} cannot be used by {self.name}"
            )
        return weights

    def _open_run(self) -> RunPlan:
        if self._run is None:
            raise TrainingError(f"no run is open on {self.name}")
        return self._run


def _draw(
    policy: Softmax, prompts: Sequence[Sequence[int]], drawing: Drawing
) -> list[list[Rollout]]:
    sampler = Sampler(policy, drawing.temperature)
    return [
        [
            _rollout(sampler, prompt, drawing, f"{drawing.seed}/{number}/{one}")
            for one in range(drawing.count)
        ]
        for number, prompt in enumerate(prompts)
    ]


def _rollout(sampler: Sampler, prompt: Sequence[int], drawing: Drawing, seed: str) -> Rollout:
    drawn = sampler.draw(prompt, drawing.max_tokens, random.Random(seed))
    tokens = tuple(token for token, _ in drawn)
    return Rollout(
        tokens, tuple(logprob for _, logprob in drawn), decode(tokens), tokens[-1] == END
    )


def _read(path: Path) -> Softmax:
    try:
        return cast(Softmax, pickle.loads(path.read_bytes()))
    except (OSError, EOFError, pickle.UnpicklingError) as error:
        raise TrainingError(f"cannot read {path}: {error}") from error


def _write(path: Path, policy: Softmax) -> None:
    draft = path.with_suffix(".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(pickle.dumps(policy))
        draft.replace(path)
    except OSError as error:
        raise TrainingError(f"cannot write {path}: {error}") from error
