"""mini-swe-agent: the task stands between a fixed beginning and its instructions."""

import re
from typing import Final

from metaclaw.proxy.origin.clients.client import Client
from metaclaw.proxy.origin.request import Request

_TASK: Final = re.compile(r"\APlease solve this issue: (.*?)(?:\n\nYou can execute bash commands|\Z)", re.DOTALL)
_SYSTEM: Final = "You are a helpful assistant that can interact"


def _speaks(request: Request) -> bool:
    return request.system.startswith(_SYSTEM)


def _words(text: str) -> str:
    task = _TASK.match(text)
    return task[1] if task else text


CLIENT: Final = Client("mini-swe-agent", _speaks, words=_words)
