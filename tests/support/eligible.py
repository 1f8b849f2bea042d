"""Turns that may train, judged one by one without the conditions that the database applies first."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Rejection
from metaclaw.store import SqlBatches
from metaclaw.store.training_batches import judged


@dataclass(frozen=True, slots=True)
class EligibleTurns:
    """Turns that may train now, newest first, and the number of rejected turns by reason."""

    turns: tuple[TurnId, ...]
    rejections: dict[Rejection, int]


def eligible(
    batches: SqlBatches,
    generation: int,
    policy_version: int,
    max_lag: int,
    limit: int,
    within: int = 20_000,
    *,
    held_out: Callable[[TurnId], bool] = lambda turn: False,
    policy_provider: str | None = None,
) -> EligibleTurns:
    """What `SqlBatches.ready` must find, and why the turns before the last of them may not train."""
    clocks = generation, policy_version, max_lag, policy_provider
    found: list[TurnId] = []
    rejections: Counter[Rejection] = Counter()
    for turn, reason in judged(batches.newest(within), held_out, *clocks):
        if len(found) == limit:
            break
        if reason is None:
            found.append(turn)
        else:
            rejections[reason] += 1
    return EligibleTurns(tuple(found), dict(rejections))
