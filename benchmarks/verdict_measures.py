"""How well probabilities of failure tell failures from successes."""

from collections.abc import Sequence

Pairs = Sequence[tuple[float, bool]]
"""Predicted probability of failure, and whether the turn failed."""

BINS = 10


def auroc(pairs: Pairs) -> float | None:
    """The probability that a failure has a higher score than a success, ties counted half; None if
    either class is empty.
    """
    failures = sum(failed for _, failed in pairs)
    others = len(pairs) - failures
    if not failures or not others:
        return None
    ranked = sorted(pairs, key=lambda pair: pair[0])
    rank_sum, at = 0.0, 0
    while at < len(ranked):
        end = at
        while end < len(ranked) and ranked[end][0] == ranked[at][0]:
            end += 1
        middle = (at + 1 + end) / 2
        rank_sum += middle * sum(failed for _, failed in ranked[at:end])
        at = end
    return (rank_sum - failures * (failures + 1) / 2) / (failures * others)


def ece(pairs: Pairs, bins: int = BINS) -> float | None:
    """Expected calibration error over bins of equal width: the mean distance of a probability from
    the observed share.
    """
    if not pairs:
        return None
    groups: list[list[tuple[float, bool]]] = [[] for _ in range(bins)]
    for probability, failed in pairs:
        groups[min(bins - 1, int(probability * bins))].append((probability, failed))
    return sum(
        abs(sum(p for p, _ in group) - sum(failed for _, failed in group))
        for group in groups
        if group
    ) / len(pairs)
