"""A proxy with its provider and people who use it, for episodes in which something fails.

Each person says things, among them rules; the provider notes what it is shown. After each episode
`Invariants` are checked through the API and through what the provider saw."""

import asyncio
import json
import random
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from tests.support.clock import FakeClock
from tests.support.program import PATIENCE_S, Program
from tests.support.provider import Json, Seen, _fail, _raw
from tests.support.teacher import Teacher, prompt_text

PEOPLE: Final = ("ada", "bob")
_CONFIG: Final = """
[[providers]]
name = "world"
kind = "openai"
base_url = "{url}/v1"
api_key = "sk-world"
wires = ["chat"]
timeout_s = 2

[learning]
daily_tokens = 100_000_000
"""


@dataclass
class Moody(Teacher):
    """A provider that misbehaves while `mood` is set."""

    mood: str = ""

    async def _answer(self, seen: Seen, receive: Any, send: Any) -> None:
        match self.mood if seen.path.endswith("/chat/completions") else "":
            case "hangs":
                await receive()
            case "resets":
                raise ConnectionResetError
            case "is overloaded":
                await _fail(send, "chat", 429)
            case "answers nonsense":
                await _raw(send, b'{"choices": [{"message": ' + b"[" * 500, b"application/json")
            case "breaks off":
                head = {"type": "http.response.start", "status": 200}
                length = [(b"content-length", b"5000"), (b"content-type", b"application/json")]
                await send({**head, "headers": length})
                await send({"type": "http.response.body", "body": b'{"id": ', "more_body": True})
                raise ConnectionResetError
            case "never ends":
                await self._go_on(send)
            case _:
                await super()._answer(seen, receive, send)

    async def _go_on(self, send: Any) -> None:
        kind = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": kind})
        event = b'data: {"id":"x","model":"m","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
        with suppress(OSError):
            while self.mood:
                await send({"type": "http.response.body", "body": event, "more_body": True})
                await asyncio.sleep(0.01)


@dataclass
class Said:
    """A sentence that a person said: who, the word that only it has, and what came of it."""

    person: str
    word: str
    is_rule: bool
    turn: str = ""
    session: str = ""
    shown: str = ""

    @property
    def is_answered(self) -> bool:
        return bool(self.shown)


@dataclass
class Crowd:
    """Clients that ask without pause until they are stopped."""

    program: Program
    seed: str
    said: list[Said] = field(default_factory=list)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        for number, person in enumerate((*PEOPLE, *PEOPLE)):
            thread = threading.Thread(target=self._talk, args=(number, person))
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(2 * PATIENCE_S)
            assert not thread.is_alive(), "a client got no answer and no error"

    def _talk(self, number: int, person: str) -> None:
        dice = random.Random(f"{self.seed}-{number}")
        for count in range(1_000):
            if self._stopping.wait(dice.uniform(0, 0.2)):
                return
            word = f"w{self.seed}x{number}x{count}w"
            one = Said(person, word, is_rule=number < len(PEOPLE) and count == 2)
            self.said.append(one)
            with suppress(httpx.HTTPError, OSError):
                self._ask(one, streamed=dice.random() < 0.5)

    def _ask(self, one: Said, *, streamed: bool) -> None:
        text = f"From now on, always end with {one.word}." if one.is_rule else f"Look at {one.word}"
        body = {
            "model": "worker",
            "messages": [{"role": "user", "content": text}],
            "stream": streamed,
        }
        headers = {**self.program.auth, "x-user-id": one.person, "x-session-id": f"s{one.word}"}
        url = f"{self.program.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=body, headers=headers, timeout=PATIENCE_S) as answer:
            content = answer.read()
        if answer.status_code == 200 and (not streamed or b"data: [DONE]" in content):
            one.turn = answer.headers["x-metaclaw-turn"]
            one.session = answer.headers["x-metaclaw-session"]
            one.shown = content.decode()


