"""Held calls become habits: what a rule refused and what was accepted after it are a preference on
one prompt.

A held answer is recorded as attempts. The first, which was refused, and the last,
which was accepted, join the answers that are drawn to the same prompt, with their log-probabilities
under the weights of the step: rewards are compared within the group, so the refused one gets a
negative advantage and the accepted one a positive one, both bounded by the group's spread. They
stay out of the run's records, and of a step whose drawn answers all earn as much as the accepted
one: what is a habit already is pushed no further."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from metaclaw.domain.training import Rollout
from metaclaw.domain.turn import HoldEnd, Turn
from metaclaw.ports import TrainingBackend
from metaclaw.training.advantages import ScoredGroup
from metaclaw.training.answers import written
from metaclaw.wires import said_parts

_UNLIKELY: Final = -1.5
"""Nats a token from which on a bad answer is made no less likely."""


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """An answer that was drawn when the turn was made: its tokens, and its text as the policy
    writes it. `reward` is the outcome of its task; None if its own measure scores it.
    """

    tokens: tuple[int, ...]
    text: str
    reward: float | None = None


def preference_of(turn: Turn) -> tuple[RecordedAnswer, ...]:
    """The refused answer and the accepted one after it; empty if no rule held the turn's calls
    until they complied, or if the tokens were not recorded.
    """
    held = turn.enforcement
    if held is None or len(held.attempts) < 2:
        return ()
    if not any(rule.is_checked and rule.end is HoldEnd.COMPLIED for rule in held.rules):
        return ()
    found = [recorded_answer(attempt) for attempt in (held.attempts[0], held.attempts[-1])]
    return tuple(one for one in found if one is not None) if all(found) else ()


def recorded_answer(turn: Turn, reward: float | None = None) -> RecordedAnswer | None:
    """The answer of a turn; None if its tokens were not recorded."""
    if turn.tokens is None or not turn.tokens.sampled_ids:
        return None
    parts = said_parts(turn.wire, turn.stream, turn.exchange.said, partial=True)
    return RecordedAnswer(turn.tokens.sampled_ids, written(parts), reward)


async def with_recorded(
    group: Sequence[Rollout],
    prompt: Sequence[int],
    recorded: Sequence[RecordedAnswer],
    backend: TrainingBackend,
) -> list[Rollout]:
    """The drawn answers, and behind them the recorded ones."""
    if not recorded:
        return list(group)
    scores = await backend.score([(prompt, one.tokens) for one in recorded])
    rollouts = [
        Rollout(one.tokens, tuple(min(0.0, value) for value in score), one.text, True)
        for one, score in zip(recorded, scores, strict=True)
    ]
    return [*group, *rollouts]


def teaches(group: ScoredGroup) -> bool:
    """Whether the recorded answers of a group say more than the drawn ones: one earns more than
    another and than some drawn one; or a single one earns less, and is not unlikely yet.
    """
    drawn = [reward for _, reward in group.drawn.known]
    rollouts, rewards = group.rollouts_G[-group.recorded :], group.rewards_G[-group.recorded :]
    known = [reward for reward in rewards if reward is not None]
    if len(known) < len(rewards) or not drawn:
        return False
    best = max(known)
    if len(known) > 1:
        return min(known) < best and min(drawn) < best
    logprobs = rollouts[0].logprobs_T
    is_likely = sum(logprobs) > _UNLIKELY * len(logprobs)
    return min(drawn) < best or (is_likely and max(drawn) > best)
