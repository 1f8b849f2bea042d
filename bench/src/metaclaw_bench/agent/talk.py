"""What the built-in agents share: a day's conversation with a model, within budget and time, and
what it has cost.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from metaclaw_bench.agent.chat import (
    Chat,
    Completion,
    Message,
    Served,
    Tool,
    Usage,
    estimate_tokens,
)
from metaclaw_bench.agent.history import History, Unit
from metaclaw_bench.agent.port import Answered, Asked, Failed, Why
from metaclaw_bench.http_client import ModelError
from metaclaw_bench.questions import Day


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """What one round may take: completions, seconds, and estimated tokens in each request."""

    steps: int = 40
    seconds: float = 600.0
    history_tokens: int = 50_000


class TooLongError(Exception):
    """The question does not fit in the history's budget, with whatever left out."""


class Talk:
    """One day's conversation. `tools` are told to the model with every request."""

    def __init__(
        self, chat: Chat, day: Day, system: str, tools: Sequence[Tool], limits: RoundLimits
    ) -> None:
        self._chat = chat
        self._session = day.session
        self._tools = tuple(tools)
        self._limits = limits
        self._history = History(
            _message("system", system),
            tuple(_message(said.role, said.text) for said in day.opening),
        )
        self.steps = 0
        self._usage: Usage | None = None
        self._served: list[Served] = []

    async def round(self, question: str, work: Callable[[], Awaitable[str | Why]]) -> Asked:
        """Put a question and have `work` bring it to an answer within the limits; whatever ends it
        has a reason.
        """
        self.steps, self._usage, self._served = 0, None, []
        self._history = self._history.ask(_message("user", question))
        try:
            async with asyncio.timeout(self._limits.seconds):
                answer = await work()
        except TimeoutError:
            return self._failed(
                Why.SECONDS, f"the round took longer than {self._limits.seconds:g} s"
            )
        except TooLongError as error:
            return self._failed(Why.TOO_LONG, str(error))
        except ModelError as error:
            return self._failed(Why.UPSTREAM, str(error))
        if isinstance(answer, Why):
            return self._failed(answer, f"no answer after {self.steps} steps")
        return Answered(answer, self._usage, self.steps, tuple(self._served))

    async def next(self, *, closing: bool) -> Completion:
        """The model's next completion. When closing, it may call no tool and is the session's last.
        Raises what `round` expects.
        """
        body = self._chat.body(self._fit(), self._tools, may_call=not closing)
        completion = await self._chat.complete(body, self._session, is_last=closing)
        self._usage = completion.usage if not self.steps else _sum(self._usage, completion.usage)
        self.steps += 1
        if completion.served is not None:
            self._served.append(completion.served)
        return completion

    def add(self, unit: Unit) -> None:
        """Remember what was said, and any tool's result with its call."""
        self._history = self._history.add(unit)

    def _fit(self) -> Sequence[Message]:
        fitted = self._history.fitted(self._limits.history_tokens, self._count)
        if fitted is None:
            raise TooLongError(
                f"the question takes more than {self._limits.history_tokens} tokens with all else"
                " left out"
            )
        self._history = fitted
        return fitted.messages

    def _count(self, messages: Sequence[Message]) -> int:
        return estimate_tokens(self._chat.body(messages, self._tools))

    def _failed(self, why: Why, detail: str) -> Failed:
        return Failed(why, detail, self._usage, self.steps, tuple(self._served))


def _message(role: str, text: str) -> Message:
    return {"role": role, "content": text}


def _sum(mine: Usage | None, more: Usage | None) -> Usage | None:
    """What two steps cost together; None where one was not counted."""
    return None if mine is None or more is None else mine + more
