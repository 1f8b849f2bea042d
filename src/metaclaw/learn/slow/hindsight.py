"""Hindsight: prompts with a hint in them, and which answers given with the hint are taught without it.

The hint is the text of the rules and skills that stood in the turn's prompt, near the question, or the answer that the person
wanted to an earlier turn that asked the same; never what they said about this turn's own answer.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill
from metaclaw.domain.step import Step
from metaclaw.domain.turn import Turn
from metaclaw.errors import EngineError, WireError
from metaclaw.learn.prompt import UnplayableError, sent_request
from metaclaw.ports import Tokeniser
from metaclaw.train.distill.hindsight import hinted, imitate
from metaclaw.train.scored import FLAT, Harvest, Scored, spread
from metaclaw.wires import plain

log = logging.getLogger(__name__)

PROBES: Final = 8
"""Prompts on which a run finds out whether hints help."""
LEAST_GAIN: Final = 0.05
_LOW: Final = 0.5
_MOST_HINT_CHARS: Final = 2_000


class Hints:
    """Makes prompts with hints. Blocks."""

    def __init__(
        self, *, skill: Callable[[SkillName], Skill | None], reference: Callable[[Step], str | None], tokeniser: Tokeniser
    ) -> None:
        self._skill = skill
        self._reference = reference
        self._tokeniser = tokeniser

    def of(self, turn: Turn, step: Step) -> tuple[int, ...] | None:
        """The tokens of the turn's prompt with a hint; None where there is nothing to hint at."""
        text = self._text(step)
        if not text:
            return None
        try:
            return self._tokeniser.prompt(plain(hinted(sent_request(turn), text)))
        except (UnplayableError, WireError, EngineError, ValueError) as error:
            log.info("no_hint turn=%s reason=%s", turn.id, error)
            return None

    def _text(self, step: Step) -> str:
        skills = [skill for name in step.stamp.skills if (skill := self._skill(name)) is not None]
        texts = [skill.body.strip() for skill in skills]
        if (wanted := self._reference(step)) is not None:
            texts.append(f"The answer that was wanted to this before: {wanted}")
        return "\n".join(texts)[:_MOST_HINT_CHARS]


def needs_hint(group: Scored) -> bool:
    """Whether a group teaches nothing by itself: all its answers earned the same, and little."""
    rewards = [reward for _, reward in group.known]
    if not rewards:
        return False
    mean, deviation = spread(rewards)
    return mean < _LOW and deviation < FLAT


def distil(plainly: Sequence[Scored], with_hint: Sequence[Scored]) -> Harvest:
    """Data for cross entropy: of each prompt the answers with the hint that earned more than those without it, behind the prompt
    without the hint."""
    harvest = Harvest(())
    for before, hinted_group in zip(plainly, with_hint, strict=True):
        rewards = [reward for _, reward in before.known]
        harvest += imitate([hinted_group], good=sum(rewards) / len(rewards) + LEAST_GAIN)
    return harvest
