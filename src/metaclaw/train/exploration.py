"""What a run does against settling on answers that earn a part. Pure: a function of the records of its steps.

Where a policy gives the same answer to a prompt every time, all rewards are alike and nothing is left to compare, however little
the answer earns. Three remedies:

- the best answer ever drawn to a prompt is remembered, and imitated where the answers of today are worse (self-imitation);
- some of the prompts that have settled are answered again, hotter; what is better is imitated;
- prompts that have settled are answered again with a hint (`learn.slow.hindsight`).
"""

from collections.abc import Sequence
from typing import Final

from metaclaw.domain.batch import Datum
from metaclaw.train.records import Found, StepRecord
from metaclaw.train.scored import MOST, Scored, spread

LEAST_GAIN: Final = 0.05
_LEAST_SPREAD: Final = 0.1
_LOW: Final = 0.9
_ALIKE: Final = 0.02
_SOMETHING: Final = 0.02
HOTTER: Final = 1.5
"""How many times as hot answers are drawn to prompts that have settled. Beyond it most answers break off into noise."""


def is_flat(group: Scored) -> bool:
    """Whether a group teaches next to nothing by itself: all its answers earned about the same, and not enough."""
    rewards = [reward for _, reward in group.known]
    if not rewards:
        return False
    mean, deviation = spread(rewards)
    return mean < _LOW and deviation < _ALIKE


def is_settled(group: Scored) -> bool:
    """Whether the policy has settled on answers to a prompt that earn a part."""
    return is_flat(group) and group.known[0][1] > _SOMETHING


def best_answers(records: Sequence[StepRecord]) -> dict[str, Found]:
    """The best answer to each prompt so far."""
    return {one.turn: one for record in records for one in record.found}


def better_answers(groups: Sequence[Scored], known: dict[str, Found]) -> list[Found]:
    """Answers of a step that stand out in their group and are better than any before to the same prompt."""
    found = []
    for group in groups:
        whole = [(rollout, reward) for rollout, reward in group.known if rollout.is_whole]
        if not whole:
            continue
        mean, _ = spread([reward for _, reward in group.known])
        rollout, reward = max(whole, key=lambda one: (one[1], -len(one[0].tokens_T)))
        before = known.get(group.turn)
        if reward > mean + LEAST_GAIN and (before is None or reward > before.reward):
            found.append(Found(group.turn, list(rollout.tokens_T), reward))
    return found


def imitate_best(groups: Sequence[Scored], known: dict[str, Found]) -> tuple[Datum, ...]:
    """Data for cross entropy: the best answer to each prompt whose answers are worse now. It weighs as much as its advantage would
    among them."""
    data = []
    for group in groups:
        best, rewards = known.get(group.turn), [reward for _, reward in group.known]
        if best is None or not rewards or max(rewards) >= best.reward:
            continue
        mean, deviation = spread(rewards)
        weight = min(MOST, (best.reward - mean) / max(_LEAST_SPREAD, deviation))
        if best.reward > mean + LEAST_GAIN:
            data.append(Datum(group.turn, group.prompt, tuple(best.tokens), (weight,) * len(best.tokens), None))
    return tuple(data)
