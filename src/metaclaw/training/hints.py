"""Hints: what a person or a skill said of the answer, put near the question.

The hint is the text of the rules and skills that stood in the turn's prompt, and the answer that
the person wanted, if they said it. Answers that are better with the hint are taught without it."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from metaclaw.domain.chat import ChatRequest, Message, Role, Text
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill
from metaclaw.domain.training import Datum
from metaclaw.domain.turn import Step, Turn
from metaclaw.errors import EngineError, WireError
from metaclaw.ports import Tokeniser
from metaclaw.training.advantages import ScoredGroup
from metaclaw.training.imitation import LEAST_GAIN
from metaclaw.training.records import StepRecord
from metaclaw.training.replay import UnplayableError, sent_request
from metaclaw.wires import plain

log = logging.getLogger(__name__)

_TRIED: Final = 64
_LEAST_HELPED: Final = 0.03
_MOST_HINT_CHARS: Final = 2_000
_HINT: Final = "\n\n(Keep to this: {hint}\nAnswer so, at once and without mentioning this remark.)"


@dataclass(frozen=True, slots=True, kw_only=True)
class HintPrompts:
    """Makes prompts with hints. Blocks."""

    skill: Callable[[SkillName], Skill | None]
    reference: Callable[[Step], str | None]
    tokeniser: Tokeniser

    def of(self, turn: Turn, step: Step) -> tuple[int, ...] | None:
        """The tokens of the turn's prompt with a hint; None where there is nothing to hint at."""
        text = self._text(step)
        if not text:
            return None
        try:
            return self.tokeniser.prompt(plain(with_hint(sent_request(turn), text)))
        except (UnplayableError, WireError, EngineError, ValueError) as error:
            log.info("no_hint turn=%s reason=%s", turn.id, error)
            return None

    def _text(self, step: Step) -> str:
        skills = [skill for name in step.stamp.skills if (skill := self.skill(name)) is not None]
        texts = [skill.body.strip() for skill in skills]
        if (wanted := self.reference(step)) is not None:
            texts.append(f"The answer that is wanted: {wanted}")
        return "\n".join(texts)[:_MOST_HINT_CHARS]


def with_hint(request: ChatRequest, hint: str) -> ChatRequest:
    """The request with a hint at the end of its last user message. Raises ValueError if there is
    none, or the hint is empty.
    """
    places = [at for at, message in enumerate(request.messages) if message.role is Role.USER]
    if not places or not hint.strip():
        raise ValueError("a hint needs a user message and a text")
    at = places[-1]
    message = request.messages[at]
    hinted = replace(message, parts=(*message.parts, Text(_HINT.format(hint=hint.strip()))))
    messages: tuple[Message, ...] = (*request.messages[:at], hinted, *request.messages[at + 1 :])
    return replace(request, messages=messages)


def may_help(records: Sequence[StepRecord]) -> bool:
    """Whether hints are worth drawing: they have not been tried often yet, or they helped now and
    then.
    """
    tried = sum(record.hinted for record in records)
    return tried < _TRIED or sum(record.helped for record in records) >= _LEAST_HELPED * tried


def distil(
    plainly: Sequence[ScoredGroup], with_hint: Sequence[ScoredGroup], weight: float = 1.0
) -> tuple[Datum, ...]:
    """Data for cross entropy: of each prompt the whole answers with the hint that earned more than
    those without it, behind the prompt without the hint."""
    data: list[Datum] = []
    for before, hinted in zip(plainly, with_hint, strict=True):
        rewards = [reward for _, reward in before.known]
        good = sum(rewards) / len(rewards) + LEAST_GAIN
        data += [
            Datum(
                before.turn,
                hinted.prompt,
                one.tokens_T,
                (weight,) * len(one.tokens_T),
                None,
            )
            for one, reward in hinted.known
            if one.is_whole and reward > good
        ]
    return tuple(data)
