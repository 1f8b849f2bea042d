"""What the acts of `metaclaw demo` share: a temporary home with its running proxy, and the stage on
which claims are printed.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import click

from metaclaw.plugin import (
    ApiClient,
    Facts,
    Fields,
    MetaClawError,
    duration,
    echo,
    first_model,
    launch,
    message_in,
    parsed,
    prepared,
    short,
    show_progress,
    stop_proxy,
)

_START_S = 600.0
_ANSWER_S = 300.0
_COMMAND_S = 60.0
_PORT = "proxy.port=0"


@dataclass(frozen=True, slots=True)
class DemoReply:
    """An answer, the rules and skills in its prompt, the policy version that gave it, and the times
    to its end and first word.
    """

    text: str
    placed: tuple[str, ...]
    policy: int
    seconds: float
    first_s: float


class DemoHome:
    """A temporary home and its running proxy."""

    def __init__(self, home: Path, api: ApiClient, model: str) -> None:
        self.home, self.api, self._model = home, api, model
        self._sessions = count(1)

    @classmethod
    def start(
        cls,
        home: Path,
        config: str,
        overrides: Sequence[str],
        skills: Mapping[str, str],
        *,
        model_from: Path,
    ) -> "DemoHome":
        """Create the home, start the proxy in the background and wait until it serves."""
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
        model = facts.model or first_model(api)
        if model is None:
            raise MetaClawError(
                'no model is known to ask: write models = ["…"] below your provider in config.toml'
            )
        return cls(home, api, model)

    @property
    def url(self) -> str:
        return self.api.url

    @property
    def page(self) -> str:
        return f"{self.api.url}/k/{self.api.key}/ui"

    def stop(self) -> None:
        stop_proxy(self.home, _COMMAND_S)

    def get(self, path: str) -> Facts:
        """The answer to a GET, which must succeed."""
        return self.api.call("GET", path)

    def post(self, path: str, fields: Fields | None = None) -> Facts:
        """Send a command to the proxy's API; it must succeed."""
        return self.api.call("POST", path, fields, _COMMAND_S)

    def rules(self) -> dict[str, str]:
        """The texts of the rules and facts in force, by name."""
        return {rule["name"]: rule["text"] for rule in self.get("/api/rules")["rules"]}

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
        """Send a streamed chat request, as an agent does. `after` are the questions and answers
        before it. Every question is in a new session. `on_words` is called as words arrive."""
        history = [said for asked, got in after for said in (("user", asked), ("assistant", got))]
        messages = [
            {"role": role, "content": text} for role, text in [*history, ("user", question)]
        ]
        body: Facts = {
            "model": self._model,
            "messages": messages,
            "max_tokens": max_tokens,
            "stream": True,
        }
        body |= {"temperature": temperature} if temperature is not None else {}
        body |= {"seed": seed} if seed is not None else {}
        headers = {"X-Session-Id": f"demo-{next(self._sessions)}", "X-Session-Done": "true"}
        began, first_s, said = time.monotonic(), 0.0, ""
        with self.api.stream(
            "POST", "/v1/chat/completions", body, headers=headers, timeout_s=_ANSWER_S
        ) as reply:
            if reply.status != 200:
                raise MetaClawError(
                    f"the model gave no answer ({reply.status}): {message_in(parsed(reply.read()))}"
                )
            while line := reply.readline():
                words = _delta(line)
                if words:
                    first_s = first_s or time.monotonic() - began
                    said += words
                    if on_words is not None:
                        on_words(words)
        placed = tuple(filter(None, (reply.getheader("X-Metaclaw-Skills") or "").split(",")))
        policy = int(reply.getheader("X-Metaclaw-Policy") or 0)
        return DemoReply(
            said.strip(),
            tuple(name.strip() for name in placed),
            policy,
            time.monotonic() - began,
            first_s,
        )


def _delta(line: bytes) -> str:
    """The words in one line of the stream."""
    if not line.startswith(b"data: {"):
        return ""
    choices = json.loads(line[6:])["choices"]
    return (choices[0]["delta"].get("content") or "") if choices else ""


def _link_model(source: Path, home: Path) -> None:
    """Use the converted embedded model of another home, because converting it again takes half a
    minute.
    """
    made = source / "models"
    if not made.is_dir():
        return
    try:
        shutil.copytree(made, home / "models", copy_function=os.link)
    except OSError:
        shutil.rmtree(home / "models", ignore_errors=True)


_WIDTH = 100
_SILENT_S = 20.0
"""The longest time without a printed line while waiting."""


@dataclass
class Stage:
    """State of the demo. `seen` has each claim and whether it was observed; None if the demo could
    not show it here.
    """

    home: Path
    folder: Path
    is_unattended: bool
    minutes: float
    base_model: str | None
    check: str | None
    sets: tuple[str, ...]
    seen: list[tuple[str, bool | None]] = field(default_factory=list)
    clock: Callable[[], float] = time.monotonic
    _said_at: float = -_SILENT_S

    def say(self, text: str) -> None:
        """Print lines."""
        self._said_at = self.clock()
        for line in text.split("\n"):
            echo(line)

    def progress(self, text: str) -> None:
        """Show progress: at once on a terminal, and as a printed line if nothing was printed for a
        while.
        """
        if self.clock() - self._said_at >= _SILENT_S:
            show_progress("")
            self.say(f"  {text}")
        show_progress(text)

    def claim(self, what: str, is_seen: bool | None) -> None:
        """Record and print whether a claim was observed."""
        self.seen.append((what, is_seen))
        self.say(f"  {_MARKS[is_seen]} {what}")

    def typed(self, question: str, default: str) -> str:
        """Prompt the person; in an unattended run, print and return the default."""
        if self.is_unattended:
            click.echo(f"{question}: {default}")
            return default
        return str(click.prompt(question, default=default))


_MARKS = {True: "seen:", False: "NOT seen:", None: "cannot be shown here:"}


@contextmanager
def running(
    stage: Stage,
    name: str,
    config: str,
    overrides: Sequence[str] = (),
    skills: Mapping[str, str] | None = None,
) -> Iterator[DemoHome]:
    """Run a proxy with these skills (texts of SKILL.md by name) until the block ends."""
    began = time.monotonic()
    proxy = DemoHome.start(
        stage.folder / name, config, overrides, skills or {}, model_from=stage.home
    )
    try:
        stage.say(f"Ready after {duration(time.monotonic() - began)}.")
        yield proxy
    finally:
        proxy.stop()


def show_reply(reply: DemoReply) -> None:
    """Print an answer and the names in its prompt."""
    echo(f"  > {short(reply.text or '(no words)', _WIDTH)}")
    placed = f"placed: {', '.join(reply.placed)}" if reply.placed else "nothing placed"
    echo(f"    ({reply.seconds:.1f} s, {placed})")
