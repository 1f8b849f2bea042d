"""What a run is: which tasks, how many rollouts, how fast it learns, how long it may take."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from benchmarks.house_rules.rules import Rule


class Condition(StrEnum):
    """Which of the two loops is on."""

    BASE = "base"
    SKILLS = "skills only"
    RL = "RL only"
    FULL = "full"

    @property
    def has_skill(self) -> bool:
        """Whether the rule stands in the prompt, in teaching and in asking."""
        return self in (Condition.SKILLS, Condition.FULL)

    @property
    def learns(self) -> bool:
        """Whether weights are taught."""
        return self in (Condition.RL, Condition.FULL)


@dataclass(frozen=True, slots=True)
class Settings:
    """All numbers of a run. It ends early once a share of `enough` of the last few steps' answers was exactly right. `rehearsal`
    weighs a rehearsed token against a drawn one (see `rehearsal`); `cool_down` is the share of the run in which the rate falls.
    `settle_steps` more steps with a falling rate come behind an early end; every `settle_every` of them weights are put aside, of
    which one is taken that answers `settle_at` of `settle_on` questions (see `choosing`); 0 takes the last."""

    rules: tuple[Rule, ...]
    prompts: int
    group: int
    max_tokens: int
    rank: int
    learning_rate: float
    warm_up_steps: int
    steps: int
    minutes: float
    held_out: int
    look_every: int
    look_at: int
    piece_prompts: int
    temperature: float = 1.0
    kl: float = 0.0
    rehearsal: float = 0.0
    rehearsed_prompts: int = 32
    enough: float = 1.0
    cool_down: float = 0.5
    golden: bool = True
    settle_steps: int = 0
    settle_every: int = 4
    settle_at: float = 0.92
    settle_on: int = 150


LARGE: Final = Settings(
    rules=tuple(Rule),
    prompts=32,
    group=16,
    max_tokens=40,
    rank=16,
    learning_rate=3e-4,
    warm_up_steps=10,
    steps=120,
    minutes=9.5,
    held_out=400,
    look_every=25,
    look_at=100,
    piece_prompts=32,
    rehearsal=2.0,
    rehearsed_prompts=96,
    enough=0.97,
    settle_steps=16,
)
"""For one GPU."""

SMALL: Final = Settings(
    rules=(Rule.METADATA,),
    prompts=4,
    group=12,
    max_tokens=18,
    rank=16,
    learning_rate=2.5e-4,
    warm_up_steps=4,
    steps=1000,
    minutes=8.5,
    held_out=40,
    look_every=25,
    look_at=20,
    piece_prompts=4,
    enough=0.97,
    cool_down=0.2,
    golden=False,
)
"""For two CPU cores. Most of a step is reading prompts, so few of them with many rollouts each. Tried on a GPU with seeds 0 to 2: a
higher rate, or a higher temperature, collapses so small steps onto the first manner of answering that pays anything, and of the
rules this is the one that is found most surely."""

CONDITIONS: Final = {False: tuple(Condition), True: (Condition.BASE, Condition.SKILLS, Condition.FULL)}
"""What is run unless something else is asked for, by whether it is the small version: there a second training has no time."""


class Paced(Protocol):
    """Settings of any run whose rate rises, stays and falls."""

    @property
    def learning_rate(self) -> float: ...
    @property
    def warm_up_steps(self) -> int: ...
    @property
    def cool_down(self) -> float: ...


def learning_rate(settings: Paced, step: int, progress: float) -> float:
    """The rate of a step (from 1): up in a straight line, then flat, and down to a tenth over the last part of the run.

    `progress` is the share of the run that is over, by steps or by the clock, whichever is further.
    """
    rise = min(1.0, step / max(1, settings.warm_up_steps))
    fall = 1.0 - 0.9 * max(0.0, 1.0 - (1.0 - min(1.0, progress)) / settings.cool_down)
    return settings.learning_rate * min(rise, fall)
