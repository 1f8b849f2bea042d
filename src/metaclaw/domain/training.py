"""Training: the window in which the slow loop may run, which turns may train the weights, and the
values of a training step: rollouts, data with one advantage for each drawn token, losses and
statistics.

Axis letters: `_G` runs over the rollouts of one prompt, `_T` over the tokens of one rollout.
"""

import math
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from metaclaw.domain.ids import TurnId
from metaclaw.domain.turn import Stamp, Turn, TurnEnd, TurnKind
from metaclaw.domain.verdict import Outcome, Verdict


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time in which the slow loop may use the machine; `until` is when it is expected
    to end, None if unknown.
    """

    opened: datetime
    reason: str
    until: datetime | None = None


class RoleKind(StrEnum):
    """Support turns taught skills, query turns may train weights. A turn's role is decided once.

    The store gives roles: `SqlCandidates.begin_attempt` makes support, `SqlBatches.open_batch`
    makes query. `rejection` says why a turn may not train; the store's own query of turns that may
    says the same in SQL, and a version of a batch with a support turn is refused once more when it
    is published."""

    SUPPORT = "support"
    QUERY = "query"


@dataclass(frozen=True, slots=True)
class TurnRole:
    """The role of a turn. `generation` is the generation a support turn led to, or the one a query
    turn was made in.
    """

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
    TAUGHT = "already used in a run"
    HELD_OUT = "kept for the gate"


class BatchState(StrEnum):
    """A batch is open until it has trained a version (DONE) or was DROPPED. Its turns are not used
    again in either case.
    """

    OPEN = "open"
    DONE = "done"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """What `rejection` reads of a turn: the store loads it without the bodies of the turn. `tokens`
    is the number of sampled tokens, None if they were not recorded.
    """

    kind: TurnKind
    end: TurnEnd
    stamp: Stamp
    provider: str
    tokens: int | None
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class TurnStanding:
    """What else is known of a turn when a batch is chosen. `taught`: it is in an open batch, or
    trained a version that was neither rejected nor rolled back. `is_aged`: a rule or skill for its
    speaker was added, changed or retired since, so its prompt would differ today."""

    verdict: Verdict | None
    role: TurnRole | None
    taught: bool
    held_out: bool = False
    is_aged: bool = False


def rejection(
    turn: Turn | TurnFacts,
    standing: TurnStanding,
    generation: int,
    policy_version: int,
    max_lag: int,
    provider: str | None = None,
) -> Rejection | None:
    """Why this turn may not train the policy now, or None if it may. `provider` serves the policy:
    answers of other providers are rejected. None accepts every provider."""
    checks = (
        (turn.kind is not TurnKind.MAIN, Rejection.SIDE),
        (turn.end is not TurnEnd.COMPLETED or turn.truncated, Rejection.INCOMPLETE),
        (standing.role is not None and standing.role.kind is RoleKind.SUPPORT, Rejection.SUPPORT),
        (turn.stamp.generation > generation, Rejection.FUTURE_GENERATION),
        (standing.is_aged, Rejection.OLD_GENERATION),
        (turn.tokens is None, Rejection.NO_TOKENS),
        (provider is not None and turn.provider != provider, Rejection.OTHER_MODEL),
        (not 0 <= policy_version - turn.stamp.policy_version <= max_lag, Rejection.OLD_POLICY),
        (standing.verdict is None, Rejection.NO_VERDICT),
        (
            standing.verdict is not None and standing.verdict.outcome is Outcome.UNKNOWN,
            Rejection.UNKNOWN,
        ),
        (standing.taught, Rejection.TAUGHT),
        (standing.held_out, Rejection.HELD_OUT),
    )
    return next((reason for applies, reason in checks if applies), None)


class LossKind(StrEnum):
    """How advantages become a gradient. Cross entropy is for distillation: its advantages are
    weights.
    """

    PPO = "ppo"
    CROSS_ENTROPY = "cross_entropy"


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss and its settings. Ratios are clipped to [1 - clip_low, 1 + clip_high]."""

    kind: LossKind = LossKind.PPO
    clip_low: float = 0.2
    clip_high: float = 0.28

    def __post_init__(self) -> None:
        if not (0.0 <= self.clip_low < 1.0 and self.clip_high >= 0.0):
            raise ValueError(f"impossible settings: clip {self.clip_low}/{self.clip_high}")


@dataclass(frozen=True, slots=True)
class Adam:
    """All parameters of AdamW, since the defaults of backends differ. `grad_clip_norm` 0 clips
    nothing.
    """

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    grad_clip_norm: float = 1.0


@dataclass(frozen=True, slots=True)
class Drawing:
    """How rollouts are drawn. The same seed, prompts and weights give the same rollouts on the same
    machine.
    """

    count: int
    max_tokens: int
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1 or self.max_tokens < 1 or self.temperature < 0:
            raise ValueError(
                f"cannot draw {self.count} rollouts of {self.max_tokens} tokens at temperature"
                f" {self.temperature}"
            )


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled answer: its tokens (including the end token), their log-probabilities at
    temperature 1 under the weights that drew them, and the text without the end token. `is_whole`
    is False if `max_tokens` ended it. `drawn_logprobs_T` are those of the engine that drew it, if
    that was not the trainer's own."""

    tokens_T: tuple[int, ...]
    logprobs_T: tuple[float, ...]
    text: str
    is_whole: bool
    drawn_logprobs_T: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not self.tokens_T or len(self.tokens_T) != len(self.logprobs_T):
            raise ValueError(
                f"a rollout has {len(self.tokens_T)} tokens and {len(self.logprobs_T)}"
                " log-probabilities"
            )
        if not all(math.isfinite(logprob) and logprob <= 0.0 for logprob in self.logprobs_T):
            raise ValueError("a log-probability is not a finite number at or below zero")


@dataclass(frozen=True, slots=True)
class Datum:
    """One sequence to learn from. Only drawn tokens have an advantage, prompt tokens do not.
    `logprobs_T` are the log-probabilities under the weights that drew the tokens; None only for a
    loss without ratios (cross entropy)."""

    turn: TurnId
    prompt: tuple[int, ...]
    tokens_T: tuple[int, ...]
    advantages_T: tuple[float, ...]
    logprobs_T: tuple[float, ...] | None

    def __post_init__(self) -> None:
        lengths = {
            len(self.tokens_T),
            len(self.advantages_T),
            *([] if self.logprobs_T is None else [len(self.logprobs_T)]),
        }
        if not self.prompt or lengths != {len(self.tokens_T)} or not self.tokens_T:
            raise ValueError(
                f"turn {self.turn}: {len(self.prompt)} prompt tokens and drawn parts of lengths"
                f" {sorted(lengths)}"
            )
        if not all(map(math.isfinite, self.advantages_T)):
            raise ValueError(f"turn {self.turn}: an advantage is not a finite number")


@dataclass(frozen=True, slots=True)
class PieceStats:
    """Statistics of one accumulated piece, as means over its drawn tokens; None if the backend does
    not return them. `kl` is the k3 estimate of the KL divergence from the untrained weights,
    `ratio_mean` the mean importance ratio."""

    tokens: int
    loss: float | None = None
    kl: float | None = None
    ratio_mean: float | None = None


@dataclass(frozen=True, slots=True)
class StepStats:
    """Statistics of an optimiser step."""

    step: int
    grad_norm: float | None = None


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The progress of a run when it is opened: complete optimiser steps, and pieces accumulated for
    the next.
    """

    steps: int = 0
    pieces: int = 0
