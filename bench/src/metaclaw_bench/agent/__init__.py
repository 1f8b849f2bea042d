"""Agents that work through a day: the built-in one with tools, a direct one for models that cannot
call any; what they share.
"""

from metaclaw_bench.agent.builtin import BuiltinAgent
from metaclaw_bench.agent.chat import Endpoint
from metaclaw_bench.agent.port import Agent, Answered, Asked, Failed, Why
from metaclaw_bench.agent.prompt import persona_of
from metaclaw_bench.agent.single import DirectAgent
from metaclaw_bench.agent.talk import RoundLimits
