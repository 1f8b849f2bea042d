"""A failure: a turn with the verdict that it failed."""

from dataclasses import dataclass

from metaclaw.domain.step import Step
from metaclaw.domain.verdict import Source, Verdict
from metaclaw.skills.evolve.corrections import find_correction
from metaclaw.skills.evolve.instructions import find_instructions


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


def is_on_users_word(failure: Failure) -> bool:
    """Whether the person said in words what was wrong: then one failure is enough to learn from."""
    if not failure.verdict.teaches:
        return False
    if failure.verdict.source is Source.USER and failure.verdict.comment.strip():
        return True
    said = failure.step.said_after
    return said is not None and (find_correction(said) is not None or bool(find_instructions(said)))
