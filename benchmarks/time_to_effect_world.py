"""The real program with simulated models around it, for `benchmarks.time_to_effect`: one that
learns, and one that does not.
"""

import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.time_to_effect_topics import TOPICS, Topic
from tests.support.program import Program
from tests.support.provider import Seen
from tests.support.teacher import NOTHING, Teacher, prompt_text

_SYSTEM = {"role": "system", "content": "You are a careful assistant."}
_START_S = 20.0
_PAUSE_S = 0.05


@dataclass
class World(Teacher):
    """The simulated models. The evolver knows every topic by its correction, and how long it was
    busy with each.
    """

    delay_s: float = 0.0
    evolving_s: dict[str, float] = field(default_factory=dict)

    async def _answer(self, seen: Seen, receive: Any, send: Any) -> None:
        began = time.perf_counter()
        topic = (
            _topic_in(prompt_text(seen.json))
            if seen.header("x-metaclaw-purpose") == "evolve"
            else None
        )
        if topic is not None:
            await asyncio.sleep(self.delay_s)
        await super()._answer(seen, receive, send)
        if topic is not None:
            self.evolving_s.setdefault(topic.name, time.perf_counter() - began)


def _topic_in(prompt: str) -> Topic | None:
    return next((topic for topic in TOPICS if topic.correction in prompt), None)


def _propose(prompt: str) -> dict[str, Any]:
    topic = _topic_in(prompt)
    return NOTHING if topic is None else {"skills": [topic.skill]}


def _config(world: World, quiet_url: str, *, learn: bool) -> str:
    return f"""
[[providers]]
name = "world"
kind = "openai"
base_url = "{world.url}/v1"
api_key = "sk-world"
wires = ["chat"]
models = ["worker", "judge-model", "evolver-model"]

[[providers]]
name = "quiet"
kind = "openai"
base_url = "{quiet_url}/v1"
api_key = "sk-quiet"
wires = ["chat"]
models = ["echo"]

[skills]
gate = "lint"
learn = {str(learn).lower()}

[judge]
provider = "world"
model = "judge-model"

[evolver]
provider = "world"
model = "evolver-model"
"""


@dataclass
class Agent:
    """Whoever talks to the program."""

    program: Program
    http: httpx.Client

    def ask(self, session: str, *words: str) -> httpx.Response:
        """The whole conversation so far, in the person's words; what was answered in between is
        always the same.
        """
        messages: list[dict[str, str]] = [_SYSTEM]
        for number, said in enumerate(words):
            messages += [{"role": "assistant", "content": "done"}] * (number > 0) + [
                {"role": "user", "content": said}
            ]
        headers = {**self.program.auth, "x-session-id": session}
        body = {"model": "worker", "messages": messages}
        answer = self.http.post(
            f"{self.program.url}/v1/chat/completions", json=body, headers=headers
        )
        answer.raise_for_status()
        return answer

    def carries(self, session: str, topic: Topic, number: int) -> bool:
        """Whether a fresh request for this kind of thing gets the skill."""
        answer = self.ask(session, topic.task(number))
        return topic.name in answer.headers["x-metaclaw-skills"].split(",")


@contextmanager
def _quiet_provider() -> Iterator[str]:
    """The provider that only the unrelated client uses, in a process of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "tests.support.provider", str(port), "0"])
    try:
        for _ in range(int(_START_S / _PAUSE_S)):
            with suppress(httpx.HTTPError):
                httpx.get(f"http://127.0.0.1:{port}/v1/models").raise_for_status()
                break
            time.sleep(_PAUSE_S)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def stage(delay_s: float) -> Iterator[tuple[World, Agent, Agent]]:
    """Both programs with their simulated models."""
    with tempfile.TemporaryDirectory(prefix="metaclaw-effect-") as folder, ExitStack() as parts:
        world = World(delay_s=delay_s, evolve=_propose)
        world.start()
        parts.callback(world.stop)
        quiet_url = parts.enter_context(_quiet_provider())
        client = parts.enter_context(httpx.Client(timeout=20))
        agents = []
        for learn in (True, False):
            program = Program(
                Path(folder) / f"learn-{learn}", _config(world, quiet_url, learn=learn)
            )
            program.start()
            parts.callback(program.stop)
            agents.append(Agent(program, client))
        yield world, agents[0], agents[1]
