"""SIMULATED: the model behind the proxy, in all of its roles, and the agent that talks to it.

As an agent it makes the failing calls of a task's kind one after another, then the call that works,
unless the kind's lesson stands in its prompt: then it makes the call that works at once. As an
evolver it writes the lesson of a kind whose failing call and fix it is shown. It judges nothing."""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

TOOLS = ("Bash", "Edit", "Read", "Write")
_SAME = 60
"""So many first characters of an argument are looked for in a prompt."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call and what it prints."""

    tool: str
    arguments: Mapping[str, Any]
    result: str

    @classmethod
    def of(cls, stated: Any) -> Self:
        """From a kind's file: a command and its output, a triple, or a table."""
        match stated:
            case {"tool": tool, "arguments": arguments, "result": result}:
                return cls(tool, arguments, result)
            case [command, result]:
                return cls("Bash", {"command": command}, result)
            case [tool, arguments, result]:
                return cls(tool, arguments, result)
        raise ValueError(f"not a call: {stated!r}")

    def is_in(self, text: str) -> bool:
        """Whether all of its arguments stand in a text, as they are or as JSON has them."""
        values = [str(value)[:_SAME] for value in self.arguments.values()]
        return all(value in text or json.dumps(value)[1:-1] in text for value in values)

    def same(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        return self.tool == tool and dict(self.arguments) == dict(arguments)


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to fail."""

    name: str
    failing: Sequence[Call]
    fix: Call
    lesson: str
    tasks: Sequence[str]
    teaches: bool
    """False: the evolver has nothing of use to say, or must not say it without the person."""

    @classmethod
    def of(cls, stated: Mapping[str, Any]) -> Self:
        return cls(
            stated["name"],
            [Call.of(call) for call in stated["failing"]],
            Call.of(stated["fix"]),
            stated["lesson"],
            stated["tasks"],
            not (stated.get("useless") or stated.get("hostile")),
        )


class Model:
    """The scripted model as a server of OpenAI's chat wire; counts what it is sent by purpose."""

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self.kinds = kinds
        self.tokens: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._ids = iter(range(10**9))
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length") or 0))
                purpose = self.headers.get("x-metaclaw-purpose") or "main"
                answer = json.dumps(outer.answer(purpose, json.loads(raw), len(raw) // 4)).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, purpose: str, body: Mapping[str, Any], tokens: int) -> dict[str, Any]:
        """A whole chat completion."""
        with self._lock:
            self.tokens[purpose] += tokens
            number = next(self._ids)
        messages = body.get("messages", [])
        message: dict[str, Any] = {"role": "assistant", "content": None}
        call = self._act(messages) if purpose == "main" else None
        if call is None:
            message["content"] = "Done." if purpose == "main" else self._reply(purpose, messages)
        else:
            function = {"name": call.tool, "arguments": json.dumps(dict(call.arguments))}
            message["tool_calls"] = [
                {"id": f"call_{number}", "type": "function", "function": function}
            ]
        return {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "message": message,
                    "finish_reason": "stop" if call is None else "tool_calls",
                }
            ],
            "usage": {
                "prompt_tokens": tokens,
                "completion_tokens": 20,
                "total_tokens": tokens + 20,
            },
        }

    def kind_of(self, task: str) -> Kind | None:
        """The kind with the longest task that stands in a text."""
        found = [(len(known), kind) for kind in self.kinds for known in kind.tasks if known in task]
        return max(found, key=lambda one: one[0])[1] if found else None

    def _act(self, messages: Sequence[Mapping[str, Any]]) -> Call | None:
        said = [_words(one) for one in messages if one["role"] == "user"]
        kind = self.kind_of(said[0]) if said else None
        if kind is None or said[-1].strip() == "thanks":
            return None
        made = [
            (call["function"]["name"], json.loads(call["function"]["arguments"]))
            for one in messages
            if one["role"] == "assistant"
            for call in one.get("tool_calls") or []
        ]
        if any(kind.fix.same(*call) for call in made):
            return None
        if any(kind.lesson in _words(one) for one in messages):
            return kind.fix
        tried = sum(any(wrong.same(*call) for wrong in kind.failing) for call in made)
        return kind.failing[tried] if tried < len(kind.failing) else kind.fix

    def _reply(self, purpose: str, messages: Sequence[Mapping[str, Any]]) -> str:
        text = "\n".join(_words(one) for one in messages)
        match purpose:
            case "listen":
                return json.dumps({"items": [], "correction": None})
            case "confirm":
                return json.dumps(
                    {"by_person": True, "lasting": True, "relation": "new", "target": None}
                )
            case "evolve":
                return json.dumps({"skills": [self._lesson(one) for one in self._shown(text)]})
            case _:
                return json.dumps({"outcome": "unknown", "score": 0.0, "reason": "simulated"})

    def _shown(self, text: str) -> list[Kind]:
        """The kinds whose failure and fix stand in a prompt."""
        return [
            kind
            for kind in self.kinds
            if kind.fix.is_in(text) and any(call.is_in(text) for call in kind.failing)
        ]

    @staticmethod
    def _lesson(kind: Kind) -> dict[str, Any]:
        line = kind.lesson if kind.teaches else "Be careful."
        return {
            "name": f"lesson-{kind.name}",
            "kind": "lesson",
            "trigger": f"When {kind.tasks[0]}",
            "body": line,
            "text": line,
            "category": "agent",
            "examples": [],
            "check": None,
        }


def schedule(kinds: Sequence[Kind], days: int, seed: int) -> list[list[tuple[Kind, str]]]:
    """What happens on each day: every kind comes 3 to 12 times, in words of its tasks."""
    dice = random.Random(seed)
    plan: list[list[tuple[Kind, str]]] = [[] for _ in range(days)]
    for kind in kinds:
        for _ in range(dice.randint(3, 12)):
            task = f"{dice.choice(kind.tasks)} (ticket {dice.randint(1000, 9999)})"
            plan[dice.randrange(days)].append((kind, task))
    for one in plan:
        dice.shuffle(one)
    return plan


def _words(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content or [] if isinstance(part, dict))
