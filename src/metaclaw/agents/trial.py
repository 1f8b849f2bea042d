"""One request through the real program, without a person: does the agent answer?"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

from metaclaw.agents.agent import Agent
from metaclaw.domain.turn import TRIAL_QUESTION
from metaclaw.errors import MetaClawError

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Trial:
    """How the program ended and what it printed."""

    code: int
    answer: str
    errors: str


def find_program(agent: Agent, env: Mapping[str, str] | None = None) -> str | None:
    """The agent's program on this machine, or None."""
    path = (os.environ if env is None else env).get("PATH")
    return shutil.which(agent.program, path=path) if agent.program else None


def require_program(agent: Agent, env: Mapping[str, str] | None = None) -> str:
    """The agent's program. Raises MetaClawError if it is not installed, or cannot be asked without a person."""
    if agent.question is None:
        raise MetaClawError(
            f"{agent.title} cannot be asked from here without a person; ask it something yourself, then: metaclaw sessions list"
        )
    program = find_program(agent, env)
    if program is None:
        raise MetaClawError(f"{agent.title} is not installed here (no {agent.program} on the PATH); install it: {agent.install}")
    return program


def run_trial(agent: Agent, timeout_s: float, question: str = TRIAL_QUESTION, env: Mapping[str, str] | None = None) -> Trial:
    """Run the agent once in an empty folder. Raises MetaClawError if it is not installed or does not end."""
    variables = dict(os.environ if env is None else env)
    program = require_program(agent, variables)
    assert agent.question is not None
    with tempfile.TemporaryDirectory(prefix="metaclaw-agent-") as folder:
        try:
            done = subprocess.run(
                [program, *agent.question(question)],
                env={**variables, "NO_COLOR": "1"},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise MetaClawError(
                f"{agent.title} did not finish within {timeout_s:g} s; see metaclaw doctor, or give it --timeout"
            ) from error
        except OSError as error:
            raise MetaClawError(f"{agent.title} ({program}) cannot be started: {error.strerror}") from error
    return Trial(done.returncode, _plain(done.stdout), _plain(done.stderr))


def _plain(output: bytes) -> str:
    return _COLOUR.sub("", output.decode("utf-8", "replace")).strip()
