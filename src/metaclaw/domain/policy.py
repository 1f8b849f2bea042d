"""Policy versions: weights, their origin, their state and the report of the gate."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from metaclaw.domain.ids import SkillName

BASE_POLICY = 0
"""The version of untrained weights: the provider's model without an adapter."""


class PolicyState(StrEnum):
    """The state of a version. One version serves at a time."""

    CANDIDATE = "candidate"
    REJECTED = "rejected"
    SERVING = "serving"
    RETIRED = "retired"
    ROLLED_BACK = "rolled back"


@dataclass(frozen=True, slots=True)
class Weights:
    """Where trained weights are. `adapter` is a folder in PEFT's format, or the name under which
    the backend's sampler loads them. `training` is the state from which training can continue,
    optimiser included; None if the weights can only be served."""

    backend: str
    adapter: str
    training: str | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Paired outcomes of a candidate and the serving version on the same prompts with the same
    skills.
    """

    pairs: int
    better: int
    worse: int
    mean_gain: float
    e_value: float

    def __post_init__(self) -> None:
        if self.pairs < self.better + self.worse or min(self.better, self.worse) < 0:
            raise ValueError(
                f"{self.better} better and {self.worse} worse do not fit {self.pairs} pairs"
            )


@dataclass(frozen=True, slots=True)
class Habit:
    """How many of 100 answers break a rule that is not in the prompt, with the version that served
    and with the candidate.
    """

    rule: SkillName
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class GateReport:
    """Why a candidate may serve, or may not. `golden_untrained` and `golden_candidate` are the shares
    of the golden set that each answers correctly. `lost_abilities` says that the golden set is the
    only reason against the candidate; `habits` tells of rules that were taken out of the
    prompt, `left_recording` is the share of answers with other tool calls than were recorded.
    `drawn_by` says which server drew the answers it learned from, and how far that was from the
    trainer."""

    is_passed: bool
    reasons: tuple[str, ...]
    held_out: Comparison | None = None
    golden_untrained: float | None = None
    golden_candidate: float | None = None
    kl: float | None = None
    judge: str | None = None
    lost_abilities: bool = False
    habits: tuple[Habit, ...] = ()
    left_recording: float | None = None
    drawn_by: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """A version of the weights, trained on the turns of `batch`. Skills in `absorbed` are left out
    of its prompts. A rollback goes only to a version that has served before (`has_served`) and
    whose weights are still there (`is_kept`)."""

    number: int
    parent: int
    state: PolicyState
    weights: Weights
    base: str
    generation: int
    made: datetime
    batch: int | None = None
    steps: int = 0
    report: GateReport | None = None
    note: str = ""
    absorbed: frozenset[SkillName] = field(default_factory=frozenset)
    has_served: bool = False
    is_kept: bool = True

    def __post_init__(self) -> None:
        if self.number <= BASE_POLICY or not BASE_POLICY <= self.parent < self.number:
            raise ValueError(f"version {self.number} cannot descend from version {self.parent}")


@dataclass(frozen=True, slots=True)
class Serving:
    """The version that answers, and the skills that it has absorbed."""

    version: int = BASE_POLICY
    absorbed: dict[int, frozenset[SkillName]] = field(default_factory=dict)
