"""Hygiene: which skills to retire, merge or widen, so that a library stays useful as it grows."""

from metaclaw.skills.hygiene.merge import find_merges
from metaclaw.skills.hygiene.promote import Promotion, find_promotions
from metaclaw.skills.hygiene.retire import Life, Retirement, RetireRules, find_retirements
from metaclaw.skills.hygiene.similar import Pair, find_similar, group_similar

__all__ = [
    "Life",
    "Pair",
    "Promotion",
    "RetireRules",
    "Retirement",
    "find_merges",
    "find_promotions",
    "find_retirements",
    "find_similar",
    "group_similar",
]
