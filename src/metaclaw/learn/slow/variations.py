"""More prompts to learn from: recorded turns whose request is varied (`train.variations`), where a check can score the answers."""

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from metaclaw.domain.chat import ChatRequest
from metaclaw.domain.ids import TurnId
from metaclaw.errors import EngineError, WireError
from metaclaw.learn.slow.examples import asking, is_asked_in
from metaclaw.learn.slow.recipe import Lesson
from metaclaw.learn.slow.rewards import Rewards
from metaclaw.ports import Tokeniser
from metaclaw.train import VariationKind, vary
from metaclaw.wires import plain

log = logging.getLogger(__name__)

_MOST_PROMPTS: Final = 512
_MOST_OF_A_TURN: Final = 6
_MOST_TASK_CHARS: Final = 400
_MARK: Final = "~"


def base_turn(turn: TurnId) -> TurnId:
    """The recorded turn that a prompt was made from."""
    return TurnId(turn.split(_MARK)[0])


class Variations:
    """Makes varied prompts. `request` is what the provider got for a turn, None where that cannot be read. Blocks."""

    def __init__(self, *, request: Callable[[TurnId], ChatRequest | None], rewards: Rewards, tokeniser: Tokeniser) -> None:
        self._request = request
        self._rewards = rewards
        self._tokeniser = tokeniser

    def of(self, lessons: Sequence[Lesson], seed: int) -> list[Lesson]:
        """Varied prompts of these turns, as many of each; the same for the same turns and seed."""
        able = [one for one in lessons if len(one.step.task) <= _MOST_TASK_CHARS and self._rewards.has_check(one.step)]
        if not able:
            return []
        tasks: dict[str, list[str]] = {}
        for one in able:
            tasks.setdefault(one.key, []).append(one.step.task)
        kinds = {key: VariationKind.of(some) for key, some in tasks.items()}
        each = min(_MOST_OF_A_TURN, _MOST_PROMPTS // len(able))
        return [varied for one in able for varied in self._of_one(one, kinds[one.key], each, seed)]

    def _of_one(self, lesson: Lesson, kind: VariationKind, count: int, seed: int) -> list[Lesson]:
        request, task = self._request(lesson.turn), lesson.step.task
        if request is None or not is_asked_in(request, task):
            return []
        chance = random.Random(f"{seed}/{lesson.turn}")
        found: dict[str, Lesson] = {}
        for number in range(count):
            varied = vary(task, kind, chance)
            if varied is None or varied in found:
                continue
            try:
                prompt = self._tokeniser.prompt(plain(asking(request, task, varied)))
            except (WireError, EngineError, ValueError) as error:
                log.info("not_varied turn=%s reason=%s", lesson.turn, error)
                return []
            turn = TurnId(f"{lesson.turn}{_MARK}{number}")
            history = asking(ChatRequest(request.wire, "", lesson.step.history), task, varied).messages
            step = replace(lesson.step, turn=turn, task=varied, history=history, answer=(), after=(), said_after=None)
            found[varied] = replace(lesson, turn=turn, prompt=prompt, step=step, hinted=None)
        return list(found.values())
