"""The direct agent, for models that cannot call tools: one completion a round, and files are taken
from the answer's text.
"""

import logging
from pathlib import Path

from metaclaw_bench.agent.chat import Chat, Endpoint
from metaclaw_bench.agent.direct import files_in
from metaclaw_bench.agent.files import write_all
from metaclaw_bench.agent.port import Asked
from metaclaw_bench.agent.prompt import FILE_USE, system_prompt
from metaclaw_bench.agent.talk import RoundLimits, Talk
from metaclaw_bench.questions import Day

log = logging.getLogger(__name__)


class DirectAgent:
    """Works through one day at a time (ports: `Agent`). What the answer says is its whole text,
    `FILE` lines included.
    """

    def __init__(
        self, endpoint: Endpoint, persona: str = "", *, limits: RoundLimits | None = None
    ) -> None:
        """Raises ConfigError for an endpoint that cannot be used."""
        self._chat = Chat(endpoint)
        self._system = system_prompt(persona, FILE_USE)
        self._limits = limits or RoundLimits()
        self._day: tuple[Talk, Path] | None = None

    async def begin(self, day: Day, workspace: Path) -> None:
        """Take up a day in a workspace."""
        self._day = (Talk(self._chat, day, self._system, (), self._limits), workspace)

    async def ask(self, text: str, *, closing: bool = False) -> Asked:
        """Put a question; files in the answer are written, those that lead out of the workspace are
        not.
        """
        if self._day is None:
            raise RuntimeError("no day was begun")
        talk, workspace = self._day
        return await talk.round(text, lambda: _answer(talk, workspace, closing=closing))

    async def end(self) -> None:
        """Forget the day."""
        self._day = None


async def _answer(talk: Talk, workspace: Path, *, closing: bool) -> str:
    completion = await talk.next(closing=closing)
    answer = completion.text
    talk.add((completion.as_message(with_calls=False),))
    for refusal in write_all(workspace, files_in(answer)[1]):
        log.info("file refused reason=%s", refusal)
    return answer
