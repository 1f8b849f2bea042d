"""How a run is done: everything a person may choose about training, in one value."""

import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from metaclaw.domain.batch import Adam, Loss
from metaclaw.domain.ids import TurnId
from metaclaw.domain.step import Step
from metaclaw.errors import TrainingError
from metaclaw.train.advantages import Tracker, group_advantages
from metaclaw.train.distill.teacher import Teacher
from metaclaw.train.scored import Harvest, Scored

log = logging.getLogger(__name__)

_KEY: Final = re.compile("[0-9a-f]{32}")


class Advantage(Protocol):
    """How rewards become advantages."""

    def judge(self, groups: Sequence[Scored], moved: float) -> Harvest:
        """The data of a step; `moved` is how far the weights have gone since the last one, in nats a token."""

    def applied(self) -> None:
        """The step was taken: what it taught may be remembered."""


class Stateless:
    """Advantages of each step by itself."""

    def __init__(self, rule: Callable[[Sequence[Scored]], Harvest]) -> None:
        self._rule = rule

    def judge(self, groups: Sequence[Scored], moved: float) -> Harvest:
        """The data of a step."""
        return self._rule(groups)

    def applied(self) -> None:
        """Nothing is remembered."""


class Tracked:
    """Advantages against running values, which are kept in a file between runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tracker = _read(path)
        self._next = self._tracker

    def judge(self, groups: Sequence[Scored], moved: float) -> Harvest:
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
    """`steps` optimiser steps over one batch; for each its prompts are answered `group_size` times by the weights as they are then.

    A piece, drawn or learned from, is what is done between two looks at the window. With `hindsight`, corrected turns also teach
    what the policy would have said had it known the correction; with a teacher, what the teacher finds likelier.
    """

    group_size: int = 8
    steps: int = 4
    max_tokens: int = 256
    temperature: float = 1.0
    rank: int = 32
    loss: Loss = field(default_factory=Loss)
    adam: Adam = field(default_factory=Adam)
    advantage: Advantage = field(default_factory=lambda: Stateless(group_advantages))
    hindsight: bool = False
    teacher: Teacher | None = None
    prompts_a_piece: int = 4
    tokens_a_piece: int = 2_048


@dataclass(frozen=True, slots=True)
class Lesson:
    """A turn to learn from: exactly the tokens the policy saw, and the step, for whoever says what an answer is worth.

    `hinted` is the same prompt with the person's correction in it, where there was one.
    """

    turn: TurnId
    prompt: tuple[int, ...]
    step: Step
    key: str
    hinted: tuple[int, ...] | None = None
