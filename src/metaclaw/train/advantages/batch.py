"""Batch-relative advantages (REINFORCE++): the whole batch is the baseline, so one rollout per prompt is enough.

    A_i = clip((r_i - mean(r)) / std(r), ±3)      over all scored rollouts of the batch

It needs no second draw of a prompt, and so can use what was answered live; the price is that an easy prompt looks like a good
answer. Give it many prompts (16 and more) of one kind.
"""

from collections.abc import Sequence

from metaclaw.train.scored import FLAT, MOST, Harvest, Scored, Skip, clip, datum, skips, spread


def batch_advantages(groups: Sequence[Scored]) -> Harvest:
    """Data of the whole batch, or none where all its rewards are alike."""
    rewards = [reward for group in groups for _, reward in group.known]
    unscored = [Skip.UNSCORED] * sum(group.unknown for group in groups)
    silent = [Skip.UNSCORED for group in groups if not group.known]
    if not rewards:
        return Harvest((), skips(unscored, silent))
    mean, deviation = spread(rewards)
    if len(rewards) == 1 or deviation < FLAT:
        reason = Skip.ALONE if len(rewards) == 1 else Skip.FLAT
        heard = [reason for group in groups if group.known]
        return Harvest((), skips([*unscored, *[reason] * len(rewards)], [*silent, *heard]))
    data = [datum(group, rollout, clip((reward - mean) / deviation, MOST)) for group in groups for rollout, reward in group.known]
    return Harvest(tuple(data), skips(unscored, silent))
