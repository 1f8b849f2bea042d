"""Whether the day's learning budget pays for the judge that scores a run's answers: the size of a run is chosen by it, and a run
that it does not pay for waits until midnight, with nothing held."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from anyio.to_thread import run_sync

from metaclaw.domain.chat import Text
from metaclaw.domain.turn import Step
from metaclaw.errors import TrainingBudgetError
from metaclaw.learn.budget import TokenRoom
from metaclaw.learn.slow.recipe import Recipe
from metaclaw.learn.slow.training_turns import TrainingTurn
from metaclaw.train import RunSize, fit_to_budget, judged_size, ranking_tokens

log = logging.getLogger(__name__)

_CHARS_A_TOKEN: Final = 4
_FOR_LEARNING: Final = 0.7
"""Of what a day has for judging; the rest is for the choice of a checkpoint."""
_GATE_ANSWERS: Final = 40
"""The fewest judged answers by which the gate decides."""


class JudgingBudget:
    """What judging costs. `room` is what the budget has for it; `needs_judge` whether answers to a turn are judged, and blocks."""

    def __init__(self, room: Callable[[], Awaitable[TokenRoom]], needs_judge: Callable[[Step], bool]) -> None:
        self._room = room
        self._needs_judge = needs_judge

    async def size(self, turns: Sequence[TrainingTurn], recipe: Recipe) -> RunSize:
        """The size of a run that begins with these turns."""
        found = await run_sync(lambda: [self._tokens(turn, recipe.group_size) for turn in turns])
        whole = judged_size(recipe.prompts_per_step, recipe.steps, found)
        return fit_to_budget(whole, int(_FOR_LEARNING * (await self._room()).a_day)) if whole.tokens else whole

    async def told(self, size: RunSize, recipe: Recipe) -> str | None:
        """That a run was made smaller for the budget, and what to do; None where it was not."""
        if (size.prompts, size.steps) == (recipe.prompts_per_step, recipe.steps):
            return None
        room = await self._room()
        return (
            f"the day's learning budget pays for about {room.a_day:,} tokens of judging, so the run makes at most {size.steps}"
            f" steps of {size.prompts} prompts (about {size.tokens:,} tokens) instead of {recipe.steps} of"
            f" {recipe.prompts_per_step}; for longer runs raise {room.setting}, or give the skill a check, which costs nothing"
        )

    async def require(self, tokens: int) -> None:
        """Raise TrainingBudgetError where so many tokens cannot be paid for now. More than a day has are not asked for."""
        if not tokens:
            return
        room = await self._room()
        if room.left < min(tokens, max(1, room.a_day // 2)):
            raise TrainingBudgetError(waits_until(room))

    async def require_for_gate(self, turns: Sequence[TrainingTurn]) -> None:
        """Raise TrainingBudgetError where the gate could not be paid for."""
        found = await run_sync(lambda: [self._tokens(turn, 2) for turn in turns])
        await self.require(_GATE_ANSWERS * sum(one or 0 for one in found) // max(1, len(found)))

    async def reason(self) -> str:
        """Why judging waits, and until when."""
        return waits_until(await self._room())

    def _tokens(self, turn: TrainingTurn, answers: int) -> int | None:
        if not self._needs_judge(turn.step):
            return None
        said = sum(len(part.text) for part in turn.step.answer if isinstance(part, Text))
        return ranking_tokens(len(turn.prompt), said // _CHARS_A_TOKEN, answers)


def waits_until(room: TokenRoom) -> str:
    """That the budget is used up, when it is renewed, and which setting limits it."""
    return (
        f"waits: the day's learning budget for judging is used up; it goes on at {room.resets_at:%H:%M}, or after a restart with a"
        f" larger {room.setting}"
    )
