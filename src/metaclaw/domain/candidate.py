"""Candidates for the skill library, and their standing at the gate."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, NewType

from metaclaw.domain.ids import SkillName, TurnId, new_id
from metaclaw.domain.skill import Skill

PROPOSED: Final = "proposed"
"""The kind of a proposal that came from a file or an agent, and not from a turn."""
CandidateId = NewType("CandidateId", str)


class Change(StrEnum):
    """The change that a proposal makes to the library."""

    NEW = "new"
    EDIT = "edit"
    MERGE = "merge"


@dataclass(frozen=True, slots=True)
class Proposal:
    """A new skill, or an edit or merge of the skills named in `replaces`, as an evolver or a
    template proposes it.
    """

    skill: Skill
    change: Change
    replaces: tuple[SkillName, ...]
    support: tuple[TurnId, ...]
    kind: str
    written_by: str
    is_instruction: bool = False
    script: str = ""
    """The text of the script in the skill's folder (see `learn.procedures`)."""
    said_by: str = ""
    """The person who proposes it for others, where no turn taught it."""

    def __post_init__(self) -> None:
        if (self.change is Change.NEW) != (not self.replaces):
            raise ValueError(
                f"proposal {self.skill.name}: an edit or merge, and nothing else, names the skills"
                " it replaces"
            )
        if not self.support and not self.said_by:
            raise ValueError(f"proposal {self.skill.name} names no turn that taught it")


@dataclass(frozen=True, slots=True)
class Objection:
    """Why a proposal is rejected, or, if it `waits`, why a person must decide."""

    reason: str
    waits: bool = False


class Standing(StrEnum):
    """The standing of a candidate: at the gate (draft), waiting for a person, accepted or rejected."""

    DRAFT = "draft"
    WAITING = "waiting"
    ACCEPTED = "accepted"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposal with its standing at the gate, and the reason."""

    id: CandidateId
    proposal: Proposal
    standing: Standing
    reason: str
    generation: int
    made_at: datetime

    @staticmethod
    def new(
        proposal: Proposal, standing: Standing, reason: str, generation: int, made_at: datetime
    ) -> "Candidate":
        """A candidate with an id of its own."""
        return Candidate(CandidateId(new_id("c_")), proposal, standing, reason, generation, made_at)
