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
from metaclaw.train import LEAST_GAIN, ScoredGroup, StepRecord, TrainingData, imitate_hinted, with_hint
from metaclaw.wires import plain

log = logging.getLogger(__name__)

_TRIED: Final = 64
_LEAST_HELPED: Final = 0.03
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
            return self._tokeniser.prompt(plain(with_hint(sent_request(turn), text)))
        except (UnplayableError, WireError, EngineError, ValueError) as error:
            log.info("no_hint turn=%s reason=%s", turn.id, error)
            return None

    def _text(self, step: Step) -> str:
        skills = [skill for name in step.stamp.skills if (skill := self._skill(name)) is not None]
        texts = [skill.body.strip() for skill in skills]
        if (wanted := self._reference(step)) is not None:
            texts.append(f"The answer that was wanted to this before: {wanted}")
        return "\n".join(texts)[:_MOST_HINT_CHARS]


def may_help(records: Sequence[StepRecord]) -> bool:
    """Whether hints are worth drawing: they have not been tried often yet, or they helped now and then."""
    tried = sum(record.hinted for record in records)
    return tried < _TRIED or sum(record.helped for record in records) >= _LEAST_HELPED * tried


def distil(plainly: Sequence[ScoredGroup], with_hint: Sequence[ScoredGroup], weight: float = 1.0) -> TrainingData:
    """Data for cross entropy: of each prompt the answers with the hint that earned more than those without it, behind the prompt
    without the hint."""
    harvest = TrainingData(())
    for before, hinted_group in zip(plainly, with_hint, strict=True):
        rewards = [reward for _, reward in before.known]
        harvest += imitate_hinted([hinted_group], good=sum(rewards) / len(rewards) + LEAST_GAIN, weight=weight)
    return harvest
