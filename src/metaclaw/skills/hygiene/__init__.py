"""Hygiene: what each skill is worth, and which to retire, merge or widen, so that a library stays useful as it grows."""

from metaclaw.skills.hygiene.merge import MergeReport, find_merges, try_merge
from metaclaw.skills.hygiene.promote import Promotion, find_promotions
from metaclaw.skills.hygiene.retire import Life, Retirement, RetireRules, Why, find_retirements, retired
from metaclaw.skills.hygiene.similar import Pair, find_similar, group_similar
from metaclaw.skills.hygiene.uplift import Interval, Uplift, measure_uplift, share_to_place

__all__ = [
    "Interval",
    "Life",
    "MergeReport",
    "Pair",
    "Promotion",
    "RetireRules",
    "Retirement",
    "Uplift",
    "Why",
    "find_merges",
    "find_promotions",
    "find_retirements",
    "find_similar",
    "group_similar",
    "measure_uplift",
    "retired",
    "share_to_place",
    "try_merge",
]
