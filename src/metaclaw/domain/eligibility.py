"""Eligibility: which turns may train the weights now, and why the others may not."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from metaclaw.domain.turn import Stamp, TurnEnd, TurnKind
from metaclaw.domain.verdict import Outcome, Verdict


class RoleKind(StrEnum):
    """Support taught the skills, query may train the weights. Decided once, and never both."""

    SUPPORT = "support"
    QUERY = "query"


@dataclass(frozen=True, slots=True)
class TurnRole:
    """What a turn is for. `generation` is the generation a support turn led to, or the one a query turn was made in."""

    kind: RoleKind
    generation: int


class Rejection(StrEnum):
    """Why a turn may not train the policy now."""

    SIDE = "side turn"
    INCOMPLETE = "answer not whole"
    SUPPORT = "fed a skill"
    OLD_GENERATION = "made before the current skills"
    FUTURE_GENERATION = "made with skills that are not in force"
    NO_TOKENS = "no exact tokens"
    OTHER_MODEL = "not made by the policy"
    OLD_POLICY = "policy too far behind"
    NO_VERDICT = "no verdict"
    UNKNOWN = "verdict unknown"
    TAUGHT = "has trained a version already"
    HELD_OUT = "kept for the gate"


class Made(Protocol):
    """What `rejection` reads of a turn. A `Turn` has it; the store reads it without the bodies."""

    @property
    def kind(self) -> TurnKind: ...
    @property
    def end(self) -> TurnEnd: ...
    @property
    def stamp(self) -> Stamp: ...
    @property
    def provider(self) -> str: ...
    @property
    def tokens(self) -> object | None: ...


@dataclass(frozen=True, slots=True)
class TurnStanding:
    """What is known of a turn besides the turn itself, when a batch is chosen.

    `taught`: it is in an open batch, or trained a version that was neither rejected nor rolled back. `is_aged`: a rule or skill
    that applies to its speaker was added, changed or withdrawn since, so its prompt would differ today.
    """

    verdict: Verdict | None
    role: TurnRole | None
    taught: bool
    held_out: bool = False
    is_aged: bool = False


def rejection(
    turn: Made, standing: TurnStanding, generation: int, policy_version: int, max_lag: int, provider: str | None = None
) -> Rejection | None:
    """Why this turn may not train the policy now, or None if it may.

    `provider` is the name of the provider that serves the policy: other answers come from other models. None takes all.
    """
    checks = (
        (turn.kind is not TurnKind.MAIN, Rejection.SIDE),
        (turn.end is not TurnEnd.COMPLETED, Rejection.INCOMPLETE),
        (standing.role is not None and standing.role.kind is RoleKind.SUPPORT, Rejection.SUPPORT),
        (turn.stamp.generation > generation, Rejection.FUTURE_GENERATION),
        (standing.is_aged, Rejection.OLD_GENERATION),
        (turn.tokens is None, Rejection.NO_TOKENS),
        (provider is not None and turn.provider != provider, Rejection.OTHER_MODEL),
        (not 0 <= policy_version - turn.stamp.policy_version <= max_lag, Rejection.OLD_POLICY),
        (standing.verdict is None, Rejection.NO_VERDICT),
        (standing.verdict is not None and standing.verdict.outcome is Outcome.UNKNOWN, Rejection.UNKNOWN),
        (standing.taught, Rejection.TAUGHT),
        (standing.held_out, Rejection.HELD_OUT),
    )
    return next((reason for is_so, reason in checks if is_so), None)
