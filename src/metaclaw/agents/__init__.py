"""Agents: where each keeps its configuration, what connects it to the proxy, and how that is undone."""

from metaclaw.agents.agent import Agent as Agent
from metaclaw.agents.agent import Endpoint as Endpoint
from metaclaw.agents.agent import Setting as Setting
from metaclaw.agents.catalog import AGENTS as AGENTS
from metaclaw.agents.catalog import find_agent as find_agent
from metaclaw.agents.connection import Connections as Connections
from metaclaw.agents.connection import ConnectionState as ConnectionState
from metaclaw.agents.connection import FileChange as FileChange
from metaclaw.agents.connection import Trial as Trial
from metaclaw.agents.connection import difference as difference
from metaclaw.agents.connection import find_program as find_program
from metaclaw.agents.connection import require_program as require_program
from metaclaw.agents.connection import run_trial as run_trial
