"""Held rules with the real programs on a simulated provider that breaks a rule on a schedule: `make
test-agents` runs them.
"""

import os
from pathlib import Path

import pytest

from tests.support.agent_schedule import REAL_AGENTS, RealAgent, run_agent, schedule

COMMANDS = os.environ.get("METACLAW_TEST_AGENTS", "")
"""The folder of the agents' commands, as scripts/agents-env prints it."""
COUNTS = ("applied", "followed", "broken", "held", "unknown")
pytestmark = pytest.mark.of_target("test-agents", bool(COMMANDS))


def installed(name: str) -> RealAgent:
    agent = REAL_AGENTS[name]
    if not (Path(COMMANDS) / agent.program).exists():
        pytest.skip(f"{name} is not installed in {COMMANDS}")
    return agent


@pytest.mark.parametrize("name", REAL_AGENTS)
def test_no_call_that_breaks_a_held_rule_is_run_and_all_others_are(
    name: str, tmp_path: Path
) -> None:
    result = run_agent(installed(name), COMMANDS, tmp_path, schedule(1, prompts=3))
    assert result.errors == []
    assert result.refused == []
    assert result.leaked == []
    assert result.changed == []
    assert {key: result.counted["compliance"][key] for key in COUNTS} == result.truth
    assert {
        agent: {key: one[key] for key in COUNTS}
        for agent, one in result.counted["by_agent"].items()
    } == {name: result.truth}


def test_with_enforcement_off_the_same_schedule_shows_what_was_run(tmp_path: Path) -> None:
    """The measurement can fail."""
    result = run_agent(
        installed("codex"), COMMANDS, tmp_path, schedule(1, prompts=1), is_held=False
    )
    assert result.leaked == ["0002"]
    assert len(result.refused) == 1
    assert result.changed
    assert result.errors
