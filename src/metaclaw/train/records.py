"""What is remembered of each finished step of a run. Every decision of a run is a function of its records, in their order."""

from collections.abc import Iterable, Sequence

import msgspec

from metaclaw.train.advantages import ScoredGroup

FULL_REWARD = 1.0 - 1e-6
"""A reward from here on is a full one."""


class GroupRecord(msgspec.Struct, frozen=True, array_like=True):
    """One prompt of a step. `mean` and `full` (the share of full rewards) are None where no answer could be scored."""

    turn: str
    key: str
    mean: float | None
    full: float | None


class BestAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The best answer to a prompt so far: its tokens, the end included, and what it earned."""

    turn: str
    tokens: list[int]
    reward: float


class StepRecord(msgspec.Struct, frozen=True, array_like=True):
    """One step. `moved` is False where there was nothing to learn from; `earned` are the lengths of the answers that earned
    much; `forgotten` is what rehearsed answers have lost, in nats a token; `drift` says why the run must stop.
    `hinted` prompts were answered again with a hint, which `helped` some of them. The answers to `settled` prompts all earned
    the same, something, and too little; `found` are answers that are better than any before to the same prompt. `validated` is the
    mean reward of the likeliest answers to the validation prompts after the step, where they were drawn."""

    groups: list[GroupRecord]
    reward: float | None
    moved: bool
    earned: list[int]
    length: float
    entropy: float | None = None
    kl: float | None = None
    ratio: float | None = None
    forgotten: float | None = None
    drift: str | None = None
    hinted: int = 0
    helped: int = 0
    settled: int = 0
    found: list[BestAnswer] = []
    validated: float | None = None


def group_record(group: ScoredGroup) -> GroupRecord:
    """A group as it is remembered."""
    rewards = [reward for _, reward in group.known]
    if not rewards:
        return GroupRecord(group.turn, group.key, None, None)
    full = sum(reward >= FULL_REWARD for reward in rewards) / len(rewards)
    return GroupRecord(group.turn, group.key, sum(rewards) / len(rewards), full)


def mean_reward(groups: Iterable[ScoredGroup]) -> float | None:
    """The mean reward of all answers that could be scored."""
    rewards = [reward for group in groups for _, reward in group.known]
    return sum(rewards) / len(rewards) if rewards else None


def earned_lengths(groups: Sequence[ScoredGroup]) -> list[int]:
    """The lengths, in tokens, of the answers that earned something, and at least half as much as the best."""
    least = max((reward for group in groups for _, reward in group.known), default=0.0) / 2.0
    return [len(rollout.tokens_T) for group in groups for rollout, reward in group.known if reward > 0.0 and reward >= least]


def moved_prefix(records: Sequence[StepRecord], moves: int) -> list[StepRecord]:
    """The records that still hold where the optimiser is known to have moved so many times."""
    kept: list[StepRecord] = []
    for record in records:
        if record.moved and not moves:
            break
        moves -= record.moved
        kept.append(record)
    return kept
