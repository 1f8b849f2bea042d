"""Agents by name: the built-in one, the direct one, or the user's own by a command, each in front
of the proxy of its run.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from metaclaw.plugin import ConfigError
from metaclaw_bench.agent import Agent, BuiltinAgent, DirectAgent, Endpoint, RoundLimits, persona_of
from metaclaw_bench.external import Command, ExternalAgent
from metaclaw_bench.running.day import MakeAgent
from metaclaw_bench.running.plan import Stage
from metaclaw_bench.running.proxy import Front


class AgentKind(StrEnum):
    """Which agent works."""

    BUILT_IN = "built-in"
    DIRECT = "direct"
    COMMAND = "command"


def make_agents(
    kind: AgentKind,
    shared: Mapping[str, Path],
    hidden: Sequence[Path] = (),
    command: str | None = None,
    *,
    limits: RoundLimits | None = None,
    answer_tokens: int | None = None,
) -> MakeAgent:
    """Makes agents of this kind. `shared` holds the persona, `hidden` are folders that no agent may
    look into, such as the data; `answer_tokens` is the most that the model may say at once.

    Raises ConfigError where a command is missing, or given to an agent that has none.
    """
    if (kind is AgentKind.COMMAND) != (command is not None):
        raise ConfigError(
            "--agent command and --agent-command belong together: give both, or neither"
        )
    persona = persona_of(shared)

    def make(front: Front, stage: Stage) -> Agent:
        endpoint = Endpoint(
            front.base_url, front.api.key, front.model, answer_tokens, user=stage.user
        )
        match kind:
            case AgentKind.BUILT_IN:
                return BuiltinAgent(endpoint, persona, limits=limits, hidden=hidden)
            case AgentKind.DIRECT:
                return DirectAgent(endpoint, persona, limits=limits)
            case AgentKind.COMMAND:
                return ExternalAgent(
                    Command(
                        command or "", front.base_url, front.api.key, front.model, user=stage.user
                    )
                )

    return make
