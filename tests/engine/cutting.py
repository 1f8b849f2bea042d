"""A training run that can be cut anywhere: what it does is fixed, and how far it had come is known
from the disk alone.
"""

from pathlib import Path
from typing import Any, Final

import torch

from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Adam, Datum, Drawing, Loss, LossKind, RunProgress
from metaclaw.engine.training.learner import Learner
from metaclaw.engine.training.process import Trainer
from metaclaw.ports import RunPlan

PROMPTS: Final = ((1, 5, 6, 7), (1, 8, 9), (1, 10, 11, 12, 13))
ADAM: Final = Adam(learning_rate=2e-2)
LOSS: Final = Loss(LossKind.PPO)


def make_trainer(model: Path) -> Trainer:
    """A trainer without its process."""
    torch.set_num_threads(1)
    return Trainer(lambda rank, seed: Learner(model, rank=rank, seed=seed), "tiny", "tiny")


def plan(folder: Path, **other: int) -> RunPlan:
    """The run that is cut."""
    return RunPlan("cut", None, other.get("rank", 4), other.get("seed", 3), folder)


def drawing(step: int) -> Drawing:
    """How a step's rollouts are drawn."""
    return Drawing(count=3, max_tokens=6, seed=step)


def piece_of(
    groups: list[list[tuple[tuple[int, ...], tuple[float, ...]]]], number: int
) -> list[Datum]:
    """The data of one piece: one of each prompt's rollouts, and advantages that depend on what was
    drawn.
    """
    return [
        Datum(
            TurnId(f"turn-{prompt[1]}"),
            prompt,
            tokens,
            tuple((token % 7) / 3 - 1 for token in tokens),
            logprobs,
        )
        for prompt, rollouts in zip(PROMPTS, groups, strict=True)
        for tokens, logprobs in [rollouts[number % len(rollouts)]]
    ]


def drive(model: Path, root: Path, steps: int, pieces: int) -> None:
    """Go on from wherever the run is to its end, and keep what came of it in `root/end`."""
    _drive(make_trainer(model), root, steps, pieces)


class _Noting(Trainer):
    """A trainer that leaves a byte in a file for each call that is begun."""

    asked: Path

    def __getattribute__(self, name: str) -> Any:
        if name in ("open", "sample", "accumulate", "apply", "keep", "close"):
            with self.asked.open("ab") as file:
                file.write(b".")
        return super().__getattribute__(name)


def drive_noting(model: Path, root: Path, steps: int, pieces: int) -> None:
    """The same, with a byte in `root/asked` for each call that is begun."""
    trainer = make_trainer(model)
    trainer.__class__ = _Noting
    trainer.__dict__["asked"] = root / "asked"
    _drive(trainer, root, steps, pieces)


def _drive(trainer: Trainer, root: Path, steps: int, pieces: int) -> None:
    progress, _ = trainer.open(plan(root / "run"))
    go_on(trainer, progress, steps, pieces)
    trainer.keep(root / "end")
    trainer.close(discard=False)


def go_on(trainer: Trainer, progress: RunProgress, steps: int, pieces: int) -> None:
    """The steps that are left. What is drawn depends on the weights and the seed alone, so it is
    drawn again and not remembered.
    """
    for step in range(progress.steps, steps):
        groups = [
            [(rollout.tokens_T, rollout.logprobs_T) for rollout in group]
            for group in trainer.sample(PROMPTS, drawing(step), None)
        ]
        for number in range(progress.pieces if step == progress.steps else 0, pieces):
            trainer.accumulate(piece_of(groups, number), LOSS)
        trainer.apply(ADAM, 50.0)
