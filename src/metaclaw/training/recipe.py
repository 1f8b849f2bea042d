"""The settings of a training run, in one value, and its size by what the learning budget pays for. A
run whose judge the day's budget does not pay for waits until midnight."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
from anyio.to_thread import run_sync

from metaclaw.domain.chat import Text
from metaclaw.domain.training import Adam
from metaclaw.domain.turn import Step
from metaclaw.errors import TrainingBudgetError
from metaclaw.learn import TokenRoom
from metaclaw.ports import Tokeniser
from metaclaw.training.golden import GoldenItem
from metaclaw.training.rehearsal import RehearsalSize
from metaclaw.training.training_turns import TrainingTurn

log = logging.getLogger(__name__)

_LARGE_STEP: Final = 256
_SMALL_STEP_RATE: Final = 2.5e-4
_JUDGED_VALIDATION: Final = 12


class RunSize(msgspec.Struct, frozen=True):
    """So many prompts in each of at most so many steps, and about how many tokens judging a step
    takes; 0 where no judge scores.
    """

    prompts: int
    steps: int
    tokens_a_step: int = 0

    @property
    def tokens(self) -> int:
        """What judging takes if the run makes all its steps."""
        return self.steps * self.tokens_a_step


@dataclass(frozen=True, slots=True)
class Recipe:
    """At most `steps` optimiser steps, `warm_up` of them with a rising and `settle` with a falling
    rate; in each, `prompts_per_step` prompts are answered `group_size` times by the weights as they
    are then.

    A piece, drawn or learned from, is what is done between two looks at the window. `rehearsal`
    weighs what is rehearsed (`rehearsal`) against what is drawn; without a tokeniser
    nothing is. Of the checkpoints at the end of a run one is taken by `validation` prompts and by
    the `golden` items, of which it may lose `golden_margin` points; they are kept every `settle_every` steps of
    settling. The validation prompts are also looked at after every `validate_every` steps (0:
    never), and end a run that has learned enough. With `hindsight`, what the policy
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

    def on_a_cpu(self) -> "Recipe":
        """The same where answers and training share the CPU: less of everything that is only
        looked at, and pieces of about a second.
        """
        return replace(
            self,
            warm_up=4,
            settle=8,
            settle_every=8,
            rehearsal_size=RehearsalSize(questions=32, answers=2, at_once=6),
            validation=24,
            validate_every=4,
            prompts_a_piece=4,
            tokens_a_piece=2_048,
        )

    @property
    def settle_steps(self) -> int:
        """Steps that settle: a quarter of a short run."""
        return min(self.settle, self.steps // 4)


_CHARS_A_TOKEN: Final = 4
_FOR_LEARNING: Final = 0.7
"""Of what a day has for judging; the rest is for the choice of a checkpoint."""
_GATE_ANSWERS: Final = 40
"""The fewest judged answers by which the gate decides."""


_FRAME_TOKENS: Final = 400
"""The judge's instructions and its own words."""
_TOKENS_A_RANK: Final = 6
_ANSWERED_TWICE: Final = 1.25
"""Some prompts of a step are answered again, with a hint or hotter, and judged again."""
_USEFUL_STEPS: Final = 40
_LEAST_PROMPTS: Final = 4
_LEAST_STEPS: Final = 8


def ranking_tokens(prompt_tokens: int, answer_tokens: int, answers: int) -> int:
    """About how many tokens one call takes that compares so many answers to a prompt."""
    return _FRAME_TOKENS + prompt_tokens + answers * (answer_tokens + _TOKENS_A_RANK)


def judged_size(prompts: int, steps: int, rankings: Sequence[int | None]) -> RunSize:
    """The size of a run with what its judging takes; `rankings` are the tokens of one call for each
    turn, None where no judge is asked."""
    mean = sum(one or 0 for one in rankings) / max(1, len(rankings))
    return RunSize(prompts, steps, int(_ANSWERED_TWICE * prompts * mean))


def fit_to_budget(whole: RunSize, tokens_a_day: int) -> RunSize:
    """The run that a day's budget carries: many small steps teach more than a few large ones. A run
    that is too large for a day even then, with the fewest prompts and steps that make sense, takes
    several days."""
    if whole.tokens <= tokens_a_day:
        return whole
    tokens_a_prompt = whole.tokens_a_step / whole.prompts
    affordable = tokens_a_day / tokens_a_prompt
    prompts = min(whole.prompts, max(_LEAST_PROMPTS, int(affordable / _USEFUL_STEPS)))
    steps = min(whole.steps, max(_LEAST_STEPS, int(affordable / prompts)))
    return RunSize(prompts, steps, int(prompts * tokens_a_prompt))


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
