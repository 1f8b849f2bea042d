"""A question that was asked: its prompt and stamp, what was said, what it came to, and whether it may train."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from metaclaw.domain.chat import Text
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.step import Step
from metaclaw.domain.turn import Scope, Stamp, TurnEnd, TurnKind
from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict
from metaclaw_bench.agent.direct import files_in
from metaclaw_bench.questions import KEEP_IN_MIND, ChoiceCheck
from metaclaw_bench.workdays.model import Answer, Files, Item

PROVIDER: Final = "embedded"


class Marked(Protocol):
    """What an answer is worth. `score` is the published one: partial credit for choices, all or nothing for files. `partial` is the
    share of single assertions that hold, of files too."""

    @property
    def score(self) -> float: ...
    @property
    def passed(self) -> bool: ...
    @property
    def partial(self) -> float: ...


Score = Callable[[Item, Answer, Files], Marked]


@dataclass(frozen=True, slots=True)
class Question:
    """An item on its day, before anybody has answered it. `before` is the workspace it finds."""

    turn: TurnId
    session: SessionId
    day: int
    scope: Scope
    item: Item
    before: Files

    @property
    def text(self) -> str:
        """What the person says."""
        return self.item.round.question

    @property
    def is_choice(self) -> bool:
        """Whether letters are asked for, and not files."""
        return isinstance(self.item.round.check, ChoiceCheck)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with its answer: a turn, as far as deciding whether it may train needs one (`domain.eligibility.Made`)."""

    question: Question
    prompt: tuple[int, ...]
    stamp: Stamp
    said: str
    tokens: tuple[int, ...]
    is_whole: bool
    passed: bool
    score: float

    @property
    def kind(self) -> TurnKind:
        """The agent at work."""
        return TurnKind.MAIN

    @property
    def end(self) -> TurnEnd:
        """How serving ended."""
        return TurnEnd.COMPLETED

    @property
    def provider(self) -> str:
        """Who answered."""
        return PROVIDER

    @property
    def verdict(self) -> Verdict:
        """What the person's reply comes to: they say whether it was right."""
        turn = self.question.turn
        if self.passed:
            return Verdict(turn, Outcome.PASS, Source.USER, 0.0)
        return Verdict(turn, Outcome.FAIL, Source.USER, 1.0, fault=Fault.AGENT)


def read_answer(said: str) -> Answer:
    """Words and files of an answer's text."""
    words, files = files_in(said)
    return Answer(words, files)


def in_words(answer: Answer) -> str:
    """A reference answer as a model is to write it."""
    files = "\n".join(f"FILE {path}\n{contents.strip()}" for path, contents in answer.files.items())
    return "\n".join(part for part in (answer.text.strip(), files) if part)


def step_of(asked: Asked, reply: str) -> Step:
    """The turn as those see it who make skills of what a person said after it."""
    question = asked.question
    return Step(
        turn=question.turn,
        session=question.session,
        scope=question.scope,
        stamp=asked.stamp,
        model=PROVIDER,
        task=question.text,
        history=(),
        tools=(),
        answer=(Text(asked.said),),
        end=TurnEnd.COMPLETED,
        said_after=reply,
    )


def reply_to(question: Question, letters: frozenset[str] | None, *, passed: bool) -> str:
    """What the person says to an answer, as the published benchmark words it; `letters` are those it chose, None where none."""
    check, feedback = question.item.round.check, question.item.round.feedback
    if passed:
        return feedback.correct
    if not isinstance(check, ChoiceCheck):
        return f"{feedback.incorrect}\n{KEEP_IN_MIND}"
    if letters is None:
        return f"Note: your previous response did not include a \\bbox{{X}} answer. {KEEP_IN_MIND}"
    return "\n".join([*_about(feedback.options, check, letters), KEEP_IN_MIND])


def _about(options: Mapping[str, str], check: ChoiceCheck, letters: frozenset[str]) -> list[str]:
    missed = [f"You missed option {letter}: {options.get(letter, '')}" for letter in sorted(check.answer - letters)]
    wrong = [f"You incorrectly selected option {letter}: {options.get(letter, '')}" for letter in sorted(letters - check.answer)]
    return missed + wrong
