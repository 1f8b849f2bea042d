"""Agents: where each keeps its configuration, what connects it to the proxy, and how that is
undone.
"""

from metaclaw.agents.agent import Agent, Endpoint
from metaclaw.agents.catalog import AGENTS, find_agent
from metaclaw.agents.connection import (
    Connections,
    ConnectionState,
    FileChange,
    Trial,
    difference,
    find_program,
    require_program,
    run_trial,
)
