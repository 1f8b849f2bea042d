"""Candidates: skills that are not proven yet, their way through the gate, and the certificate of those that came through."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NewType

from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Skill, SkillState
from metaclaw.domain.verdict import Outcome

CandidateId = NewType("CandidateId", str)


class Change(StrEnum):
    """What a proposal does to the library."""

    NEW = "new"
    EDIT = "edit"
    MERGE = "merge"


@dataclass(frozen=True, slots=True)
class Proposal:
    """What an evolver or a template wants: a new skill, or a bounded edit (or merge) of existing ones named in `replaces`."""

    skill: Skill
    change: Change
    replaces: tuple[SkillName, ...]
    support: tuple[TurnId, ...]
    kind: str
    written_by: str
    is_instruction: bool = False

    def __post_init__(self) -> None:
        if (self.change is Change.NEW) != (not self.replaces):
            raise ValueError(f"proposal {self.skill.name}: an edit or merge, and nothing else, names the skills it replaces")
        if not self.support:
            raise ValueError(f"proposal {self.skill.name} names no turn that taught it")


class ProbeKind(StrEnum):
    """What a probe is for: failures the skill should mend, passes it must not break."""

    FAILING = "failing"
    PASSING = "passing"


@dataclass(frozen=True, slots=True)
class Probe:
    """A recorded turn on which a candidate is tried."""

    turn: TurnId
    kind: ProbeKind


@dataclass(frozen=True, slots=True)
class Trial:
    """One paired replay of a probe: what came out without and with the skill. Unknown where it could not be decided."""

    probe: Probe
    seed: int
    without: Outcome
    with_skill: Outcome
    tokens: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Why a skill is where it is: the evidence that a person, or the next gate, may check."""

    stage: SkillState
    probes: int
    wins: int
    losses: int
    ties: int
    undecided: int
    regressions: int
    e_value: float
    tokens: int
    model: str
    notes: tuple[str, ...] = ()


class Standing(StrEnum):
    """Where a candidate is: on its way, waiting for a person, in the library, or turned away."""

    DRAFT = "draft"
    SHADOW = "shadow"
    WAITING = "waiting"
    ACCEPTED = "accepted"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposal on its way through the gate, with everything that was decided about it."""

    id: CandidateId
    proposal: Proposal
    standing: Standing
    reason: str
    generation: int
    made_at: datetime
    certificate: Certificate | None = None