class World:
    """One home for many episodes."""

    def __init__(self, folder: Path, make: type[Program] = Program, **env: str) -> None:
        self.parts = ExitStack()
        self.provider = Moody(listed=("worker",))
        self.provider.start()
        self.parts.callback(self.provider.stop)
        self.clock = FakeClock(folder / "clock")
        self.program = make(
            folder / "home", _CONFIG.format(url=self.provider.url), env={**self.clock.env, **env}
        )
        self.program.start()
        self.parts.callback(self.program.kill)

    def close(self) -> None:
        self.parts.close()

    def answer_again(self) -> None:
        """Be answered over a new connection, soon."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with suppress(httpx.HTTPError, OSError):
                body = {"model": "worker", "messages": [{"role": "user", "content": "Hello"}]}
                url = f"{self.program.url}/v1/chat/completions"
                headers = {**self.program.auth, "x-user-id": "nobody"}
                if httpx.post(url, json=body, headers=headers, timeout=20).status_code == 200:
                    return
            assert time.monotonic() < deadline, "requests are not answered again"
            time.sleep(0.1)

    def settle(self) -> None:
        """Wait until everything runs and all that was said has been learned from."""
        self.program.wait_for("/api/status", _is_settled)

    def forget(self, one: Said) -> None:
        self._post(f"/api/sessions/{one.session}/forget")

    def retire(self, name: str) -> None:
        httpx.delete(
            f"{self.program.url}/api/rules/{name}", headers=self.program.auth, timeout=PATIENCE_S
        ).raise_for_status()

    def _post(self, path: str) -> None:
        httpx.post(
            f"{self.program.url}{path}", headers=self.program.auth, timeout=PATIENCE_S
        ).raise_for_status()

    def rules(self) -> list[Json]:
        found: list[Json] = self.program.get("/api/rules")["rules"]
        return found

    def rules_about(self, words: set[str]) -> list[Json]:
        """The rules in force, once there is one about each of these words, or after a while."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = self.rules()
            missing = {word for word in words if not any(word in one["text"] for one in found)}
            if not missing or time.monotonic() > deadline:
                return found
            time.sleep(0.1)

    def prompt_of(self, person: str) -> str:
        """What the provider is shown of a new request of this person."""
        word = f"probe{time.monotonic_ns()}"
        httpx.post(
            f"{self.program.url}/v1/chat/completions",
            json={"model": "worker", "messages": [{"role": "user", "content": word}]},
            headers={**self.program.auth, "x-user-id": person},
            timeout=PATIENCE_S,
        ).raise_for_status()
        return next(
            text
            for seen in reversed(self.provider.asked(None))
            if word in (text := prompt_text(seen.json))
        )


def _is_settled(status: Json) -> bool:
    return (
        not status["degraded"]
        and all(state in ("running", "done") for state in status["loops"].values())
        and status["learning"]["pending"] is not None
        and not any(status["learning"]["pending"][kind] for kind in ("turns", "listening"))
    )


def check_invariants(world: World, crowd: Crowd) -> None:
    """After relief: serving resumed; nothing that a client saw is lost; nothing is taught twice or
    half published; nothing that was forgotten comes back; no person sees what is another's.
    """
    world.answer_again()
    world.settle()
    answered = [one for one in crowd.said if one.is_answered]
    for one in answered:
        turn = world.program.get(f"/api/turns/{one.turn}")
        assert one.word in json.dumps(turn["request"]), f"{one.turn} is not what {one.word} asked"
    in_force = world.rules_about({one.word for one in answered if one.is_rule})
    for one in crowd.said:
        mine = [rule for rule in in_force if one.word in rule["text"]]
        assert len(mine) <= 1, f"{one.word} was taught twice"
        assert not one.is_answered or len(mine) == one.is_rule, f"{one.word} was not taught"
        assert [rule["scope"] for rule in mine if one.person not in str(rule["scope"])] == [], mine
    _check_prompts(world, crowd, in_force)
    _check_folder(world)
    _check_forgetting(world, crowd)


def _check_prompts(world: World, crowd: Crowd, in_force: list[Json]) -> None:
    words = {one.word: one for one in crowd.said if one.is_rule}
    for person in PEOPLE:
        prompt = world.prompt_of(person)
        for word, one in words.items():
            is_in_force = any(word in rule["text"] for rule in in_force)
            assert (word in prompt) == (is_in_force and one.person == person), (
                f"{word} of {one.person} in the prompt of {person}: {word in prompt}"
            )


def _check_folder(world: World) -> None:
    """What is in force is what the files say, once both have come to rest."""
    folder = world.program.home / "skills"
    deadline = time.monotonic() + PATIENCE_S
    while True:
        files = {path.parent.name for path in folder.glob("**/SKILL.md")}
        in_force = {rule["name"] for rule in world.rules()}
        if files == in_force:
            return
        assert time.monotonic() < deadline, f"files {sorted(files)}, in force {sorted(in_force)}"
        time.sleep(0.05)


def _check_forgetting(world: World, crowd: Crowd) -> None:
    """One session is forgotten, a rule with it; the others are withdrawn, so that prompts stay
    short.
    """
    taught = [one for one in crowd.said if one.is_answered and one.is_rule]
    gone = taught[0] if taught else next((one for one in crowd.said if one.is_answered), None)
    if gone is not None:
        world.forget(gone)
    for rule in world.rules():
        world.retire(rule["name"])
    assert world.rules() == []
    if gone is not None:
        answer = httpx.get(
            f"{world.program.url}/api/turns/{gone.turn}",
            headers=world.program.auth,
            timeout=PATIENCE_S,
        )
        assert answer.status_code == 404, f"{gone.turn} was forgotten and is there"
