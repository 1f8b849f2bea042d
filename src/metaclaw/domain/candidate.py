"""Candidates for the skill library, their standing at the gate, and the certificate that the gate
gives them.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NewType

from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Skill, SkillState
from metaclaw.domain.verdict import Outcome

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

    def __post_init__(self) -> None:
        if (self.change is Change.NEW) != (not self.replaces):
            raise ValueError(
                f"proposal {self.skill.name}: an edit or merge, and nothing else, names the skills"
                " it replaces"
            )
        if not self.support:
            raise ValueError(f"proposal {self.skill.name} names no turn that taught it")


class ProbeKind(StrEnum):
    """The kind of a probe: a failure that the skill should fix, or a pass that it must not
    break.
    """

    FAILING = "failing"
    PASSING = "passing"


@dataclass(frozen=True, slots=True)
class Probe:
    """A recorded turn on which a candidate is tried."""

    turn: TurnId
    kind: ProbeKind


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """One replay of a recorded turn with a skill. If the outcome is unknown, `note` says why.
    `is_unavailable` says that the model or the judge could not be reached: the same replay may be
    tried again later."""

    probe: Probe
    outcome: Outcome
    tokens: int = 0
    note: str = ""
    is_unavailable: bool = False


@dataclass(frozen=True, slots=True)
class Certificate:
    """The evidence for a skill. `wins` counts the failures it fixed in replays, `losses` and
    `regressions` the passing turns it broke. `expected_loss` estimates the passes per task lost by
    keeping it. `replays` lists the replays made so far."""

    stage: SkillState
    probes: int
    wins: int
    losses: int
    ties: int
    undecided: int
    regressions: int
    tokens: int
    model: str
    notes: tuple[str, ...] = ()
    expected_loss: float | None = None
    replays: tuple[ReplayResult, ...] = ()


class Standing(StrEnum):
    """The standing of a candidate: at the gate (draft, shadow), waiting for a person, accepted or
    rejected.
    """

    DRAFT = "draft"
    SHADOW = "shadow"
    WAITING = "waiting"
    ACCEPTED = "accepted"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposal with its standing at the gate, the reason, and its certificate."""

    id: CandidateId
    proposal: Proposal
    standing: Standing
    reason: str
    generation: int
    made_at: datetime
    certificate: Certificate | None = None
