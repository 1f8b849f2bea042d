"""The built-in command-line agent: a model that reads, writes, lists and runs in a sandboxed
workspace until it answers.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from metaclaw_bench.agent.chat import Chat, Endpoint, Message, ToolCall
from metaclaw_bench.agent.port import Asked, Why
from metaclaw_bench.agent.prompt import TOOL_USE, system_prompt
from metaclaw_bench.agent.talk import RoundLimits, Talk
from metaclaw_bench.agent.tools import TOOLS, Toolbox
from metaclaw_bench.questions import Day
from metaclaw_bench.sandbox import Limits, Sandbox, Strength, strongest

log = logging.getLogger(__name__)

# What all results of one step may take together: many calls at once must not fill the history by
# themselves.
_STEP_CHARS: Final = 40_000


class BuiltinAgent:
    """Works through one day at a time (ports: `Agent`). `persona` is the benchmark's own; `hidden`
    are folders to be kept from it.

    Each completion is one step. The closing message is answered without tools, so that its one
    completion is the session's last."""

    def __init__(
        self,
        endpoint: Endpoint,
        persona: str = "",
        *,
        limits: RoundLimits | None = None,
        command_limits: Limits | None = None,
        hidden: Sequence[Path] = (),
        strength: Strength | None = None,
    ) -> None:
        """Raises ConfigError for an endpoint that cannot be used. Without a strength, the strongest
        sandbox is taken.
        """
        self._chat = Chat(endpoint)
        self._system = system_prompt(persona, TOOL_USE)
        self._limits = limits or RoundLimits()
        self._command_limits = command_limits
        self._hidden = tuple(hidden)
        self.strength = strength or strongest()
        self._day: tuple[Talk, Toolbox] | None = None

    async def begin(self, day: Day, workspace: Path) -> None:
        """Take up a day in a workspace."""
        sandbox = Sandbox(
            workspace, self._command_limits, hidden=self._hidden, strength=self.strength
        )
        self._day = (
            Talk(self._chat, day, self._system, TOOLS, self._limits),
            Toolbox(workspace, sandbox),
        )

    async def ask(self, text: str, *, closing: bool = False) -> Asked:
        """Put a question and work until there is an answer, or a limit is reached."""
        if self._day is None:
            raise RuntimeError("no day was begun")
        talk, toolbox = self._day
        return await talk.round(text, lambda: self._work(talk, toolbox, closing=closing))

    async def end(self) -> None:
        """Forget the day."""
        self._day = None

    async def _work(self, talk: Talk, toolbox: Toolbox, *, closing: bool) -> str | Why:
        while talk.steps < self._limits.steps:
            completion = await talk.next(closing=closing)
            if closing or not completion.calls:
                # Without its calls: a call that nothing was done about would wait for its result
                # for ever.
                talk.add((completion.as_message(with_calls=False),))
                return completion.text
            talk.add((completion.as_message(), *await _use_all(toolbox, completion.calls)))
        return Why.STEPS


async def _use_all(toolbox: Toolbox, calls: Sequence[ToolCall]) -> list[Message]:
    left = _STEP_CHARS
    results: list[Message] = []
    for call in calls:
        text = await toolbox.use(call)
        log.debug("tool used name=%s chars=%d", call.name, len(text))
        shown = (
            text
            if len(text) <= left
            else f"{text[:left]}\n[… {len(text) - left} characters left out: too much at once …]"
        )
        left -= min(len(text), left)
        results.append({"role": "tool", "tool_call_id": call.id, "content": shown})
    return results
