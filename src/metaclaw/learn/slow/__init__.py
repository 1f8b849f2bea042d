"""The slow loop: trains weights on recorded turns, proves new versions, serves them and rolls them back."""

from metaclaw.learn.slow.assembly import SlowLearning
from metaclaw.learn.slow.journal import newest_curve

__all__ = ["SlowLearning", "newest_curve"]
