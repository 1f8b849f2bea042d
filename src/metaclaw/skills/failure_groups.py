"""Kinds of failure: failures with the same cause in one project of one person are shown to the
evolver together.

The cause is what the person said, or else the detector's signal with the class of the error. Tool
calls that failed are no kind of failure here: they make lessons (`learn.lessons`)."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from metaclaw.domain.ids import TurnId
from metaclaw.domain.turn import Step
from metaclaw.domain.verdict import Fault, Source, Verdict
from metaclaw.skills.rules import slug
from metaclaw.skills.scopes import scope_of_lesson

CORRECTION_READ = "correction.read"
"""The detector of a verdict that rests on what a model read in the person's next message."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A turn and its verdict."""

    step: Step
    verdict: Verdict

    def __post_init__(self) -> None:
        if self.step.turn != self.verdict.turn:
            raise ValueError(
                f"the verdict on turn {self.verdict.turn} is not about turn {self.step.turn}"
            )

    @property
    def is_spoken_against(self) -> bool:
        """Whether the person objected to the answer, in feedback or in their next message."""
        return self.is_on_users_word or any(
            one.detector.startswith("correction.") for one in self.verdict.signals
        )

    @property
    def is_on_users_word(self) -> bool:
        """Whether the person said what was wrong, in feedback or in a message that a model read:
        then one failure is enough to learn from."""
        verdict = self.verdict
        is_read = any(signal.detector == CORRECTION_READ for signal in verdict.signals)
        return verdict.teaches and (
            is_read or (verdict.source is Source.USER and bool(verdict.comment.strip()))
        )


SAID = "correction"
JUDGED = "judged"
_CAUSES = {
    SAID: "you corrected the answer",
    JUDGED: "the judge found the answer wrong",
    "hollow": "the agent said it was done, and it was not",
    "tests": "tests failed",
    "redo": "you asked for the same again",
    "interrupt": "you stopped the agent",
    "undone": "a change was undone",
    "apology": "the agent took its answer back",
    "ending": "the answer was empty, cut off or refused",
    "reply": "your reply spoke against the answer",
}
"""What went wrong, in words, by how the cause begins."""
_OF_TOOL_CALLS = ("tool-error", "exit", "exception", "schema", "repeat")
_ERROR_CLASS = re.compile(
    r"\b([A-Z]\w{2,40}(?:Error|Exception|Warning))\b|\b(E[A-Z]{3,12})\b|\bexit(?:ed)?(?: with)?(?:"
    r" code|"
    r" status)?[ :=]+(\d{1,3})\b|\b(\w+-error)\b"
)


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failures of one kind, oldest first."""

    scope: str
    workspace: str | None
    cause: str
    failures: tuple[Failure, ...]

    @property
    def key(self) -> tuple[str, str | None, str]:
        """The same for all failures of this kind."""
        return self.scope, self.workspace, self.cause

    @property
    def turns(self) -> tuple[TurnId, ...]:
        """The turns that failed, oldest first."""
        return tuple(failure.step.turn for failure in self.failures)

    @property
    def in_words(self) -> str:
        """What went wrong, for people."""
        return next(
            (words for cause, words in _CAUSES.items() if self.cause.startswith(cause)),
            "the answer failed",
        )

    def is_learnable(self, min_failures: int) -> bool:
        """Whether there is enough to learn from: `min_failures`, or one where the person said what
        was wrong.
        """
        return len(self.failures) >= min_failures or any(
            failure.is_on_users_word for failure in self.failures
        )


def group_failures(failures: Sequence[Failure]) -> list[FailureGroup]:
    """Group failures of the agent by kind. Turns that passed, are unknown, failed by the
    environment or by a tool call are left out.
    """
    together: dict[tuple[str, str | None, str], list[Failure]] = defaultdict(list)
    distinct = {failure.step.turn: failure for failure in failures if failure.verdict.teaches}
    for turn in sorted(distinct):
        failure = distinct[turn]
        cause, scope = _cause(failure), failure.step.scope
        if not cause.startswith(_OF_TOOL_CALLS):
            together[scope_of_lesson(scope), scope.workspace, cause].append(failure)
    kinds = [FailureGroup(*key, tuple(members)) for key, members in together.items()]
    return sorted(kinds, key=lambda kind: kind.turns)


def _cause(failure: Failure) -> str:
    """`SAID` where the person objected, else the strongest signal of the detectors with the class
    of the error; `JUDGED` if only the judge found it wrong.
    """
    if failure.is_spoken_against:
        return SAID
    against = [
        signal
        for signal in failure.verdict.signals
        if signal.evidence > 0 and signal.fault is Fault.AGENT
    ]
    if not against:
        return JUDGED
    strongest = max(against, key=lambda signal: (signal.evidence, signal.detector, signal.quote))
    found = _ERROR_CLASS.search(strongest.quote)
    name = next(filter(None, found.groups()), "") if found else ""
    return slug([strongest.detector, name]) or JUDGED
