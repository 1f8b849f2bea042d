"""Agents: where each keeps its configuration, what connects it to the proxy, and how that is
undone.
"""

from metaclaw.agents.agent import (
    Agent,
    Endpoint,
    Environment,
    Setting,
    folder_of,
    leaves,
    user_home,
)
from metaclaw.agents.catalog import COMMON_AGENTS, find_agent, known_agents
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
from metaclaw.agents.formats import Item, KeyPath, TextFormat, YamlFormat, newline_of
from metaclaw.agents.jsonc import JsonFormat
from metaclaw.agents.toml import TomlFormat
