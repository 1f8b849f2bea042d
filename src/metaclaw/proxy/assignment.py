"""Which skills are left to chance, how likely they are placed, and how it falls out: the same for ever for one task of one session.

A draw is a keyed hash of session, segment and skill, read as a number between 0 and 1. So it needs no memory to be the same in
every request of a segment and after a restart, and two skills, or two segments, know nothing of each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.skill import Skill, SkillState
from metaclaw.domain.turn import Draw
from metaclaw.skills import may_be_withheld

_BITS = 53  # as many as a float holds exactly


@dataclass(frozen=True, slots=True)
class SkillAssignment:
    """How often a skill on trial is placed where it matches, and a learned one that is live is withheld to measure its worth.

    What a person wrote or told the agent to do, and whatever is pinned, is always placed.
    """

    canary_share: float = 1.0
    holdout_share: float = 0.0
    key: bytes = b""

    def __post_init__(self) -> None:
        if not 0 < self.canary_share <= 1 or not 0 <= self.holdout_share < 1:
            raise ValueError(
                f"a canary share of {self.canary_share} and a holdout share of {self.holdout_share} leave nothing to learn"
            )

    def propensity(self, skill: Skill) -> float:
        """The probability with which a matching skill is placed; 1 where it is not left to chance."""
        if not may_be_withheld(skill):
            return 1.0
        return self.canary_share if skill.state is SkillState.CANARY else 1.0 - self.holdout_share

    def concerns(self, skills: Sequence[Skill]) -> bool:
        """Whether any of the skills is left to chance."""
        return any(self.propensity(skill) < 1.0 for skill in skills)

    def draw(self, session: SessionId, segment: int, skills: Sequence[Skill]) -> tuple[Draw, ...]:
        """How it falls out for those of the skills that are left to chance."""
        uncertain = [(skill.name, propensity) for skill in skills if (propensity := self.propensity(skill)) < 1.0]
        return tuple(Draw(name, self._uniform(session, segment, name) < propensity, propensity) for name, propensity in uncertain)

    def _uniform(self, session: SessionId, segment: int, skill: SkillName) -> float:
        text = f"{segment}\0{skill}\0{session}".encode("utf-8", "surrogatepass")
        digest = blake2b(text, digest_size=8, key=self.key, person=b"metaclaw-draw").digest()
        return (int.from_bytes(digest) >> (64 - _BITS)) / (1 << _BITS)
