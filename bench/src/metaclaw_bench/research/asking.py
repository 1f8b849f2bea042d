"""Asking the model for one stage: a chat completion through the proxy."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from metaclaw_bench.agent.chat import Chat, Endpoint, Tool, ToolCall
from metaclaw_bench.json_types import Json
from metaclaw_bench.research.prompts import SUBMIT, Message

_TOOL: Final = Tool(
    SUBMIT,
    "Hand in the stage's file. The pipeline says whether it is accepted.",
    {
        "type": "object",
        "properties": {"content": {"type": "string"}},
        "required": ["content"],
    },
)


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

    async def ask(
        self, messages: Sequence[Message], session: str, *, is_last: bool = False
    ) -> Reply:
        """The answer to a conversation; `is_last` ends the session. Raises ModelError."""


class HttpModel:
    """A model behind an OpenAI address such as `http://127.0.0.1:30000/v1`. A failed request is the
    pipeline's to repeat. With `submits` the model hands in its files by a tool.
    """

    def __init__(self, base_url: str, key: str, model: str, *, submits: bool = False) -> None:
        self._chat = Chat(Endpoint(base_url, key, model, tries=1))
        self._submits = submits

    async def ask(
        self, messages: Sequence[Message], session: str, *, is_last: bool = False
    ) -> Reply:
        """The answer to a conversation."""
        if self._submits:
            body = self._chat.body(_with_calls(messages), (_TOOL,))
        else:
            body = self._chat.body([_plain(message) for message in messages], ())
        done = await self._chat.complete(body, session, is_last=is_last)
        served, usage = done.served, done.usage
        return Reply(
            _content(done.calls[0]) if done.calls else done.text,
            None if served is None else served.turn,
            () if served is None else served.skills,
            None if usage is None else usage.input_tokens,
            None if usage is None else usage.output_tokens,
        )


def _plain(message: Message) -> dict[str, Json]:
    role = "user" if message.role == "tool" else message.role
    return {"role": role, "content": message.text}


def _with_calls(messages: Sequence[Message]) -> list[dict[str, Json]]:
    """The conversation in which each file, and what became of it, is a call and its result."""
    found: list[dict[str, Json]] = []
    for number, message in enumerate(messages):
        call = f"submit_{number}"
        following = messages[number + 1].role if number + 1 < len(messages) else ""
        if message.role == "assistant" and following == "tool":
            function: Json = {"name": SUBMIT, "arguments": json.dumps({"content": message.text})}
            listed: list[Json] = [{"id": call, "type": "function", "function": function}]
            found.append({"role": "assistant", "content": "", "tool_calls": listed})
        elif message.role == "tool":
            found.append(
                {"role": "tool", "tool_call_id": f"submit_{number - 1}", "content": message.text}
            )
        else:
            found.append({"role": message.role, "content": message.text})
    return found


def _content(call: ToolCall) -> str:
    """The file in a call; what is no such call is the file, and will be refused."""
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        return call.arguments
    content = arguments.get("content") if isinstance(arguments, dict) else None
    return content if isinstance(content, str) else call.arguments
