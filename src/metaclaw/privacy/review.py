"""The privacy room's whole opinion of a proposal: secrets in it, instructions nobody gave, reach that waits for a person."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from metaclaw.domain.skill import Skill
from metaclaw.privacy.authority import Objection, authority
from metaclaw.privacy.capabilities import Capabilities, added, workspace_of
from metaclaw.privacy.combination import emergent
from metaclaw.privacy.provenance import Span
from metaclaw.privacy.redact import Finding, Redactor


@dataclass(frozen=True, slots=True)
class Review:
    """Secrets and objections refuse a proposal; reach makes it wait for a person."""

    secrets: tuple[Finding, ...]
    objections: tuple[Objection, ...]
    reach: Capabilities

    @property
    def is_refused(self) -> bool:
        """Whether the proposal may not go on as it is."""
        return bool(self.secrets or self.objections)

    @property
    def must_wait(self) -> bool:
        """Whether a person must say yes first."""
        return bool(self.reach)

    @property
    def may_pass(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.is_refused and not self.must_wait

    def words(self) -> str:
        """Why not, in one line; empty where it may pass."""
        secrets = [f"it contains a secret ({finding.placeholder})" for finding in self.secrets]
        doubts = [f"{one.doubt}: {one.instruction!r}: {one.reason}" for one in self.objections]
        return "; ".join((*secrets, *doubts, *((f"waits for a person, it adds {self.reach.words()}",) if self.reach else ())))


def review(
    skill: Skill, spans: Sequence[Span], existing: Iterable[Skill], redactor: Redactor, companions: Sequence[Skill] = ()
) -> Review:
    """Examine a proposed skill against what was said (`spans` of its supporting steps), what is in force, and its neighbours."""
    reach = added(skill, existing, workspace_of(spans))
    if companions:
        reach |= emergent((skill, *companions))
    # The name is not looked through: it is made of words of the trigger and body, and numbers between words look random.
    text = f"{skill.trigger}\n\n{skill.body}"
    return Review(redactor.text(text).found, authority(text, spans), reach)
