"""Listening: a model reads what people say, and what they lay down is in force at once."""

from metaclaw.learn.listen.loop import Listening
from metaclaw.learn.listen.messages import is_briefing

__all__ = ["Listening", "is_briefing"]
