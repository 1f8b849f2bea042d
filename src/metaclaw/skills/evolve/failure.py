"""A failure: a turn with the verdict that it failed."""

from dataclasses import dataclass

from metaclaw.domain.step import Step
from metaclaw.domain.verdict import Source, Verdict

CORRECTION_READ = "correction.read"
"""The detector of a verdict that rests on what a model read in the person's next message."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A turn, and what it came to."""

    step: Step
    verdict: Verdict

    def __post_init__(self) -> None:
        if self.step.turn != self.verdict.turn:
            raise ValueError(f"the verdict on turn {self.verdict.turn} is not about turn {self.step.turn}")

    @property
    def complaint(self) -> str:
        """What the person said was wrong, in their feedback or next; empty where they said nothing."""
        comment = self.verdict.comment.strip() if self.verdict.source is Source.USER else ""
        return comment or (self.step.said_after or "").strip()


def is_spoken_against(failure: Failure) -> bool:
    """Whether the person spoke against the answer, in their feedback or next."""
    return is_on_users_word(failure) or any(one.detector.startswith("correction.") for one in failure.verdict.signals)


def is_on_users_word(failure: Failure) -> bool:
    """Whether the person said what was wrong, in their feedback or in a message that a model read: then one failure is enough to
    learn from."""
    verdict = failure.verdict
    is_read = any(signal.detector == CORRECTION_READ for signal in verdict.signals)
    return verdict.teaches and (is_read or (verdict.source is Source.USER and bool(verdict.comment.strip())))
