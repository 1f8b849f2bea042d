"""The settings of a training run, in one value, and its size by what the learning budget pays for. A
run whose judge the day's budget does not pay for waits until midnight."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from anyio.to_thread import run_sync

from metaclaw.domain.chat import Text
from metaclaw.domain.training import Adam
from metaclaw.domain.turn import Step
from metaclaw.errors import TrainingBudgetError
from metaclaw.learn import TokenRoom
from metaclaw.ports import Tokeniser
from metaclaw.training.golden import GoldenItem
from metaclaw.training.progress import (
    RunSize,
    ScheduleThresholds,
    fit_to_budget,
    judged_size,
    ranking_tokens,
)
from metaclaw.training.rehearsal import RehearsalSize
from metaclaw.training.training_turns import TrainingTurn

log = logging.getLogger(__name__)

_LARGE_STEP: Final = 256
_SMALL_STEP_RATE: Final = 2.5e-4
_JUDGED_VALIDATION: Final = 12


@dataclass(frozen=True, slots=True)
class Recipe:
    """At most `steps` optimiser steps; in each, `prompts_per_step` prompts are answered
    `group_size` times by the weights as they are then.

    A piece, drawn or learned from, is what is done between two looks at the window. `rehearsal`
    weighs what is rehearsed (`rehearsal`) against what is drawn; without a tokeniser
    nothing is. Of the checkpoints at the end of a run one is taken by `validation` prompts and by
    the `golden` items, of which it may lose `golden_margin` points; with `validate_every`, the
    validation prompts also end a run that has learned enough. With `hindsight`, what the policy
    answers with a hint also teaches what it answers without. A rate that is not fixed is lowered for small steps."""

    prompts_per_step: int = 32
    group_size: int = 16
    steps: int = 200
    warm_up: int = 10
    settle: int = 16
    max_tokens: int = 256
    temperature: float = 1.0
    rank: int = 16
    adam: Adam = field(default_factory=lambda: Adam(learning_rate=3e-4))
    has_fixed_rate: bool = True
    hindsight: bool = False
    rehearsal: float = 0.0
    rehearsal_size: RehearsalSize = field(default_factory=RehearsalSize)
    tokeniser: Tokeniser | None = None
    golden: tuple[GoldenItem, ...] = ()
    golden_margin: float = 1.0
    validation: int = 128
    validate_every: int = 0
    settle_every: int = 4
    prompts_a_piece: int = 32
    tokens_a_piece: int = 65_536

    @property
    def step_adam(self) -> Adam:
        """The optimiser's settings for steps of this size: a step of few answers points less surely
        where to go.
        """
        is_large = self.prompts_per_step * self.group_size >= _LARGE_STEP
        if is_large or self.has_fixed_rate:
            return self.adam
        return replace(self.adam, learning_rate=min(self.adam.learning_rate, _SMALL_STEP_RATE))

    def resized(self, size: RunSize) -> "Recipe":
        """The same with steps of another size; where a judge scores, with few looks at few
        validation prompts.
        """
        sized = replace(self, prompts_per_step=size.prompts, steps=size.steps)
        if not size.tokens_a_step:
            return sized
        return replace(
            sized,
            warm_up=min(self.warm_up, max(2, size.steps // 5)),
            validation=min(self.validation, _JUDGED_VALIDATION),
            validate_every=0,
            settle_every=self.settle,
        )

    @property
    def schedule(self) -> ScheduleThresholds:
        """How long the run goes on and how its rate changes."""
        return ScheduleThresholds(
            most=self.steps,
            warm_up=self.warm_up,
            settle=self.settle,
            settle_every=self.settle_every,
            validate_every=self.validate_every,
        )


_CHARS_A_TOKEN: Final = 4
_FOR_LEARNING: Final = 0.7
"""Of what a day has for judging; the rest is for the choice of a checkpoint."""
_GATE_ANSWERS: Final = 40
"""The fewest judged answers by which the gate decides."""


@dataclass(frozen=True, slots=True)
class JudgingBudget:
    """What judging costs. `room` is what the budget has for it; `needs_judge` whether answers to a
    turn are judged, and blocks.
    """

    room: Callable[[], Awaitable[TokenRoom]]
    needs_judge: Callable[[Step], bool]

    async def size(self, turns: Sequence[TrainingTurn], recipe: Recipe) -> RunSize:
        """The size of a run that begins with these turns."""
        found = await run_sync(lambda: [self._tokens(turn, recipe.group_size) for turn in turns])
        whole = judged_size(recipe.prompts_per_step, recipe.steps, found)
        return (
            fit_to_budget(whole, int(_FOR_LEARNING * (await self.room()).a_day))
            if whole.tokens
            else whole
        )

    async def reduction(self, size: RunSize, recipe: Recipe) -> str | None:
        """That a run was made smaller for the budget, and what to do; None where it was not."""
        if (size.prompts, size.steps) == (recipe.prompts_per_step, recipe.steps):
            return None
        room = await self.room()
        return (
            f"the day's learning budget pays for about {room.a_day:,} tokens of judging, so the run"
            f" makes at most {size.steps} steps of {size.prompts} prompts (about {size.tokens:,}"
            f" tokens) instead of {recipe.steps} of {recipe.prompts_per_step}; for longer runs"
            f" raise {room.setting}, or give the skill a check, which costs nothing"
        )

    async def require(self, tokens: int) -> None:
        """Raise TrainingBudgetError where so many tokens cannot be paid for now. More than a day
        has are not asked for.
        """
        if not tokens:
            return
        room = await self.room()
        if room.left < min(tokens, max(1, room.a_day // 2)):
            raise TrainingBudgetError(waits_until(room))

    async def require_for_gate(self, turns: Sequence[TrainingTurn]) -> None:
        """Raise TrainingBudgetError where the gate could not be paid for."""
        found = await run_sync(lambda: [self._tokens(turn, 2) for turn in turns])
        await self.require(_GATE_ANSWERS * sum(one or 0 for one in found) // max(1, len(found)))

    async def reason(self) -> str:
        """Why judging waits, and until when."""
        return waits_until(await self.room())

    def _tokens(self, turn: TrainingTurn, answers: int) -> int | None:
        if not self.needs_judge(turn.step):
            return None
        said = sum(len(part.text) for part in turn.step.answer if isinstance(part, Text))
        return ranking_tokens(len(turn.prompt), said // _CHARS_A_TOKEN, answers)


def waits_until(room: TokenRoom) -> str:
    """That the budget is used up, when it is renewed, and which setting limits it."""
    return (
        "waits: the day's learning budget for judging is used up; it goes on at"
        f" {room.resets_at:%H:%M}, or after a restart with a larger {room.setting}"
    )
