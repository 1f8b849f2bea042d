"""Small groups and rollouts to test with."""

from collections.abc import Sequence

from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Rollout
from metaclaw.training.advantages import ScoredGroup


def rollout(*tokens: int, logprob: float = -0.5, is_whole: bool = True) -> Rollout:
    drawn = tokens or (5, 6, 2)
    return Rollout(drawn, (logprob,) * len(drawn), "text", is_whole)


def scored(
    rewards: Sequence[float | None],
    turn: str = "t1",
    prompt: tuple[int, ...] = (1, 2, 3),
    key: str = "",
) -> ScoredGroup:
    rollouts = tuple(rollout(*range(10, 11 + at)) for at in range(len(rewards)))
    return ScoredGroup(TurnId(turn), prompt, rollouts, tuple(rewards), key)
