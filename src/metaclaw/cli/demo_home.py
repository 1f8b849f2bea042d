"""A proxy in a temporary home for the demo: started as a person starts it, asked over HTTP, stopped."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from metaclaw.cli.client import ApiClient, at, expect, message_in, parsed, rows
from metaclaw.cli.lifecycle import launch, stop_proxy
from metaclaw.errors import MetaClawError

if TYPE_CHECKING:
    from metaclaw.domain.chat import Json

_START_S = 600.0
_ANSWER_S = 300.0
_COMMAND_S = 60.0
_PORT = "proxy.port=0"


@dataclass(frozen=True, slots=True)
class DemoReply:
    """An answer, which rules and skills stood in its prompt, which weights gave it, and how long it and its first word took."""

    text: str
    placed: tuple[str, ...]
    policy: int
    seconds: float
    first_s: float


class DemoHome:
    """One temporary home with the proxy that runs on it."""

    def __init__(self, home: Path, api: ApiClient, model: str) -> None:
        self.home, self.api, self._model = home, api, model
        self._sessions = count(1)

    @classmethod
    def start(cls, home: Path, config: str, overrides: Sequence[str], skills: Mapping[str, str], *, model_from: Path) -> "DemoHome":
        """Make the home, start the proxy in the background and wait until it serves."""
        from metaclaw.cli.lifecycle import prepared

        home.mkdir(mode=0o700, parents=True)
        path = home / "config.toml"
        path.touch(mode=0o600)
        path.write_text(config, encoding="utf-8")
        for name, text in skills.items():
            folder = home / "skills" / name
            folder.mkdir(parents=True)
            (folder / "SKILL.md").write_text(text, encoding="utf-8")
        _link_model(model_from, home)
        wanted = [_PORT, *overrides]
        api, facts = launch(home, prepared(home, wanted), wanted, _START_S, ends_with_parent=True)
        return cls(home, api, facts.model or _first_model(api))

    @property
    def url(self) -> str:
        """Where it serves."""
        return self.api.url

    @property
    def page(self) -> str:
        """Its page in a browser."""
        return f"{self.api.url}/k/{self.api.key}/ui"

    def stop(self) -> None:
        """Stop the proxy."""
        stop_proxy(self.home, _COMMAND_S)

    def post(self, path: str, said: "Mapping[str, Json] | None" = None) -> "dict[str, Json]":
        """A command to the proxy's own interface that must succeed."""
        return expect(*self.api.post(path, said, timeout_s=_COMMAND_S))

    def rules(self) -> dict[str, str]:
        """The rules and facts in force: their texts by name."""
        return {str(at(one, "name")): str(at(one, "text")) for one in rows(at(self.api.facts("/api/rules"), "rules"))}

    def ask(
        self,
        question: str,
        *,
        after: Iterable[tuple[str, str]] = (),
        temperature: float | None = None,
        max_tokens: int = 60,
        seed: int | None = None,
        on_words: "Callable[[str], None] | None" = None,
    ) -> DemoReply:
        """Ask over the OpenAI wire, streamed, as an agent does; `after` are the questions and answers before it.

        Without `after` every question is a session of its own. `on_words` is called as words arrive.
        """
        history = [said for asked, got in after for said in (("user", asked), ("assistant", got))]
        messages: list[Json] = [{"role": role, "content": text} for role, text in [*history, ("user", question)]]
        body: dict[str, Json] = {"model": self._model, "messages": messages, "max_tokens": max_tokens, "stream": True}
        body |= {"temperature": temperature} if temperature is not None else {}
        body |= {"seed": seed} if seed is not None else {}
        headers = {"X-Session-Id": f"demo-{next(self._sessions)}", "X-Session-Done": "true"}
        began, first_s, said = time.monotonic(), 0.0, ""
        with self.api.stream("POST", "/v1/chat/completions", body, headers=headers, timeout_s=_ANSWER_S) as reply:
            if reply.status != 200:
                raise MetaClawError(f"the model gave no answer ({reply.status}): {message_in(parsed(reply.read()))}")
            while line := reply.readline():
                words = _delta(line)
                if words:
                    first_s = first_s or time.monotonic() - began
                    said += words
                    if on_words is not None:
                        on_words(words)
        placed = tuple(filter(None, (reply.getheader("X-Metaclaw-Skills") or "").split(",")))
        policy = int(reply.getheader("X-Metaclaw-Policy") or 0)
        return DemoReply(said.strip(), tuple(name.strip() for name in placed), policy, time.monotonic() - began, first_s)


def _delta(line: bytes) -> str:
    """The words in one line of the stream."""
    if not line.startswith(b"data: {"):
        return ""
    event: Json = json.loads(line[6:])
    choices = rows(at(event, "choices"))
    words = at(choices[0], "delta", "content") if choices else None
    return words if isinstance(words, str) else ""


def _first_model(api: ApiClient) -> str:
    for one in rows(at(api.facts("/v1/models"), "data")):
        if isinstance(name := at(one, "id"), str):
            return name
    raise MetaClawError('no model is known to ask: write models = ["…"] below your provider in config.toml')


def _link_model(source: Path, home: Path) -> None:
    """Use the embedded model that another home has converted already; converting it again takes half a minute."""
    made = source / "models"
    if not made.is_dir():
        return
    try:
        shutil.copytree(made, home / "models", copy_function=os.link)
    except OSError:
        shutil.rmtree(home / "models", ignore_errors=True)
