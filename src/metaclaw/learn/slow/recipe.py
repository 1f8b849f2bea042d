"""The settings of a training run, in one value, and how rewards become advantages."""

import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from metaclaw.domain.training import Adam, Loss
from metaclaw.errors import TrainingError
from metaclaw.ports import Tokeniser
from metaclaw.train import (
    GoldenItem,
    RehearsalSize,
    RunSize,
    ScheduleRules,
    ScoredGroup,
    Teacher,
    Tracker,
    TrainingData,
    group_advantages,
)

log = logging.getLogger(__name__)

_KEY: Final = re.compile("[0-9a-f]{32}")
_LARGE_STEP: Final = 256
_SMALL_STEP_RATE: Final = 2.5e-4
_JUDGED_VALIDATION: Final = 12


class AdvantageRule(Protocol):
    """How rewards become advantages."""

    def judge(self, groups: Sequence[ScoredGroup], moved: float) -> TrainingData:
        """The data of a step; `moved` is how far the weights have gone since the last one, in nats a token."""

    def applied(self) -> None:
        """The step was taken: what it taught may be remembered."""


class StatelessAdvantage:
    """Advantages of each step by itself."""

    def __init__(self, rule: Callable[[Sequence[ScoredGroup]], TrainingData]) -> None:
        self._rule = rule

    def judge(self, groups: Sequence[ScoredGroup], moved: float) -> TrainingData:
        """The data of a step."""
        return self._rule(groups)

    def applied(self) -> None:
        """Nothing is remembered."""


class TrackedAdvantage:
    """Advantages against running values, which are kept in a file between runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tracker = _read(path)
        self._next = self._tracker

    def judge(self, groups: Sequence[ScoredGroup], moved: float) -> TrainingData:
        """The data of a step, against what was remembered before it."""
        harvest, self._next = self._tracker.judge(groups, moved)
        return harvest

    def applied(self) -> None:
        """Remember the step, on disk too."""
        self._tracker = self._next
        unfinished = self._path.with_suffix(".tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(json.dumps(self._tracker.state()), encoding="utf-8")
            unfinished.replace(self._path)
        except OSError as error:
            raise TrainingError(f"cannot keep running values in {self._path}: {error}") from error


def _read(path: Path) -> Tracker:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        # Files of earlier programs have the names of skills as keys.
        state["values"] = {key: value for key, value in state["values"].items() if _KEY.fullmatch(key)}
        return Tracker.of(state)
    except FileNotFoundError:
        return Tracker()
    except (OSError, ValueError, LookupError, TypeError, AttributeError, TrainingError) as error:
        log.warning("running_values_lost path=%s reason=%s", path, error)
        return Tracker()


@dataclass(frozen=True, slots=True)
class Recipe:
    """At most `steps` optimiser steps; in each, `prompts_per_step` prompts are answered `group_size` times by the weights as they
    are then.

    A piece, drawn or learned from, is what is done between two looks at the window. `rehearsal` weighs what is rehearsed
    (`train.rehearsal`) against what is drawn; without a tokeniser nothing is. Of the checkpoints at the end of a run one is taken
    by `validation` prompts and by the `golden` items, of which it may lose `golden_margin` points; with `validate_every`, the
    validation prompts also end a run that has learned enough. With `hindsight`, what
    the policy answers with a hint also teaches what it answers without; with a teacher, what the teacher finds likelier. A rate
    that is not fixed is lowered for small steps.
    """

    prompts_per_step: int = 32
    group_size: int = 16
    steps: int = 200
    warm_up: int = 10
    settle: int = 16
    max_tokens: int = 256
    temperature: float = 1.0
    rank: int = 16
    loss: Loss = field(default_factory=Loss)
    adam: Adam = field(default_factory=lambda: Adam(learning_rate=3e-4))
    has_fixed_rate: bool = True
    advantage: AdvantageRule = field(default_factory=lambda: StatelessAdvantage(group_advantages))
    hindsight: bool = False
    teacher: Teacher | None = None
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
        """The optimiser's settings for steps of this size: a step of few answers points less surely where to go."""
        is_large = self.prompts_per_step * self.group_size >= _LARGE_STEP
        if is_large or self.has_fixed_rate:
            return self.adam
        return replace(self.adam, learning_rate=min(self.adam.learning_rate, _SMALL_STEP_RATE))

    def resized(self, size: RunSize) -> "Recipe":
        """The same with steps of another size; where a judge scores, with few looks at few validation prompts."""
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
    def schedule(self) -> ScheduleRules:
        """How long the run goes on and how its rate changes."""
        return ScheduleRules(
            most=self.steps,
            warm_up=self.warm_up,
            settle=self.settle,
            settle_every=self.settle_every,
            validate_every=self.validate_every,
        )
