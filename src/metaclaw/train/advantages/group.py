"""Group-relative advantages (GRPO): a rollout is as good as it is better than the others drawn for the same prompt.

    A_i = (r_i - mean(r)) / max(std(r), least)      over the scored rollouts of one prompt; every token of rollout i carries A_i

No value model, and no prompt is easier than another: each is its own measure. Advantages of a group sum to zero. `least` is a tenth,
or a quarter of the group's best reward where that is less: among answers that earn nearly the same, a little more for the form of one
is no reason to give up all others. A group whose rewards are alike (std < 1e-4) says nothing and gives none; it is counted.
"""

from collections.abc import Sequence
from typing import Final

from metaclaw.train.scored import FLAT, Harvest, Scored, Skip, datum, skips, spread

_LEAST_SPREAD: Final = 0.1


def group_advantages(groups: Sequence[Scored]) -> Harvest:
    """Data of every group that has something to say."""
    harvest = Harvest(())
    for group in groups:
        harvest += _of(group)
    return harvest


def _of(group: Scored) -> Harvest:
    known, unscored = group.known, [Skip.UNSCORED] * group.unknown
    if not known:
        return Harvest((), skips(unscored, [Skip.UNSCORED]))
    mean, deviation = spread([reward for _, reward in known])
    if len(known) == 1 or deviation < FLAT:
        reason = Skip.ALONE if len(known) == 1 else Skip.FLAT
        return Harvest((), skips([*unscored, *[reason] * len(known)], [reason]))
    least = min(_LEAST_SPREAD, max(reward for _, reward in known) / 4.0)
    data = tuple(datum(group, rollout, (reward - mean) / max(deviation, least)) for rollout, reward in known)
    return Harvest(data, skips(unscored))
