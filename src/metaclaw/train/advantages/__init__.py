"""How rewards become advantages: against the group, against the batch, or against what is remembered."""

from metaclaw.train.advantages.batch import batch_advantages
from metaclaw.train.advantages.group import group_advantages
from metaclaw.train.advantages.tracker import Memory, Tracker

__all__ = ["Memory", "Tracker", "batch_advantages", "group_advantages"]
