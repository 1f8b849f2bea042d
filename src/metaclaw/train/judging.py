"""What the judging of a run costs, and the size of run that a day's learning budget carries. Pure."""

from collections.abc import Sequence
from typing import Final

import msgspec

_FRAME_TOKENS: Final = 400
"""The judge's instructions and its own words."""
_TOKENS_A_RANK: Final = 6
_ANSWERED_TWICE: Final = 1.25
"""Some prompts of a step are answered again, with a hint or hotter, and judged again."""
_USEFUL_STEPS: Final = 40
_LEAST_PROMPTS: Final = 4
_LEAST_STEPS: Final = 8


class RunSize(msgspec.Struct, frozen=True):
    """So many prompts in each of at most so many steps, and about how many tokens judging a step takes; 0 where no judge scores."""

    prompts: int
    steps: int
    tokens_a_step: int = 0

    @property
    def tokens(self) -> int:
        """What judging takes if the run makes all its steps."""
        return self.steps * self.tokens_a_step


def ranking_tokens(prompt_tokens: int, answer_tokens: int, answers: int) -> int:
    """About how many tokens one call takes that compares so many answers to a prompt."""
    return _FRAME_TOKENS + prompt_tokens + answers * (answer_tokens + _TOKENS_A_RANK)


def judged_size(prompts: int, steps: int, rankings: Sequence[int | None]) -> RunSize:
    """The size of a run with what its judging takes; `rankings` are the tokens of one call for each turn, None where no judge is
    asked."""
    mean = sum(one or 0 for one in rankings) / max(1, len(rankings))
    return RunSize(prompts, steps, int(_ANSWERED_TWICE * prompts * mean))


def fit_to_budget(whole: RunSize, tokens_a_day: int) -> RunSize:
    """The run that a day's budget carries: many small steps teach more than a few large ones. A run that is too large for a day
    even then, with the fewest prompts and steps that make sense, takes several days."""
    if whole.tokens <= tokens_a_day:
        return whole
    tokens_a_prompt = whole.tokens_a_step / whole.prompts
    affordable = tokens_a_day / tokens_a_prompt
    prompts = min(whole.prompts, max(_LEAST_PROMPTS, int(affordable / _USEFUL_STEPS)))
    steps = min(whole.steps, max(_LEAST_STEPS, int(affordable / prompts)))
    return RunSize(prompts, steps, int(prompts * tokens_a_prompt))
