"""A scripted world to learn in: one provider that is worker, judge and evolver by turns, told apart
by the purpose they come with.

The worker is a *simulated* policy with known effects: it follows a rule exactly when the rule's
words stand in its prompt."""

import inspect
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.provider import Json, Provider, Seen, _fail, _json

PASS = {"outcome": "pass", "score": 1, "reason": "it did what was asked"}
FAIL = {"outcome": "fail", "score": -1, "reason": "it did not do what was asked"}
NOTHING: Json = {"skills": []}
AGREED: Json = {
    "by_person": True,
    "lasting": True,
    "relation": "new",
    "target": None,
    "reason": "it is clear",
}
NO_CHECK: Json = {"check": None, "violates": None, "complies": None}
HEARD_NOTHING: Json = {"items": [], "correction": None}
_STANDING = re.compile(r"(?:From now on,? |Always |Never )(?:[^.!?\n]|\.(?=\S))+[.!?]?")


def understood(*texts: str, correction: str | None = None, **fields: Any) -> Json:
    """The answer to a listen call that lays these texts down."""
    whole: Json = {
        "op": "add",
        "kind": "rule",
        "when": "always",
        "examples": [],
        "scope": "everywhere",
        "targets": [],
        "expires": None,
    }
    return {
        "items": [{**whole, "text": text, **fields} for text in texts],
        "correction": correction,
    }


def message_of(prompt: str) -> str:
    """The message that a listen call is about."""
    return prompt.rsplit("== The message\n", 1)[-1]


def with_quotes(said: Json, message: str) -> Json:
    """The answer with the last line of the message as the quote of each item that has none."""
    lines = message.strip().splitlines() or [""]
    items = [{"quote": lines[-1], "speaker": "person", **one} for one in said.get("items", [])]
    return {**said, "items": items}


def read_plainly(prompt: str) -> Json:
    """A reader that takes every sentence that begins with `Always`, `Never` or `From now on` for a
    rule.
    """
    return understood(*(found.strip() for found in _STANDING.findall(message_of(prompt))))


def prompt_text(request: Json) -> str:
    """Every word of a chat request, in order."""
    return "\n".join(_flat(message.get("content")) for message in request.get("messages", []))


def _flat(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or [] if isinstance(part, dict))


@dataclass
class Teacher(Provider):
    """Answers by purpose. The callables give what is to be said as JSON, or a status to fail with.
    `work`, `listen` and `evolve` may wait."""

    work: Callable[[str], str | Awaitable[str]] = field(default=lambda prompt: "done")
    listen: Callable[[str], Json | int | Awaitable[Json | int]] = field(default=read_plainly)
    confirm: Callable[[str], Json | int] = field(default=lambda prompt: AGREED)
    check: Callable[[str], Json | int] = field(default=lambda prompt: NO_CHECK)
    judge: Callable[[str], Json | int] = field(default=lambda prompt: PASS)
    evolve: Callable[[str], Json | int | Awaitable[Json | int]] = field(
        default=lambda prompt: NOTHING
    )

    def asked(self, purpose: str | None) -> list[Seen]:
        """The requests that came with this purpose; None are the agents' own."""
        return [
            seen for seen in list(self.requests) if seen.header("x-metaclaw-purpose") == purpose
        ]

    async def _answer(self, seen: Seen, receive: Any, send: Any) -> None:
        if not seen.path.endswith("/chat/completions"):
            await super()._answer(seen, receive, send)
            return
        request = seen.json
        purpose, prompt = seen.header("x-metaclaw-purpose"), prompt_text(request)
        said: Json | int | str | Awaitable[Json | int | str]
        match purpose:
            case "listen":
                said = self.listen(prompt)
                if isinstance(said, dict):
                    said = with_quotes(said, message_of(prompt))
            case "confirm":
                said = self.confirm(prompt)
            case "check":
                said = self.check(prompt)
            case "judge":
                said = self.judge(prompt)
            case "evolve":
                said = self.evolve(prompt)
            case _:
                said = self.work(prompt)
        if inspect.isawaitable(said):
            said = await said
        if isinstance(said, int):
            await _fail(send, "chat", said)
            return
        await _json(send, 200, _whole(request, said if isinstance(said, str) else json.dumps(said)))


def _whole(request: Json, text: str) -> Json:
    return {
        "id": "chatcmpl-taught",
        "object": "chat.completion",
        "created": 1,
        "model": request.get("model"),
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
                "logprobs": None,
            }
        ],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }
