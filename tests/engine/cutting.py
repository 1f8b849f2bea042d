"""A training run that can be cut anywhere: what it does is fixed, and how far it had come is known from the disk alone."""

import os
from pathlib import Path
from typing import Final

import torch

from metaclaw.domain.batch import Adam, Datum, Drawing, Loss, LossKind, Progress
from metaclaw.domain.ids import TurnId
from metaclaw.engine.training import frames
from metaclaw.engine.training.learner import Learner
from metaclaw.engine.training.process import Trainer

PROMPTS: Final = ((1, 5, 6, 7), (1, 8, 9), (1, 10, 11, 12, 13))
ADAM: Final = Adam(learning_rate=2e-2)
LOSS: Final = Loss(LossKind.PPO)


def make_trainer(model: Path) -> Trainer:
    """A trainer without its process."""
    torch.set_num_threads(1)
    return Trainer(lambda rank, seed: Learner(model, rank=rank, seed=seed), "tiny", "tiny")


def open_message(folder: Path, **other: int) -> frames.Open:
    """The run that is cut."""
    return frames.Open("cut", None, other.get("rank", 4), other.get("seed", 3), str(folder))


def drawing(step: int) -> Drawing:
    """How a step's rollouts are drawn."""
    return Drawing(count=3, max_tokens=6, seed=step)


def piece_of(groups: list[list[tuple[tuple[int, ...], tuple[float, ...]]]], number: int) -> list[Datum]:
    """The data of one piece: one of each prompt's rollouts, and advantages that depend on what was drawn."""
    return [
        Datum(TurnId(f"turn-{prompt[1]}"), prompt, tokens, tuple((token % 7) / 3 - 1 for token in tokens), logprobs)
        for prompt, rollouts in zip(PROMPTS, groups, strict=True)
        for tokens, logprobs in [rollouts[number % len(rollouts)]]
    ]


def drive(model: Path, root: Path, steps: int, pieces: int) -> None:
    """Go on from wherever the run is to its end, and keep what came of it; then `root/end` is there."""
    trainer = make_trainer(model)
    opened = trainer.answer(open_message(root / "run"))
    assert isinstance(opened, frames.Opened)
    go_on(trainer, opened.progress, steps, pieces)
    trainer.answer(frames.Keep(str(root / "end")))
    trainer.answer(frames.Close(discard=False))


def go_on(trainer: Trainer, progress: Progress, steps: int, pieces: int) -> None:
    """The steps that are left. What is drawn depends on the weights and the seed alone, so it is drawn again and not remembered."""
    for step in range(progress.steps, steps):
        sampled = trainer.answer(frames.Sample([list(prompt) for prompt in PROMPTS], drawing(step), frames.Present()))
        assert isinstance(sampled, frames.Sampled)
        groups = [[(rollout.tokens_T, rollout.logprobs_T) for rollout in group] for group in sampled.groups]
        for number in range(progress.pieces if step == progress.steps else 0, pieces):
            trainer.answer(frames.Accumulate(piece_of(groups, number), LOSS))
        trainer.answer(frames.Apply(ADAM, 50.0))


def drive_quietly(model: Path, root: Path, steps: int, pieces: int) -> None:
    """The same in a process of its own, which says on a file that it is under way."""
    (root / "going").write_text(str(os.getpid()))
    drive(model, root, steps, pieces)
