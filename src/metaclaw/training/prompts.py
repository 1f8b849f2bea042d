"""Prompts made from those of recorded turns: with a hint, with another question, without skills.

A hint is what a person or a skill said of the answer, put near the question: the text of the rules
and skills that stood in the turn's prompt, and the answer that the person wanted, if they said it.
Answers that are better with the hint are taught without it.

A rule may become a habit, kept without its text, if it has a check and holds for whatever the
home's person does: other people, projects and channels share the weights and not the rule."""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from metaclaw.domain.chat import ChatRequest, Message, Role, Text
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Skill, SkillGeneration, SkillKind
from metaclaw.domain.turn import Step, Turn
from metaclaw.errors import EngineError, WireError
from metaclaw.ports import Tokeniser
from metaclaw.skills import OWNER, Budgets
from metaclaw.store import LedgerReader
from metaclaw.training.replay import UnplayableError, request_without, sent_request
from metaclaw.training.training_turns import TrainingTurn
from metaclaw.wires import plain

log = logging.getLogger(__name__)

_MOST_HINT_CHARS: Final = 2_000
_HINT: Final = "\n\n(Keep to this: {hint}\nAnswer so, at once and without mentioning this remark.)"


@dataclass(frozen=True, slots=True)
class PromptPair:
    """A recorded prompt, and the same without some of its skills."""

    turn: TurnId
    step: Step
    whole: tuple[int, ...]
    without: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptMaker:
    """Puts prompts together again. `reference` is the answer that a person wanted, `generation`
    gives the skills that were in force then. Blocks.
    """

    reader: LedgerReader
    tokeniser: Tokeniser
    skill: Callable[[SkillName], Skill | None]
    reference: Callable[[Step], str | None]
    generation: Callable[[int], SkillGeneration | None]
    budgets: Budgets

    def request(self, turn: TurnId) -> ChatRequest | None:
        """What the provider got for a turn; None where that cannot be read."""
        recorded = self.reader.turn(turn)
        try:
            return None if recorded is None else sent_request(recorded.turn)
        except UnplayableError:
            return None

    def hinted(self, turn: Turn, step: Step) -> tuple[int, ...] | None:
        """The turn's prompt with a hint; None where there is nothing to hint at."""
        skills = [skill for name in step.stamp.skills if (skill := self.skill(name)) is not None]
        texts = [skill.body.strip() for skill in skills]
        if (wanted := self.reference(step)) is not None:
            texts.append(f"The answer that is wanted: {wanted}")
        hint = "\n".join(texts)[:_MOST_HINT_CHARS]
        return self._made(turn.id, lambda: with_hint(sent_request(turn), hint))

    def without_rules(self, turn: Turn) -> tuple[int, ...] | None:
        """The turn's prompt without the rules that may become habits; None where there are none."""
        generation = self.generation(turn.stamp.generation)
        if generation is None or turn.scope.user is not None:
            return None
        known = {one.name: one for one in generation.skills}
        gone = {
            name
            for name in turn.stamp.skills
            if name in known and may_become_habit(known[name]) and self.skill(name) == known[name]
        }
        if not gone:
            return None
        return self._made(turn.id, lambda: request_without(turn, gone, known, self.budgets))

    def asking(self, turn: TrainingTurn, asked: str, without: str = "") -> tuple[int, ...] | None:
        """The turn's prompt with another question in place of its task, and without some lines."""
        request, task = self.request(turn.id), turn.step.task
        if request is None or not _is_asked_in(request, task):
            return None
        messages = request.messages
        for lines in (f"{without}\n", without) if without else ():
            messages = tuple(_changed(message, lines, "") for message in messages)
        shown = replace(request, messages=asking(messages, task, asked))
        return self._made(turn.id, lambda: shown)

    def prompts_with(
        self, skill: Skill, turns: Sequence[TrainingTurn], others: Collection[SkillName] = ()
    ) -> list[PromptPair]:
        """The prompts among these in which the skill stood, and the same without it and `others`."""
        gone = {skill.name, *others}
        found = [
            self._pair(skill, gone, turn) for turn in turns if skill.name in turn.step.stamp.skills
        ]
        return [one for one in found if one is not None]

    def _pair(
        self, skill: Skill, gone: Collection[SkillName], turn: TrainingTurn
    ) -> PromptPair | None:
        recorded = self.reader.turn(turn.id)
        generation = None if recorded is None else self.generation(recorded.turn.stamp.generation)
        if recorded is None or generation is None:
            return None
        known = {one.name: one for one in generation.skills}
        if skill.name not in known or known[skill.name].content_hash != skill.content_hash:
            return None  # another text stood there
        sent = recorded.turn
        whole = self._made(turn.id, lambda: sent_request(sent))
        without = self._made(turn.id, lambda: request_without(sent, gone, known, self.budgets))
        if whole is None or without is None:
            return None
        return PromptPair(turn.id, turn.step, whole, without)

    def _made(self, turn: TurnId, make: Callable[[], ChatRequest | None]) -> tuple[int, ...] | None:
        try:
            request = make()
            return None if request is None else self.tokeniser.prompt(plain(request))
        except (UnplayableError, WireError, EngineError, ValueError) as error:
            log.info("no_prompt turn=%s reason=%s", turn, error)
            return None


def may_become_habit(skill: Skill) -> bool:
    """Whether it is a rule with a check that holds for whatever the home's person does."""
    is_for_all = skill.applies_always and skill.workspace is None and skill.channel is None
    return (
        skill.kind is SkillKind.RULE
        and skill.check is not None
        and is_for_all
        and skill.expires is None
        and skill.scope in (None, OWNER)
    )


def with_hint(request: ChatRequest, hint: str) -> ChatRequest | None:
    """The request with a hint at the end of its last user message; None if there is none, or the
    hint is empty.
    """
    places = [at for at, message in enumerate(request.messages) if message.role is Role.USER]
    if not places or not hint.strip():
        return None
    messages, at = list(request.messages), places[-1]
    said = Text(_HINT.format(hint=hint.strip()))
    messages[at] = replace(messages[at], parts=(*messages[at].parts, said))
    return replace(request, messages=tuple(messages))


def asking(messages: Sequence[Message], task: str, asked: str) -> tuple[Message, ...]:
    """Messages that ask something else in place of a task."""
    return tuple(
        _changed(message, task, asked) if message.role is Role.USER and task else message
        for message in messages
    )


def _is_asked_in(request: ChatRequest, task: str) -> bool:
    """Whether the person's last message holds a task word for word."""
    asked = [message for message in request.messages if message.role is Role.USER]
    return bool(task) and any(
        task in part.text
        for message in asked[-1:]
        for part in message.parts
        if isinstance(part, Text)
    )


def _changed(message: Message, old: str, new: str) -> Message:
    parts = tuple(
        replace(part, text=part.text.replace(old, new)) if isinstance(part, Text) else part
        for part in message.parts
    )
    return replace(message, parts=parts)
