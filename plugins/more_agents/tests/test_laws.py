"""The laws of connecting, for the agents of this plugin."""

import random
from typing import Any

from metaclaw_more_agents import AIDER, IRONCLAW, NANOCLAW, PICOCLAW, ZEROCLAW
from metaclaw_more_agents.dotenv import DotenvFormat
from tests.agents.test_connection_laws import *  # noqa: F403
from tests.agents.test_connection_laws import BROKEN, WRITERS

TRIED = [AIDER, IRONCLAW, NANOCLAW, PICOCLAW, ZEROCLAW]


def dotenv(tree: Any, seed: random.Random) -> str:
    lines = [
        "# mine",
        "OTHER=1",
        'export LLM_BASE_URL = "https://example.org/v1"',
        "",
        "ANTHROPIC_API_KEY=",
        "LLM_MODEL='x y'",
    ]
    return "".join(f"{line}\n" for line in lines if seed.random() < 0.6)


WRITERS[DotenvFormat] = dotenv
BROKEN[DotenvFormat] = []
