"""mini-swe-agent: the task stands between a fixed beginning and its instructions."""

import re
from typing import Final

from metaclaw.proxy.sessions.clients.client import AgentClient

_TASK: Final = re.compile(r"\APlease solve this issue: (.*?)(?:\n\nYou can execute bash commands|\Z)", re.DOTALL)
_SYSTEM: Final = "You are a helpful assistant that can interact"


def _system(text: str) -> bool:
    return text.startswith(_SYSTEM)


def _words(text: str) -> str:
    task = _TASK.match(text)
    return task[1] if task else text


CLIENT: Final = AgentClient("mini-swe-agent", system=_system, words=_words)
