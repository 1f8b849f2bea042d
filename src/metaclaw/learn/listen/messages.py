"""Messages of people in the ledger: which turns begin with new words of a person, what they answer, and whose words they are."""

import re
from dataclasses import dataclass
from typing import Final

from metaclaw.domain.chat import Message, Role
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.step import Step
from metaclaw.domain.turn import Scope
from metaclaw.learn.steps import RecordedSteps, StepBuilder, text_of
from metaclaw.privacy import PassageSource, PersonsMessage, passages_of, split_message
from metaclaw.store import LedgerReader, RecordedTurn, TurnRow

_LOOK_BACK: Final = 4
_FOREIGN: Final = (PassageSource.SYSTEM, PassageSource.TOOL, PassageSource.WEB)
_WORD: Final = re.compile(r"\w")
_ROLES: Final = (
    "(?:sub-?)?agent|ai|analyst|architect|assistant|bot|chatbot|classifier|coder|component|designer|developer|editor|engineer"
    "|evaluator|expert|generator|judge|model|planner|professional|programmer|researcher|reviewer|scientist|specialist|system"
    "|tester|translator|tutor|worker|writer"
)
_GIVES_A_ROLE: Final = re.compile(
    rf"\W*(?:(?:you are|you're|you will|act|imagine you are) (?:now |be |act |work |serve )?(?:acting )?(?:as )?"
    rf"(?!my\b|our\b)(?:an? |the )?[\w ,/-]{{0,60}}"
    rf"\b(?:{_ROLES})\b"
    r"|du bist (?:jetzt )?eine?r? |sie sind eine?r? |eres una? |tu es une? |vous êtes une? "
    r"|你(?:现在|現在)?是(?:一|个|個)|あなたは)",
    re.IGNORECASE,
)
_STRUCTURE: Final = re.compile(r"^\s*(?:#{1,6} \S|[-*•] \S|\d{1,2}[.)] \S|<[a-z][\w-]*>\s*$)", re.MULTILINE)
_STRUCTURED_CHARS: Final = 800
_STRUCTURED_LINES: Final = 4


@dataclass(frozen=True, slots=True)
class SpokenMessage:
    """A message of a person and the turn that it began. `task` and `answer` are what it answers, empty where nothing came before;
    `answered` is the turn that gave that answer, with the names placed in it."""

    seq: int
    turn: TurnId
    session: SessionId
    scope: Scope
    provider: str
    model: str
    generation: int
    placed: tuple[SkillName, ...]
    words: PersonsMessage
    task: str
    answer: str
    answered: TurnId | None
    answered_with: tuple[SkillName, ...]


class Messages:
    """Reads messages of people from the ledger. Blocks."""

    def __init__(self, reader: LedgerReader, recorded: RecordedSteps, builder: StepBuilder) -> None:
        self._reader = reader
        self._recorded = recorded
        self._builder = builder

    def read(self, row: TurnRow) -> SpokenMessage | None:
        """The message that a main turn begins with; None where it holds no new words of a person."""
        earlier = self._reader.main_turns_before(row.session, row.seq, _LOOK_BACK)
        if earlier and earlier[0].segment == row.segment:
            return None
        this = self._reader.turn(row.id)
        step = None if this is None else self._recorded.build(this, None)
        if this is None or step is None or step.is_hired or not _WORD.search(step.task) or is_briefing(step.task):
            return None
        words = split_message(step.task)
        if not _WORD.search(words.shown):
            return None
        before = self._answered(this, earlier)
        task, answer = _before_in(step, self._builder, this) if before is None else (before.task, text_of(before.answer))
        turn = this.turn
        return SpokenMessage(
            seq=row.seq,
            turn=row.id,
            session=row.session,
            scope=turn.scope,
            provider=turn.provider,
            model=turn.model,
            generation=turn.stamp.generation,
            placed=turn.stamp.skills,
            words=words,
            task=task,
            answer=answer,
            answered=None if before is None else before.turn,
            answered_with=() if before is None else before.stamp.skills,
        )

    def foreign(self, turn: TurnId) -> list[str]:
        """What tools, pages and the client itself said in the conversation up to this turn."""
        step = self._recorded.alone(turn)
        return [] if step is None else [span.text for span in passages_of(step) if span.source in _FOREIGN]

    def _answered(self, this: RecordedTurn, earlier: list[TurnRow]) -> Step | None:
        """The step that this turn goes on from."""
        later = [this]
        for row in earlier:
            recorded = self._reader.turn(row.id)
            if recorded is None:
                continue
            if self._builder.following(recorded, later) is this:
                return self._recorded.build(recorded, this)
            later.insert(0, recorded)
        return None


def is_briefing(text: str) -> bool:
    """Whether a text reads as a prompt that a program sends to a model: it gives the model a role, or is long and
    built of headings and lists."""
    if _GIVES_A_ROLE.match(text):
        return True
    return len(text) > _STRUCTURED_CHARS and len(_STRUCTURE.findall(text)) >= _STRUCTURED_LINES


def _before_in(step: Step, builder: StepBuilder, this: RecordedTurn) -> tuple[str, str]:
    """The person's words before the last ones, and the answer between them, from the request itself."""
    messages = list(step.history)

    def pop(role: Role) -> Message | None:
        while messages:
            last = messages.pop()
            if last.role is role and (role is not Role.USER or builder.own_words(this.turn.agent, last)) and text_of(last.parts):
                return last
        return None

    pop(Role.USER)
    answer = pop(Role.ASSISTANT)
    asked = pop(Role.USER)
    task = "" if asked is None else builder.own_words(this.turn.agent, asked)
    return task, "" if answer is None else text_of(answer.parts)
