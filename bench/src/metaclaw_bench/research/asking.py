"""Asking the model for one stage: a chat completion through the proxy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from metaclaw_bench.agent.chat import Chat, Endpoint
from metaclaw_bench.research.prompts import Message


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model said, and what the proxy says of the turn; a model without a proxy says
    nothing of it.
    """

    text: str
    turn: str | None = None
    skills: tuple[str, ...] = ()
    tokens_in: int | None = None
    tokens_out: int | None = None


class Model(Protocol):
    """Who is asked."""

    async def ask(self, messages: Sequence[Message], session: str) -> Reply:
        """The answer to a conversation. Raises ModelError."""


class HttpModel:
    """A model behind an OpenAI address such as `http://127.0.0.1:30000/v1`. A failed request is the
    pipeline's to repeat.
    """

    def __init__(self, base_url: str, key: str, model: str) -> None:
        self._chat = Chat(Endpoint(base_url, key, model, tries=1))

    async def ask(self, messages: Sequence[Message], session: str) -> Reply:
        """The answer to a conversation."""
        body = self._chat.body(
            [{"role": message.role, "content": message.text} for message in messages], ()
        )
        done = await self._chat.complete(body, session)
        served, usage = done.served, done.usage
        return Reply(
            done.text,
            None if served is None else served.turn,
            () if served is None else served.skills,
            None if usage is None else usage.input_tokens,
            None if usage is None else usage.output_tokens,
        )
