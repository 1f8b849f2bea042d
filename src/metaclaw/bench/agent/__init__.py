"""Agents that work through a day: the built-in one with tools, a direct one for models that cannot call any; what they share."""

from metaclaw.bench.agent.builtin import BuiltinAgent
from metaclaw.bench.agent.chat import Endpoint
from metaclaw.bench.agent.port import Agent, Answered, Asked, Failed, Served, Why
from metaclaw.bench.agent.prompt import persona_of
from metaclaw.bench.agent.single import DirectAgent
from metaclaw.bench.agent.talk import RoundLimits

__all__ = [
    "Agent",
    "Answered",
    "Asked",
    "BuiltinAgent",
    "DirectAgent",
    "Endpoint",
    "Failed",
    "RoundLimits",
    "Served",
    "Why",
    "persona_of",
]
